r"""What is looked at of draws, and what is said of them."""

import pytest
import torch

from limbeck.posteriors import diagnostics
from limbeck.posteriors.diagnostics import diagnose
from limbeck.posteriors.draws import Draws
from limbeck.samplers.diagnostics import effective_size, r_hat

CHAINS, LENGTH, DIM = 4, 25, 30
X = torch.randn(
    CHAINS, LENGTH, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)


def test_each_coordinate_has_the_figures_of_its_own_series():
    found = diagnose(Draws({"": X}), DIM)
    assert found.r_hat.tolist() == pytest.approx([r_hat(X[:, :, i]) for i in range(DIM)])
    assert found.ess.tolist() == pytest.approx([effective_size(X[:, :, i]) for i in range(DIM)])


def test_of_more_numbers_than_can_be_looked_at_some_coordinates_stand_for_all(monkeypatch):
    monkeypatch.setattr(diagnostics, "NUMBERS", 4 * CHAINS * LENGTH)
    found = diagnose(Draws({"": X}), DIM)
    places = diagnostics.spread(DIM, 4)
    assert found.r_hat.tolist() == pytest.approx([r_hat(X[:, :, i]) for i in places])
    assert len(found.names) == 4
    assert len(diagnose(Draws({"": X}), 3).names) == 3


def test_the_worst_coordinate_is_named_and_all_bad_ones_are_counted():
    apart = X.clone()
    apart[0, :, 7] += 2
    apart[0, :, 19] += 9
    apart[:, :, 11] = 0.5  # never moves, in no chain: nothing is stuck
    (reason,) = diagnose(Draws({"": apart}), DIM).reasons
    bad = sum(r_hat(apart[:, :, i]) > diagnostics.LARGE for i in range(DIM))
    assert "[19] is" in reason
    assert f"for {bad} of {DIM})" in reason
