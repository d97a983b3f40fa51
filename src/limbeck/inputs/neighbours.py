r"""The nearest other row of each row of a table, found block by block."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["nearest", "widest_float"]


def nearest(parts: dict[str, Tensor], categorical: dict[str, Tensor], block: int = 2**24) -> Tensor:
    r"""The number (N,) of the row nearest to each row, other than itself.

    The squared distance is the sum, over continuous attributes, of the squared difference as a
    fraction of the attribute's range, plus the number of categorical attributes that differ.
    Time is quadratic in N; memory holds `block` distances at once.

    Arguments:
        parts: Arrays (N, ...) by name, N > 1.
        categorical: For each of them which attributes (...) are categorical.
        block: How many distances are held in memory.

    >>> nearest({"": torch.tensor([[0.0], [3.0], [1.0]])}, {"": torch.tensor([False])}).tolist()
    [2, 2, 0]
    """
    points, codes = _coordinates(parts, categorical)  # (N, d), and columns (N,)
    rows = len(points)
    squares = points.square().sum(1)
    step = max(1, block // rows)
    found = []
    for start in range(0, rows, step):
        own = slice(start, min(start + step, rows))
        # (block, N), less each row's own square, which is the same for all of its candidates
        distance = torch.addmm(squares, points[own], points.T, alpha=-2)
        for code in codes:
            distance += code[own, None] != code
        distance.diagonal(start).fill_(torch.inf)
        found.append(distance.argmin(1))
    return torch.cat(found)


def _coordinates(
    parts: dict[str, Tensor], categorical: dict[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    r"""Columns whose squared differences add up, and categorical columns that must be compared."""
    points, codes = [], []
    for name, part in parts.items():
        columns = part.reshape(len(part), -1)
        columns = columns.to(widest_float(part.device) if part.is_floating_point() else torch.int64)
        low, high = columns.amin(0), columns.amax(0)
        kinds = categorical[name].reshape(-1)
        # Two categories are 0 and 1: their squared difference is one just if they differ.
        simple = ~kinds | ((columns == low) | (columns == high)).all(0)
        extent = torch.where(high > low, high - low, 1)
        scaled = (columns - low)[:, simple] / extent[simple]
        points.append(scaled.to(widest_float(part.device)) - 0.5)
        codes += [column.contiguous() for column in columns[:, ~simple].unbind(1)]
    return torch.cat(points, 1), codes


def widest_float(device: torch.device) -> torch.dtype:
    r"""The most precise floating type that a device computes with."""
    return torch.float32 if device.type == "mps" else torch.float64
