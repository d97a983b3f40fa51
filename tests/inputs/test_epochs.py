r"""Shuffled passes over rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from limbeck.errors import CheckpointError
from limbeck.inputs import Dataset
from tests.refusals import raises_about


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0))
def test_every_pass_is_a_permutation(rows, sizes, seed):
    dataset = Dataset(torch.zeros(rows), seed=seed % 2**32)
    drawn = torch.cat([dataset.next_rows(n) for n in sizes])
    assert len(drawn) == sum(sizes)
    for part in drawn.split(rows):
        assert len(part.unique()) == len(part)
        assert part.min() >= 0
        assert part.max() < rows


def test_orders_are_uniform():
    orders = Dataset(torch.zeros(3)).next_rows(3 * 6000).reshape(-1, 3)
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_a_state_of_another_data_set_is_refused():
    dataset = Dataset(torch.zeros(5))
    dataset.next_rows(2)
    with raises_about(CheckpointError, "5 rows", "6"):
        Dataset(torch.zeros(6)).load_state_dict(dataset.state_dict())
