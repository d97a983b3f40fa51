r"""Measures, against scikit-learn and against what they must be by definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from limbeck.compression.fidelity import measures as m

OF_LABELS = {
    name: m.MEASURES[name].rows["multilabel"] for name in ("agreement", "log_probability", "kl")
}


def probabilities(n, k, seed=0, sharp=1.0):
    return np.random.default_rng(seed).dirichlet(np.full(k, sharp), n)


@pytest.fixture
def classified():
    p, y = probabilities(200, 4), np.random.default_rng(1).integers(0, 4, 200)
    return p, y


@pytest.fixture
def labelled():
    rng = np.random.default_rng(2)
    return rng.uniform(size=(150, 3)), rng.integers(0, 2, (150, 3))


@pytest.fixture
def valued():
    rng = np.random.default_rng(3)
    y = rng.normal(size=(120, 2)) * [1, 100]
    return y + rng.normal(size=y.shape) * [0.5, 80], y


def test_classification_is_as_scikit_learn_has_it(classified):
    p, y = classified
    truth = np.eye(4)[y]
    assert m.agreement(truth, p).mean() == pytest.approx(metrics.accuracy_score(y, p.argmax(1)))
    assert m.log_probability(truth, p).mean() == pytest.approx(-metrics.log_loss(y, p))
    assert m.brier(truth, p).mean() == pytest.approx(((p - truth) ** 2).sum(1).mean())


def test_over_two_classes_the_brier_score_is_twice_the_square_error_of_one():
    p, y = probabilities(50, 2), np.random.default_rng(0).integers(0, 2, 50)
    assert m.brier(np.eye(2)[y], p).mean() == pytest.approx(
        2 * metrics.brier_score_loss(y, p[:, 1])
    )


def test_multilabel_is_as_scikit_learn_has_it(labelled):
    p, y = labelled
    guess = p > 0.5
    assert OF_LABELS["agreement"](y, p).mean() == pytest.approx(1 - metrics.hamming_loss(y, guess))
    assert m.subset_agreement(y, p).mean() == pytest.approx(metrics.accuracy_score(y, guess))
    each = [metrics.log_loss(y[:, k], p[:, k]) for k in range(3)]
    assert OF_LABELS["log_probability"](y, p).mean() == pytest.approx(-np.mean(each))
    each = [metrics.brier_score_loss(y[:, k], p[:, k]) for k in range(3)]
    assert m.square_error(y, p).mean() == pytest.approx(np.mean(each))


def test_regression_is_as_scikit_learn_has_it(valued):
    f, y = valued
    assert m.r2(y, f).mean() == pytest.approx(metrics.r2_score(y, f))
    assert m.absolute_error(y, f).mean() == pytest.approx(metrics.mean_absolute_error(y, f))
    assert m.square_error(y, f).mean() == pytest.approx(metrics.mean_squared_error(y, f))
    assert m.rmse(y, f).mean() == pytest.approx(math.sqrt(metrics.mean_squared_error(y, f)))


def test_a_standard_error_is_that_of_a_mean():
    rows = np.random.default_rng(4).normal(size=7)
    assert m.mean(rows) == pytest.approx((rows.mean(), stats.sem(rows)))


def test_r2_against_a_teacher_has_the_teachers_values_as_the_truth(valued):
    student, teacher = valued
    found = m.measure_rows("regression", student, None, teacher)["teacher_r2"].mean()
    assert found == pytest.approx(metrics.r2_score(teacher, student))
    assert found != pytest.approx(metrics.r2_score(student, teacher))


def test_divergences_are_sums_over_what_can_be(classified, labelled):
    t, s = classified[0], probabilities(200, 4, seed=9)
    np.testing.assert_allclose(m.kl(t, s), stats.entropy(t, s, axis=1))
    t, s = labelled[0], np.random.default_rng(5).uniform(size=(150, 3))
    each = stats.entropy(np.stack([t, 1 - t]), np.stack([s, 1 - s]), axis=0)
    np.testing.assert_allclose(OF_LABELS["kl"](t, s), each.mean(1))


def test_agreement_is_accuracy_with_the_teacher_as_the_truth():
    t, s = probabilities(300, 3), probabilities(300, 3, seed=1)
    expected = metrics.accuracy_score(t.argmax(1), s.argmax(1))
    assert m.agreement(t, s).mean() == pytest.approx(expected)
    t, s = t[:, :2] * 2, s[:, :2]
    assert m.subset_agreement(t, s).mean() == ((t > 0.5) == (s > 0.5)).all(1).mean()
    assert OF_LABELS["agreement"](t, s).mean() == pytest.approx(((t > 0.5) == (s > 0.5)).mean())


def test_a_probability_of_nothing_costs_no_more_than_the_floor():
    p = np.array([[1.0, 0.0], [1.0, 0.0]])
    found = m.log_probability(np.eye(2), p)
    np.testing.assert_allclose(found, [0.0, np.log(m.FLOOR)], rtol=1e-12)
    np.testing.assert_allclose(m.kl(p[:1], p[:1, ::-1]), -np.log(m.FLOOR))
    y = np.array([[0, 1]])
    assert OF_LABELS["log_probability"](y, p[:1]) == pytest.approx(np.log(m.FLOOR))
    rare = np.array([[1e-11, 1 - 1e-11]])  # above the floor, all is as it is
    assert m.log_probability(np.array([[1, 0]]), rare) == pytest.approx(np.log(1e-11))
    assert m.kl(p[:1], rare) == pytest.approx(-np.log(1e-11))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**16), st.booleans())
def test_measures_stay_within_their_bounds(n, k, seed, hard):
    rng = np.random.default_rng(seed)
    p, t = (rng.dirichlet(np.full(k, 0.3), n) for _ in range(2))
    if hard:  # probabilities of exactly 0 and 1
        p, t = np.eye(k)[p.argmax(1)], np.eye(k)[t.argmax(1)]
    y = np.eye(k)[np.full(n, rng.integers(k))]  # one class alone
    found = m.measure_rows("classification", p, y, t)
    for name, rows in found.items():
        assert rows.shape == (n,)
        # there are no other classes to rank this one against
        assert (np.isnan if name == "auc" else np.isfinite)(rows).all(), name
    assert set(np.unique(found["accuracy"])) <= {0, 1}
    assert (found["brier"] >= -1e-12).all()
    assert (found["brier"] <= 2 + 1e-12).all()
    assert (found["log_probability"] >= np.log(m.FLOOR)).all()
    assert (found["log_probability"] <= 1e-12).all()
    assert (found["kl"] >= 0).all()
    np.testing.assert_allclose(m.kl(p, p), 0, atol=1e-9)
    assert m.agreement(p, p).all()
    labels = m.measure_rows("multilabel", p, (t > 0.5).astype(float), t)
    assert all(np.isfinite(labels[name]).all() for name in labels if name != "auc")
    assert (labels["subset_accuracy"] <= labels["accuracy"]).all()
    assert (labels["kl"] >= 0).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 2**16))
def test_perfect_predictions_have_no_error(n, k, seed):
    y = np.random.default_rng(seed).normal(size=(n, k))
    assert not m.rmse(y, y).any()
    assert not m.absolute_error(y, y).any()
    found = m.r2(y, y)
    assert np.isnan(found).all() if n == 1 else np.allclose(found, 1)


def test_a_target_that_does_not_vary_has_no_r2():
    y = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    f = y + np.array([[0.5, 1.0], [0.0, 1.0], [-0.5, 3.0]])
    assert np.isnan(m.r2(y[:, 1:], f[:, 1:])).all()
    np.testing.assert_allclose(m.r2(y, f), m.r2(y[:, :1], f[:, :1]), rtol=1e-12)


@pytest.mark.parametrize("measure", [m.r2, m.rmse])
def test_influences_are_what_the_jackknife_finds(valued, measure):
    f, y = valued
    n = len(y)
    without = [measure(np.delete(y, i, axis=0), np.delete(f, i, axis=0)).mean() for i in range(n)]
    jackknife = math.sqrt((n - 1) / n * ((without - np.mean(without)) ** 2).sum())
    assert m.mean(measure(y, f)).std_error == pytest.approx(jackknife, rel=0.05)


def test_one_number_has_no_standard_error():
    assert m.mean(np.array([2.0])).value == 2
    assert math.isnan(m.mean(np.array([2.0])).std_error)
    assert m.mean(np.array([2.0, 2.0])).std_error == 0


def _covers(figures, truth, width=1.96):
    return np.mean([abs(each.value - truth) <= width * each.std_error for each in figures])


def test_paired_intervals_cover_the_difference_and_are_shorter_than_unpaired_ones():
    # the teacher is right with 0.9, the student with 0.89, and both are wrong with 0.08
    rng = np.random.default_rng(0)
    paired, apart = [], []
    for _ in range(1500):
        u = rng.uniform(size=400)
        teacher, student = (u > 0.10).astype(float), ((u > 0.13) | (u < 0.02)).astype(float)
        paired.append(m.mean(student - teacher))
        errors = [m.mean(rows).std_error for rows in (student, teacher)]
        apart.append(np.hypot(*errors))
    assert 0.93 < _covers(paired, -0.01) < 0.97
    assert np.mean([each.std_error for each in paired]) < 0.75 * np.mean(apart)


def test_intervals_of_r2_and_of_its_paired_differences_cover_the_truth():
    rng = np.random.default_rng(1)
    of_one, of_both = [], []
    for _ in range(1000):
        y = rng.normal(size=(300, 1))
        teacher = y + 0.5 * rng.normal(size=y.shape)
        student = teacher + 0.3 * rng.normal(size=y.shape)
        one, two = m.r2(y, student), m.r2(y, teacher)
        of_one.append(m.mean(one))
        of_both.append(m.mean(one - two))
    assert 0.93 < _covers(of_one, 1 - 0.34) < 0.97
    assert 0.93 < _covers(of_both, -0.09) < 0.97


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_measures_rise_or_fall_as_they_are_said_to(task):
    rng = np.random.default_rng(6)
    code = rng.integers(0, 3, 100)
    good = np.eye(3)[code]
    bad = np.roll(good, 1, axis=1)  # at the mean of 0 and 1, all labels are wrong
    near, far = (0.8 * p + 0.1 * np.ones(3) / 3 + 0.1 * good for p in (good, bad))
    better, worse = (m.measure_rows(task, p, good, good) for p in (near, far))
    assert set(better) == {name for name, each in m.MEASURES.items() if task in each.rows}
    assert len(better) >= 5
    for name, rows in better.items():
        assert (rows.mean() > worse[name].mean()) == m.MEASURES[name].rises, name
