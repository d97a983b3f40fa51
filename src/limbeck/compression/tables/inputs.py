r"""MUNGE on the columns of a table: what is missing goes with its column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limbeck.compression.tables.columns import Number
from limbeck.core.batch import Batch
from limbeck.inputs.munge import Munge

if TYPE_CHECKING:
    from limbeck.compression.tables.table import Table

__all__ = ["TableMunge"]


class TableMunge(Munge):
    r"""Rows of a table, mixed with their nearest neighbours column by column.

    As `Munge`, but for four things. A number and its mask are replaced together. Between a value
    and a missing one there is no distance, hence no noise: the neighbour's is taken as it is.
    Whole numbers and dates are rounded, as the teacher gets them. Numbers of which there are but
    two, as 0 and 1, are categorical.

    Arguments:
        table: The table.
        parts: The rows, as `table.encode` gives them.
        swap: The probability that a column is replaced.
        local_variance: The divisor of the standard deviation.
        seed: The generator's seed; None takes the seed of the distillation.
    """

    def __init__(
        self,
        table: Table,
        parts: dict[str, Tensor],
        swap: float = 0.5,
        local_variance: float = 1.0,
        seed: int | None = None,
    ) -> None:
        numbers = [column for column in table.varying if isinstance(column, Number)]
        two = [c.key for c in numbers if _distinct(parts, c) <= 2]
        super().__init__(parts, swap, local_variance, two, seed)
        self.table = table
        self.masked = [(c.key, c.mask) for c in numbers if c.mask is not None]

    def draw(self, n: int) -> dict[str, Any]:
        drawn = super().draw(n)
        held = self.data.x
        assert isinstance(held, dict)
        for key, mask in self.masked:
            drawn["swap"][mask] = drawn["swap"][key]
            gone = held[mask][drawn["row"]] | held[mask][drawn["neighbour"]]
            drawn["noise"][key] = torch.where(gone, 0.0, drawn["noise"][key])
        return drawn

    def build(self, drawn: dict[str, Any]) -> Batch:
        x = super().build(drawn).x
        assert isinstance(x, dict)
        return Batch(self.table.rounded(x))


def _distinct(parts: dict[str, Tensor], column: Number) -> int:
    values = parts[column.key]
    return len((values if column.mask is None else values[~parts[column.mask]]).unique())
