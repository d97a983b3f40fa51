r"""What is looked at of draws, and what is said of them."""

import pytest
import torch

from limbeck.posteriors import draws as stored
from limbeck.posteriors.draws import Draws
from limbeck.samplers.diagnostics import LARGE_R_HAT, effective_size, r_hat

CHAINS, LENGTH, DIM = 4, 25, 30
X = torch.randn(
    CHAINS, LENGTH, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)


def test_each_coordinate_has_the_figures_of_its_own_series():
    found = Draws({"": X}).diagnostics(DIM)
    assert found.r_hat.tolist() == pytest.approx([r_hat(X[:, :, i]) for i in range(DIM)])
    assert found.ess.tolist() == pytest.approx([effective_size(X[:, :, i]) for i in range(DIM)])


def test_of_more_numbers_than_can_be_looked_at_some_coordinates_stand_for_all(monkeypatch):
    monkeypatch.setattr(stored, "DIAGNOSED_NUMBERS", 4 * CHAINS * LENGTH)
    found = Draws({"": X}).diagnostics(DIM)
    places = stored.spread(DIM, 4)
    assert found.r_hat.tolist() == pytest.approx([r_hat(X[:, :, i]) for i in places])
    assert len(found.names) == 4
    assert len(Draws({"": X}).diagnostics(3).names) == 3


def test_the_worst_coordinate_is_named_and_all_bad_ones_are_counted():
    apart = X.clone()
    apart[0, :, 7] += 2
    apart[0, :, 19] += 9
    apart[:, :, 11] = 0.5  # never moves, in no chain: nothing is stuck
    (reason,) = Draws({"": apart}).diagnostics(DIM).reasons
    bad = sum(r_hat(apart[:, :, i]) > LARGE_R_HAT for i in range(DIM))
    assert "[19] is" in reason
    assert f"for {bad} of {DIM})" in reason
