r"""Whether draws are the target's: test functions whose means must agree."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from limbeck.normalization.densities import Densities

VARIABLES, SUMS = 32, 16  # test functions: variables, and sums of all of them with random signs
LIMIT = 5.0  # a z-score that chance gives in 1 of 10⁴ checks, of a hundred test functions each
MAX_DRAWS = 20_000  # that test functions are evaluated at


@torch.no_grad()
def function_values(densities: Densities, reference: Tensor, *events: Tensor) -> Iterator[Tensor]:
    r"""Bounded functions (n, k) of events: log p̃, some variables, sums of variables, and squares.

    Values are cut at the 0.5% quantiles of a reference, so that tails do not decide.
    """
    size = densities.support.size
    device = reference.device
    signs = torch.randint(2, (size, SUMS), generator=densities.generator("signs"), device=device)
    signs = torch.cat([torch.ones_like(signs[:, :1]), 2 * signs - 1], 1).double()

    def raw(x: Tensor) -> Tensor:
        rows = x.flatten(1).double()
        some = rows[:, :: math.ceil(size / VARIABLES)]
        return torch.cat([densities.log_target(x)[:, None], rows @ signs, some], 1)

    known = raw(reference[:MAX_DRAWS])
    known = torch.where(known.isfinite(), known, known[known.isfinite()].mean())
    low, high = known.quantile(known.new_tensor([0.005, 0.995]), dim=0)
    centre = known.median(0).values
    for x in events:
        values = raw(x).nan_to_num(0.0, math.inf, -math.inf).clamp(low, high)
        squares = (values - centre)[:, : SUMS + 2].square()
        yield torch.cat([values, squares], 1)


def function_name(number: int, size: int) -> str:
    r"""What a test function is, for messages."""
    step = math.ceil(size / VARIABLES)
    count = 2 + SUMS + math.ceil(size / step)
    if number >= count:
        return f"the square of {function_name(number - count, size)}"
    if number == 0:
        return "log p̃"
    if number < 2 + SUMS:
        return "a sum of all variables" + " with random signs" * (number > 1)
    return f"variable {(number - 2 - SUMS) * step}"
