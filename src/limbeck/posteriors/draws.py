r"""Stored draws of a posterior, their checks and their diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import number, whole_number
from limbeck.arrays import X
from limbeck.errors import ArgumentError
from limbeck.posteriors.structure import (
    Array,
    Structure,
    as_parts,
    as_tensor,
    common_dtype,
    is_whole,
    part_name,
)
from limbeck.samplers.diagnostics import effective_size, r_hat

__all__ = ["Diagnostics", "Draws", "bad_rows", "check", "spread", "whole_notes"]

LARGE_R_HAT = 1.05
DIAGNOSED_NUMBERS = 10**8  # of more numbers, some coordinates stand for all


class Diagnostics(NamedTuple):
    r"""R̂ and effective sizes, coordinate by coordinate, and reasons to distrust the draws."""

    names: list[str]  # as 'alpha[3]'
    r_hat: Tensor  # of chains cut in halves; NaN where chains are too short
    ess: Tensor  # of all chains together
    reasons: list[str]  # a sentence each

    @property
    def warning(self) -> str | None:
        r"""All reasons as one text, or None."""
        return "posterior: " + "; ".join(self.reasons) if self.reasons else None


class Draws:
    r"""Draws by chain, kept where they came from and converted when they are taken.

    Parts are arrays (chain, draw, ...) by name, or one (chain, draw, dim) under ''. A draw's number
    is that of its chain times `per_chain` plus that within the chain.

    >>> draws = Draws({"alpha": torch.zeros(4, 100, 3), "sigma": torch.ones(4, 100)})
    >>> draws.count, draws.take([0, 399])["alpha"].shape, draws.take(7)["sigma"]
    (400, torch.Size([2, 3]), tensor(1.))
    """

    def __init__(
        self,
        parts: Mapping[str, Array],
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.parts = dict(parts)
        arrays = list(self.parts.values())
        self.structure = Structure.of(self.parts, leading=2)
        self.chains, self.per_chain = map(int, arrays[0].shape[:2])
        self.count = self.chains * self.per_chain
        self.dtype = dtype or common_dtype(arrays)
        places = (array.device for array in arrays if isinstance(array, Tensor))
        self.device = device or next(places, torch.device("cpu"))
        self.notes = tuple(notes)

    @classmethod
    def one_chain(cls, draws: X) -> Draws:
        r"""Draws (n, ...) as they were taken, as one chain."""
        return cls({name: part[None] for name, part in as_parts(draws).items()})

    def __len__(self) -> int:
        return self.count

    def take(self, index: int | Sequence[int] | np.ndarray | Tensor) -> X:
        r"""Draws by number, in the structure: (m, ...) each, or one draw for a single number."""
        index = torch.as_tensor(index)
        if index.is_floating_point() and index.numel():
            raise ArgumentError("index", f"numbers of {index.dtype}", "whole numbers, or booleans")
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index.long()
        places = index // self.per_chain, index % self.per_chain
        rows: dict[str, Array] = {}
        for name, part in self.parts.items():
            if isinstance(part, Tensor):
                rows[name] = part[tuple(place.to(part.device) for place in places)]
            else:
                rows[name] = np.asarray(part[tuple(place.cpu().numpy() for place in places)])
        return self.structure.pack(
            {name: as_tensor(part, self.dtype, self.device) for name, part in rows.items()}
        )

    def blocks(self, size: int) -> Iterator[X]:
        r"""All draws in order, at most so many at once."""
        size = whole_number("size", size, "a whole number from 1", least=1)
        for start in range(0, self.count, size):
            yield self.take(torch.arange(start, min(start + size, self.count)))

    def series(self, index: int) -> Tensor:
        r"""One number of all draws, (chains, per_chain)."""
        name, place = self.structure.place(index)
        at: Any = (slice(None), slice(None), *place)
        return as_tensor(self.parts[name][at], self.dtype, self.device)

    @property
    def flat(self) -> Tensor:
        r"""All draws as rows of numbers, (count, dim): a view of a single variable, if possible."""
        rows = [
            as_tensor(part, self.dtype, self.device).reshape(self.count, size)
            for part, size in zip(self.parts.values(), self.structure.sizes, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def split(self, fraction: float = 0.5) -> tuple[Draws, Draws]:
        r"""The first part of every chain, and the rest; chains of one draw are divided as such."""
        share = number("fraction", fraction, "a number between 0 and 1", lambda f: 0 < f < 1)
        in_time = self.per_chain > 1
        whole = self.per_chain if in_time else self.chains
        if whole < 2:
            raise ArgumentError("fraction", f"{fraction} of a single draw", "two draws or more")
        cut = max(1, min(round(share * whole), whole - 1))

        def between(start: int | None, stop: int | None) -> Draws:
            cuts = (slice(None), slice(start, stop)) if in_time else (slice(start, stop),)
            parts = {name: part[cuts] for name, part in self.parts.items()}
            return Draws(parts, self.dtype, self.device, self.notes)

        return between(None, cut), between(cut, None)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Draws:
        r"""The same draws in memory, on a device and of a floating type."""
        device, dtype = torch.device(device or self.device), dtype or self.dtype
        parts = {name: as_tensor(part, dtype, device) for name, part in self.parts.items()}
        return Draws(parts, dtype, device, self.notes)

    def diagnostics(self, most: int = 1000) -> Diagnostics:
        r"""R̂ and effective sizes of at most so many coordinates, evenly spread."""
        most = whole_number("most", most, "a whole number from 1", least=1)
        affordable = max(1, DIAGNOSED_NUMBERS // self.count)
        coordinates = spread(self.structure.dim, min(most, affordable))
        names = [self.structure.label(index) for index in coordinates]
        r_hats, sizes = torch.empty(2, len(names), dtype=torch.float64)
        stuck: dict[int, str] = {}  # chains that never moved where others did, with the coordinate
        for place, index in enumerate(coordinates):
            series = self.series(index)
            r_hats[place], sizes[place] = r_hat(series), effective_size(series)
            still = (series == series[:, :1]).all(1)
            whole = is_whole(self.parts[self.structure.place(index)[0]])
            if not whole and self.per_chain >= 4 and not still.all():
                stuck = dict.fromkeys(still.nonzero()[:, 0].tolist(), names[place]) | stuck
        reasons = []
        if stuck:
            shown = ", ".join(map(str, sorted(stuck)[:5])) + (", …" if len(stuck) > 5 else "")
            reasons.append(
                f"{len(stuck)} of {self.chains} chains are stuck (all draws of "
                f"{stuck[min(stuck)]} are the same there): {shown}"
            )
        if (r_hats > LARGE_R_HAT).any():
            worst = int(r_hats.nan_to_num(0.0).argmax())
            reasons.append(
                f"R̂ of {names[worst]} is {float(r_hats[worst]):.3g} (above {LARGE_R_HAT:g} for "
                f"{int((r_hats > LARGE_R_HAT).sum())} of {len(names)}): the chains disagree, or "
                "are too short to tell"
            )
        return Diagnostics(names, r_hats, sizes, reasons)

    def __repr__(self) -> str:
        return f"Draws({self.chains:,} chains of {self.per_chain:,}: {self.structure})"


def spread(dim: int, most: int) -> list[int]:
    r"""At most so many of `dim` coordinates, evenly spread.

    >>> spread(3, 5), spread(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    count = max(1, min(dim, most))
    step = (dim - 1) / max(1, count - 1)
    return [round(place * step) for place in range(count)]


def check(draws: Draws, burn_in: int = 0) -> Draws:
    r"""The same draws, unless they are too few or not finite."""
    if draws.structure.dim == 0:
        raise ArgumentError("posterior", f"draws of no numbers: {draws.structure}", "numbers")
    if draws.count == 0:
        after = f" after burn_in={burn_in}" if burn_in else ""
        raise ArgumentError("posterior", f"no draws{after}", "two draws or more")
    if draws.count == 1:
        expected = "two or more: a posterior of one draw has nothing to condense"
        raise ArgumentError("posterior", "a single draw", expected)
    blocks = draws.blocks(max(1, 2**20 // draws.structure.dim))  # of about a million numbers
    masks = [bad_rows(as_parts(block)) for block in blocks]
    for name in draws.parts:
        bad = torch.cat([mask[name] for mask in masks])
        if not bad.any():
            continue
        first, count = int(bad.nonzero()[0]), int(bad.sum())
        kind, expected = "NaN or infinite numbers", "finite draws"
        original = Draws({name: draws.parts[name]}, torch.float64).take([first])
        if as_parts(original)[name].isfinite().all():
            kind, expected = f"numbers beyond {draws.dtype}", "another dtype"
        expected += f"; var_names=['~{name}'] leaves the variable out" if name else ""
        chain, draw = divmod(first, draws.per_chain)
        received = (
            f"{kind} in {count:,} of {draws.count:,} draws, the first is {draw} of chain {chain}"
        )
        raise ArgumentError(part_name(name), received, expected)
    return draws


def bad_rows(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Of each variable (m, ...), which of the m draws are not finite, on the CPU."""
    return {
        name: (~part.isfinite()).reshape(len(part), part[0].numel()).any(1).cpu()
        for name, part in parts.items()
    }


def whole_notes(parts: Mapping[str, Array], dtype: torch.dtype) -> list[str]:
    r"""Notes about variables of whole numbers."""
    whole = [name or "the posterior" for name, array in parts.items() if is_whole(array)]
    kind = str(dtype).removeprefix("torch.")
    return [f"{name} is of whole numbers, which become {kind}" for name in whole]
