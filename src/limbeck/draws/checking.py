r"""What cannot be a posterior: nothing, one draw, numbers that are none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limbeck.draws.arrays import Array, is_whole, part_name
from limbeck.draws.stored import Draws
from limbeck.draws.structure import as_parts
from limbeck.errors import ArgumentError

__all__ = ["bad_rows", "check", "whole_notes"]

AT_ONCE = 2**20
r"""About how many numbers are looked at together."""


def check(draws: Draws, burn_in: int = 0) -> Draws:
    r"""The same draws, unless they are too few or not finite."""
    if draws.structure.dim == 0:
        raise ArgumentError("posterior", f"draws of no numbers: {draws.structure}", "numbers")
    if draws.count == 0:
        after = f" after burn_in={burn_in}" if burn_in else ""
        raise ArgumentError("posterior", f"no draws{after}", "two draws or more")
    if draws.count == 1:
        accepted = "two or more: a posterior of one draw has nothing to condense"
        raise ArgumentError("posterior", "a single draw", accepted)
    _check_finite(draws)
    return draws


def bad_rows(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Of each variable (m, ...), which of the m draws are not finite, on the CPU."""
    return {
        name: (~part.isfinite()).reshape(len(part), part[0].numel()).any(1).cpu()
        for name, part in parts.items()
    }


def whole_notes(parts: Mapping[str, Array], dtype: torch.dtype) -> list[str]:
    r"""What to tell about variables of whole numbers."""
    whole = [name or "the posterior" for name, array in parts.items() if is_whole(array)]
    kind = str(dtype).removeprefix("torch.")
    return [f"{name} is of whole numbers, which become {kind}" for name in whole]


def _check_finite(draws: Draws) -> None:
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    size = max(1, AT_ONCE // draws.structure.dim)
    for block, draw in zip(draws.blocks(size), range(0, draws.count, size), strict=True):
        for name, bad in bad_rows(as_parts(block)).items():
            if bad.any():
                first.setdefault(name, draw + int(bad.nonzero()[0]))
                counts[name] = counts.get(name, 0) + int(bad.sum())
    for name, count in counts.items():
        kind, accepted = "NaN or infinite numbers", "finite draws"
        as_it_came = Draws({name: draws.parts[name]}, torch.float64).take([first[name]])
        if as_parts(as_it_came)[name].isfinite().all():
            kind, accepted = f"numbers beyond {draws.dtype}", "another dtype"
        accepted += f"; var_names=['~{name}'] leaves the variable out" if name else ""
        chain, draw = divmod(first[name], draws.per_chain)
        received = (
            f"{kind} in {count:,} of {draws.count:,} draws, the first is {draw} of chain {chain}"
        )
        raise ArgumentError(part_name(name), received, accepted)
