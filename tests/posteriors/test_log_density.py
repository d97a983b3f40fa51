r"""How a user's log density is called: refused by name where no way gives the same values."""

import torch

from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Structure
from limbeck.posteriors.log_density import LogDensity
from tests.refusals import refused


def test_values_that_change_from_call_to_call_are_refused():
    structure, rows = Structure(("",), ((2,),)), torch.randn(20, 2).double()
    noisy = lambda x: torch.randn(x.shape[:-1], dtype=torch.float64)  # noqa: E731
    with refused("log_density", "other values for a part of the draws"):
        LogDensity(noisy, structure, Coordinates(structure), rows, torch.float64)
