r"""Calibration: against scikit-learn's curve, the formula, and repeated data sets."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from limbeck.compression.fidelity.measures import calibration_error, curve, mean, outcomes


def sample(n, seed, power=1.0):
    r"""Confidences, of which a power comes true."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, (n, 1))
    return confidence, (rng.uniform(size=(n, 1)) < confidence**power).astype(float)


def error(found, **options):
    return mean(calibration_error(found, **options))


def by_hand(found, bins=15):
    confidence, right = (part.ravel() for part in found)
    edges = np.quantile(confidence, np.linspace(0, 1, bins + 1))
    total = 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        inside |= (confidence == edges[0]) & (low == edges[0])
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def test_outcomes_are_of_the_most_probable_class_and_of_every_label():
    p = np.array([[0.7, 0.3], [0.4, 0.6]])
    confidence, right = outcomes("classification", p, np.array([[0, 1], [0, 1]]))
    np.testing.assert_array_equal(confidence, [[0.7], [0.6]])
    np.testing.assert_array_equal(right, [[0], [1]])
    confidence, right = outcomes("multilabel", p, np.array([[0, 1], [1, 0]]))
    np.testing.assert_array_equal(confidence, p)
    np.testing.assert_array_equal(right, [[0, 1], [1, 0]])


def test_the_curve_is_as_scikit_learn_has_it():
    found = sample(1000, 0, 1.5)
    frequency, confidence = calibration_curve(
        found[1].ravel(), found[0].ravel(), n_bins=15, strategy="quantile"
    )
    mine = curve(found)
    np.testing.assert_allclose(mine["frequency"], frequency)
    np.testing.assert_allclose(mine["confidence"], confidence)
    assert sum(mine["count"]) == 1000
    assert max(mine["count"]) - min(mine["count"]) <= 1


def test_errors_of_the_curve_are_those_of_means():
    found = sample(600, 1)
    mine = curve(found, bins=1)
    right = found[1].ravel()
    assert mine["std_error"][0] == pytest.approx(right.std(ddof=1) / math.sqrt(600))
    alone = curve((np.array([[0.9]]), np.array([[1.0]])))
    assert math.isnan(alone["std_error"][0])


def test_the_error_is_the_formula():
    found = sample(700, 2, 2.0)
    assert error(found).value == pytest.approx(by_hand(found))
    several = np.random.default_rng(0).uniform(size=(90, 4))
    several = several, (several > 0.4).astype(float)
    assert error(several).value == pytest.approx(by_hand(several))


def test_equal_confidences_share_a_bin_whatever_the_order_of_rows():
    confidence = np.array([[1.0]] * 60 + [[0.8]] * 40)
    right = np.array([[1.0]] * 30 + [[0.0]] * 30 + [[1.0]] * 32 + [[0.0]] * 8)
    assert error((confidence, right)).value == pytest.approx(0.6 * 0.5)
    order = np.random.default_rng(0).permutation(100)
    assert error((confidence[order], right[order])).value == pytest.approx(0.3)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**16), st.booleans())
def test_it_lies_between_0_and_1(n, m, seed, sure):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(size=(n, m))
    confidence = np.round(confidence) if sure else confidence
    right = rng.integers(0, 2, (n, m)).astype(float)
    found = error((confidence, right))
    assert 0 <= found.value <= 1
    assert math.isnan(found.std_error) if n == 1 else found.std_error >= 0
    perfect = error((np.round(confidence), np.round(confidence)))
    assert perfect.value == 0


def always(n, seed):
    r"""Confidences that mean nothing: low ones are too low, and high ones too high."""
    confidence, _ = sample(n, seed)
    return confidence, (np.random.default_rng(1000 + seed).uniform(size=(n, 1)) < 0.75).astype(
        float
    )


@pytest.mark.parametrize(
    "kind", [lambda n, seed: sample(n, seed, 1.6), always], ids=["sure", "flat"]
)
def test_the_standard_error_is_that_of_repeated_data(kind):
    values = [error(kind(1000, seed)).value for seed in range(300)]
    claimed = [error(kind(1000, seed)).std_error for seed in range(20)]
    assert np.mean(claimed) == pytest.approx(np.std(values), rel=0.15)


def test_the_labels_of_an_example_count_as_one():
    found = sample(500, 6, 1.6)
    found = np.round(found[0], 2), found[1]  # so that bins are the same
    one = error(found, bins=5)
    copies = error(tuple(np.repeat(part, 4, axis=1) for part in found), bins=5)
    assert copies == pytest.approx(one)  # the same label four times tells nothing more


def test_differences_pair():
    confidence, right = sample(1000, 3, 1.6)
    a, b = (calibration_error((part, right)) for part in (confidence, confidence**1.05))
    assert mean(a - b).value == pytest.approx(mean(a).value - mean(b).value)
    assert mean(a - b).std_error < 0.3 * mean(a).std_error


def test_weights_count_as_copies_do():
    confidence, right = sample(400, 4)
    confidence = np.round(confidence, 2)
    weight = np.where(np.arange(400) % 2 == 0, 1.5, 0.5)
    bins = 1  # whose edges do not depend on weights
    copies = np.repeat(np.arange(400), np.where(np.arange(400) % 2 == 0, 3, 1))
    one = mean(calibration_error((confidence, right), weight, bins))
    assert one.value == pytest.approx(error((confidence[copies], right[copies]), bins=bins).value)
