r"""Stored draws of a posterior, in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.core.batch import X
from limbeck.core.checks import number, whole_number
from limbeck.draws.arrays import Array, as_tensor, common_dtype
from limbeck.draws.diagnostics import Diagnostics, diagnose
from limbeck.draws.structure import Structure
from limbeck.errors import ArgumentError

__all__ = ["Draws"]


class Draws:
    r"""Draws by chain, kept where they came from and converted when they are taken.

    A draw's number is that of its chain times `per_chain` plus that within the chain.

    Arguments:
        parts: Arrays (chain, draw, ...) by name, or one (chain, draw, dim) under ''.
        dtype: The floating type of what is taken; None is the widest that the parts have.
        device: Where it is taken to; None is where the parts are.
        notes: What a reader has to tell the user.

    Attributes:
        structure: What one draw looks like.
        chains: How many chains there are.
        per_chain: Draws of each chain.
        count: All draws.

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

    def __len__(self) -> int:
        return self.count

    def take(self, index: Any) -> X:
        r"""Draws by number, in the structure: (m, ...) each, or one draw for a single number."""
        index = torch.as_tensor(index)
        if index.is_floating_point() and index.numel():
            raise ArgumentError("index", f"numbers of {index.dtype}", "whole numbers, or booleans")
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index.long()
        chain, draw = index // self.per_chain, index % self.per_chain
        found = {}
        for name, part in self.parts.items():
            if isinstance(part, Tensor):
                rows: Array = part[chain.to(part.device), draw.to(part.device)]
            else:
                rows = np.asarray(part[chain.cpu().numpy(), draw.cpu().numpy()])
            found[name] = as_tensor(rows, self.dtype, self.device)
        return self.structure.pack(found)

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
        r"""All draws as rows of numbers, (count, dim).

        It is a view where there is one variable, whose chains follow each other in memory that
        torch can use; else it is a copy, each time.
        """
        rows = [
            as_tensor(part, self.dtype, self.device).reshape(self.count, size)
            for part, size in zip(self.parts.values(), self.structure.sizes, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def split(self, fraction: float = 0.5) -> tuple[Draws, Draws]:
        r"""The first part of every chain, and the rest: neighbours in time stay together.

        Chains of a single draw are divided as they are.

        Arguments:
            fraction: The share of the first part; both have at least one draw of each chain.
        """
        share = number("fraction", fraction, "a number between 0 and 1", lambda f: 0 < f < 1)
        in_time = self.per_chain > 1
        whole = self.per_chain if in_time else self.chains
        if whole < 2:
            raise ArgumentError("fraction", f"{fraction} of a single draw", "two draws or more")
        cut = max(1, min(round(share * whole), whole - 1))
        both = {
            name: (part[:, :cut], part[:, cut:]) if in_time else (part[:cut], part[cut:])
            for name, part in self.parts.items()
        }
        first, second = ({name: pair[k] for name, pair in both.items()} for k in (0, 1))
        kept = (self.dtype, self.device, self.notes)
        return Draws(first, *kept), Draws(second, *kept)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Draws:
        r"""The same draws in memory, on a device and of a floating type."""
        device, dtype = torch.device(device or self.device), dtype or self.dtype
        parts = {name: as_tensor(part, dtype, device) for name, part in self.parts.items()}
        return Draws(parts, dtype, device, self.notes)

    def diagnostics(self, most: int = 1000) -> Diagnostics:
        r"""R̂ and effective sizes, and what there is to distrust.

        Arguments:
            most: How many coordinates to look at; of more, these are evenly spread.
        """
        return diagnose(self, whole_number("most", most, "a whole number from 1", least=1))

    def __repr__(self) -> str:
        return f"Draws({self.chains:,} chains of {self.per_chain:,}: {self.structure})"
