r"""Shuffled passes over rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from limbeck.errors import CheckpointError
from limbeck.inputs.dataset import Epochs


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0))
def test_every_pass_is_a_permutation(rows, sizes, seed):
    generator = torch.Generator().manual_seed(seed % 2**32)
    epochs = Epochs(rows)
    drawn = torch.cat([epochs.draw(n, generator) for n in sizes])
    assert len(drawn) == sum(sizes)
    for part in drawn.split(rows):
        assert len(part.unique()) == len(part)
        assert part.min() >= 0
        assert part.max() < rows


def test_orders_are_uniform():
    generator = torch.Generator().manual_seed(0)
    orders = Epochs(3).draw(3 * 6000, generator).reshape(-1, 3)
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_a_state_of_another_data_set_is_refused():
    epochs = Epochs(5)
    epochs.draw(2, torch.Generator())
    with pytest.raises(CheckpointError, match="5 rows, not 6"):
        Epochs(6).load_state_dict(epochs.state_dict(), torch.device("cpu"))
