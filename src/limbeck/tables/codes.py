r"""Whole numbers that look like codes: what the teacher says jumps up and down along them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from limbeck.tables.columns import Number

__all__ = ["code_like", "code_note"]

MIN_VALUES, MIN_ROWS = 4, 5
r"""Different values that a column of codes has at least, and rows with each of them."""

ROWS_PER_VALUE = 10
r"""Rows for each value on average: counts and amounts mostly have fewer."""

MOST_COLUMNS = 100
r"""Columns of whole numbers above which none is named: such tables hold pixels or counts."""

NOISE, STEEP = 3.0, 0.15
r"""What counts as a jump: so many standard errors, and such a share of the whole range."""

TURNS_PER_VALUE = 0.2
r"""Turns up or down for each value, from which there is no order; by chance there are 0.67."""

NAMED = 3
r"""Columns that the note names."""


def code_note(table: Any, x: dict[str, Tensor], targets: np.ndarray) -> str | None:
    r"""The sentence for a user whose columns look like codes; None if no column does."""
    names = code_like(table, x, targets)
    if not names:
        return None
    some = ", ".join(map(repr, names[:NAMED]))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    which = "columns" if len(names) > 1 else "column"
    they = "they look like codes, but are" if len(names) > 1 else "it looks like a code, but is"
    return (
        f"Note: {which} {some}{more}: {they} taken as continuous numbers; "
        f"table=limbeck.Table(X, categories={names[:NAMED]}) takes them as categories."
    )


def code_like(table: Any, x: dict[str, Tensor], targets: np.ndarray) -> list[Any]:
    r"""Names of the columns of whole numbers that look like codes.

    They have few different values for the number of rows, and no order shows: from one value to the
    next, the mean of the teacher's answers goes up and down, and not by chance.

    Arguments:
        table: The table.
        x: Its rows, as tensors.
        targets: What the teacher says of them, (n, K).
    """
    whole = [c for c in table.varying if isinstance(c, Number) and c.counts]
    if len(whole) > MOST_COLUMNS:
        return []
    return [column.name for column in whole if _is_code(column, x, targets)]


def _is_code(column: Number, x: dict[str, Tensor], targets: np.ndarray) -> bool:
    values, y = x[column.key].numpy(), targets
    if column.mask is not None:
        there = ~x[column.mask].numpy()
        values, y = values[there], y[there]
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    common = np.flatnonzero(count >= MIN_ROWS)
    rows = int(count[common].sum())
    few = MIN_VALUES <= len(common) <= rows / ROWS_PER_VALUE
    if not few or rows < 0.9 * len(values):  # a tail of rare values is one of amounts
        return False
    count = count[common]
    sums = np.stack([np.bincount(place, column)[common] for column in y.T], 1)
    squares = np.stack([np.bincount(place, column**2)[common] for column in y.T], 1)
    mean = sums / count[:, None]  # (values, K)
    error = np.sqrt(np.maximum(squares / count[:, None] - mean**2, 0) / count[:, None])
    output = int((mean.std(0) / np.maximum(y.std(0), np.finfo(float).tiny)).argmax())
    turns = _turns(mean[:, output], error[:, output])
    return turns >= max(2, TURNS_PER_VALUE * len(common))


def _turns(mean: np.ndarray, error: np.ndarray) -> int:
    r"""How often a curve turns up or down, smaller changes left out."""
    steep = STEEP * float(mean.max() - mean.min())
    turns, direction, last = 0, 0, 0
    for k in range(1, len(mean)):
        change = mean[k] - mean[last]
        sign = 1 if change > 0 else -1
        if sign == direction:  # farther the same way
            last = k
        elif abs(change) > max(steep, NOISE * np.hypot(error[k], error[last])):
            turns += direction != 0
            direction, last = sign, k
    return turns
