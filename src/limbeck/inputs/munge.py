r"""MUNGE: synthetic inputs from a data set and its nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import choice, number
from limbeck.arrays import Batch, X, as_dict
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Nested
from limbeck.inputs.dataset import Dataset


def nearest(parts: dict[str, Tensor], categorical: dict[str, Tensor], block: int = 2**24) -> Tensor:
    r"""The number (N,) of the row nearest to each row, other than itself.

    The squared distance is the sum, over continuous attributes, of the squared difference as a
    fraction of the attribute's range, plus the number of categorical attributes that differ.
    Parts are arrays (N, ...); `block` distances are in memory at once.
    """
    coordinates = []  # columns whose squared differences add up
    codes = []  # categorical columns (N,) that must be compared
    for name, part in parts.items():
        wide = widest_float(part.device)
        columns = part.reshape(len(part), -1).to(wide if part.is_floating_point() else torch.int64)
        low, high = columns.amin(0), columns.amax(0)
        # Two categories are 0 and 1: their squared difference is one if they differ.
        simple = ~categorical[name].reshape(-1) | ((columns == low) | (columns == high)).all(0)
        extent = torch.where(high > low, high - low, 1)
        coordinates.append(((columns - low)[:, simple] / extent[simple]).to(wide) - 0.5)
        codes += [column.contiguous() for column in columns[:, ~simple].unbind(1)]
    points = torch.cat(coordinates, 1)
    rows, squares = len(points), points.square().sum(1)
    step = max(1, block // rows)
    neighbours = []
    for start in range(0, rows, step):
        block_rows = slice(start, start + step)
        # (block, N), less each row's own square, which is the same for all of its candidates
        distance = torch.addmm(squares, points[block_rows], points.T, alpha=-2)
        for code in codes:
            distance += code[block_rows, None] != code
        distance.diagonal(start).fill_(torch.inf)
        neighbours.append(distance.argmin(1))
    return torch.cat(neighbours)


def widest_float(device: torch.device) -> torch.dtype:
    r"""The most precise floating type that a device computes with."""
    return torch.float32 if device.type == "mps" else torch.float64


class Munge(Nested):
    r"""Rows of a data set, mixed with their nearest neighbours attribute by attribute.

    A batch starts from rows e of the data, drawn in shuffled passes; e′ is the row nearest to e
    (see `nearest` for the distance). Each attribute a of each row is replaced with probability
    `swap`, independently: a continuous one by a draw from N(e′_a, (|e_a − e′_a| / s)²), where s is
    `local_variance`; a categorical one by e′_a. Unlike in Bucila, Caruana and Niculescu-Mizil
    (2006), neighbours are found once, and every draw starts from the data.

    Integer and boolean parts are categorical. The batches have no labels and no index.

    Arguments:
        X: The data, anything that Dataset takes, with two rows or more.
        swap: The probability that an attribute is replaced. Default: 0.5.
        local_variance: The divisor s of the standard deviation. Default: 1.
        categorical: Further categorical attributes, in floating-point parts: column numbers of a
            tensor (N, columns), or names of parts of a dict. Default: none.
        seed: The generator's seed. Default: the seed of the distillation.

    >>> Munge([[0.0, 5.0], [1.0, 7.0], [2.0, 5.0]], categorical=[1])(10).x.shape
    torch.Size([10, 2])
    """

    def __init__(
        self,
        X: Any,
        swap: float = 0.5,
        local_variance: float = 1.0,
        categorical: Iterable[int | str] = (),
        seed: int | None = None,
    ) -> None:
        self.data = Dataset(X)
        super().__init__([self.data], seed)
        if len(self.data) < 2:
            raise ArgumentError("X", "1 row", "two rows or more, or there are no neighbours")
        self.swap = number("swap", swap, "a probability", lambda p: 0 <= p <= 1)
        expected = "a finite number above zero"
        self.local_variance = number("local_variance", local_variance, expected, lambda s: s > 0)
        self.categorical = _categorical(self.data.x, categorical)
        self.neighbours: Tensor | None = None

    def draw(self, n: int) -> dict[str, Any]:
        if self.neighbours is None:
            self.neighbours = nearest(as_dict(self.data.x), self.categorical)
        row = self.data.next_rows(n)
        swap, noise = {}, {}
        for name, part in as_dict(self.data.x).items():
            shape = (n, *part.shape[1:])
            chance = torch.rand(shape, generator=self.generator, device=self.device)
            swap[name] = chance < self.swap
            if part.is_floating_point():
                noise[name] = torch.empty_like(chance, dtype=part.dtype)
                noise[name].normal_(generator=self.generator)
        neighbour = self.neighbours.index_select(0, row)
        return {"row": row, "neighbour": neighbour, "swap": swap, "noise": noise}

    def build(self, drawn: dict[str, Any]) -> Batch:
        result = {}
        for name, part in as_dict(self.data.x).items():
            row = part.index_select(0, drawn["row"])
            new = neighbour = part.index_select(0, drawn["neighbour"])
            if name in drawn["noise"]:
                deviation = (row - neighbour).abs() / self.local_variance
                deviation = torch.where(self.categorical[name], 0, deviation)
                new = neighbour + drawn["noise"][name] * deviation
            result[name] = torch.where(drawn["swap"][name], new, row)
        return Batch(result.get("", result))

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self.categorical = {name: mask.to(device) for name, mask in self.categorical.items()}
        self.neighbours = None if self.neighbours is None else self.neighbours.to(device)


def _categorical(x: X, named: Iterable[int | str]) -> dict[str, Tensor]:
    r"""Which attributes (...) of each part are categorical."""
    masks = {
        name: torch.full(part.shape[1:], not part.is_floating_point(), device=part.device)
        for name, part in as_dict(x).items()
    }
    for which in (named,) if isinstance(named, str) else named:
        if isinstance(x, dict):
            choice("categorical", which, x)
            masks[str(which)][...] = True
            continue
        columns = x.shape[1] if x.ndim == 2 else int(x.ndim == 1)
        if isinstance(which, str | bool) or not hasattr(which, "__index__") or not columns:
            received = f"{which!r} for X of shape {tuple(x.shape)}"
            expected = "column numbers of X of shape (N, columns), or names of the parts of a dict"
            raise ArgumentError("categorical", received, expected)
        if not -columns <= which < columns:
            raise ArgumentError("categorical", which, f"column numbers below {columns}")
        masks[""].view(-1)[which] = True
    return masks
