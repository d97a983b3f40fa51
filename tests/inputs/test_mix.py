r"""Mixtures of sources."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from limbeck.arrays import Batch
from limbeck.inputs import Dataset, Function, Mix, Noise, Seek
from tests.refusals import refused


def constants(weights, seed=0):
    r"""A mixture in which each row says which source it came from."""
    sources = [
        Function(lambda n, k=k: torch.full((n,), k, dtype=torch.int64)) for k in range(len(weights))
    ]
    return Mix(sources, weights, seed=seed)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(0, 2**20),
)
def test_proportions_never_leave_their_shares(weights, sizes, seed):
    assume(sum(weights) > 1e-3)
    source = constants(weights, seed)
    share = np.array(weights) / sum(weights)
    total = np.zeros(len(weights))
    for n in sizes:
        x = source(n).x
        assert len(x) == n
        total += np.bincount(x.numpy(), minlength=len(weights))
        assert (abs(total - share * total.sum()) < len(weights)).all()
        assert (total[share == 0] == 0).all()


def test_long_runs_are_exact():
    source = constants([0.5, 0.3, 0.2])
    total = sum(source(7).x.bincount(minlength=3) for _ in range(500))
    np.testing.assert_allclose(total / 3500, [0.5, 0.3, 0.2], atol=2 / 3500)


def test_counts_of_one_batch_have_the_right_expectation():
    counts = torch.stack(
        [constants([0.55, 0.15, 0.3], seed)(3).x.bincount(minlength=3) for seed in range(1500)]
    ).double()
    torch.testing.assert_close(
        counts.mean(0), torch.tensor([1.65, 0.45, 0.9], dtype=torch.float64), rtol=0, atol=0.04
    )


def test_labels_only_if_all_have_them_and_weights_if_any_has():
    x, y = torch.zeros(10, 2), torch.ones(10, dtype=torch.int64)
    assert (Mix([Dataset(x, y), Dataset(x, y)])(6).y == 1).all()
    batch = Mix([Dataset(x, y, weight=np.full(10, 3.0)), Dataset(x)])(6)
    assert batch.y is None
    assert batch.index is None
    assert batch.weight.sort().values.tolist() == [1, 1, 1, 3, 3, 3]


def test_fields_do_not_depend_on_which_sources_came_up():
    x, y = torch.zeros(50, 2), torch.zeros(50)
    source = Mix([Dataset(x, y), Dataset(x, weight=np.ones(50))], weights=[0.98, 0.02])
    for batch in (source(2) for _ in range(60)):
        assert batch.y is None
        assert batch.weight is not None


def test_a_probe_knows_that_seekers_have_weights():
    source = Mix([Noise(1), Seek(Noise(1))])
    source.probe(4)
    source.bind(lambda batch: batch.x[:, 0].square())
    weight = source(8).weight
    assert (weight[:4] == 1).all()
    assert (weight[4:] != 1).any()


@pytest.mark.parametrize(
    ("sources", "weights", "argument", "received", "expected"),
    [
        ([], None, "sources", r"^\[\]$", ""),
        (Noise(2), None, "sources", "an object of type Noise", ""),
        ([Noise(2), 3], None, "sources[1]", "^a int$", ""),
        ([Noise(2), torch.full((2, 2), torch.nan)], None, "sources[1]", "^4 NaN", ""),
        ([Noise(2), Noise(2)], [1], "weights", r"^\[1\]$", "2 nonnegative numbers"),
        ([Noise(2), Noise(2)], [1, -1], "weights", "^-1$", "2 nonnegative"),
        ([Noise(2), Noise(2)], [0, 0], "weights", r"^\[0, 0\]$", ""),
        ([Noise(2), Noise(2)], [1, float("nan")], "weights", "^nan$", ""),
    ],
)
def test_bad_arguments_are_refused(sources, weights, argument, received, expected):
    with refused(argument, received, expected=expected):
        Mix(sources, weights)


@pytest.mark.parametrize(
    ("other", "received"),
    [
        (Noise(3), r"sources\[0\] of \(n, 2\) float32 and sources\[1\] of \(n, 3\) float32"),
        ({"a": torch.zeros(5, 2)}, r"sources\[1\] of \{a: \(n, 2\) float32\}"),
        (torch.zeros(5, 2, dtype=torch.int64), r"sources\[1\] of \(n, 2\) int64"),
    ],
)
def test_sources_of_different_kinds_are_refused(other, received):
    for weights in ([1, 1], [1, 0]):
        with refused("sources", received):
            Mix([Noise(2), other], weights)(4)


def test_labels_of_different_kinds_are_refused():
    def labelled(y):
        return Function(lambda n: Batch(torch.zeros(n), y.expand(n)))

    with refused("sources", r"labels of sources\[1\] of \(n\) float32"):
        Mix([labelled(torch.tensor(1)), labelled(torch.tensor(1.0))])(4)
