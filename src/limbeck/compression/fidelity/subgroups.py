r"""Columns cut into subgroups, over which a student is compared with its teacher."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from limbeck.errors import ArgumentError

__all__ = ["SMALL", "subgroups"]

SMALL = 10
r"""Groups of fewer rows are pooled: their errors would say little."""

DISTINCT = 10
r"""Columns of more distinct numbers than this are cut into quartiles."""

MISSING = "missing"


def subgroups(columns: Mapping[str, Any], n: int) -> dict[str, dict[str, np.ndarray]]:
    r"""The rows of every subgroup, by column and by group.

    Numbers with more than `DISTINCT` values, and dates, are cut into quartiles; missing values are
    a group of their own. Several groups of fewer than `SMALL` rows become one, however small.

    Arguments:
        columns: (n,) values by name: a dict, or a data frame.
        n: The number of rows that each column must have.

    >>> columns = {"size": ["S"] * 12 + ["L"] * 15 + ["XL"] * 2}
    >>> {name: len(rows) for name, rows in subgroups(columns, 29)["size"].items()}
    {'L': 15, 'S': 12, 'XL': 2}
    """
    if not callable(getattr(columns, "items", None)):
        received = f"a {type(columns).__name__}"
        raise ArgumentError("groups", received, "a dict of columns by name, or a data frame")
    found = {}
    for name, column in columns.items():
        values = np.asarray(column)
        if values.shape != (n,):
            raise ArgumentError(f"groups[{name!r}]", f"shape {values.shape}", f"{n} values, ({n},)")
        names, order = _named(values)
        place = {group: number for number, group in enumerate(order)}
        placed = np.array([place[group] for group in names], dtype=int)  # NumPy drops "\0" in words
        parts = {group: np.flatnonzero(placed == number) for group, number in place.items()}
        found[str(name)] = _pooled({group: rows for group, rows in parts.items() if len(rows)})
    return found


def _pooled(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    small = {group: rows for group, rows in parts.items() if len(rows) < SMALL}
    if len(small) < 2:
        return parts
    pooled = np.sort(np.concatenate(list(small.values())))
    large = {group: rows for group, rows in parts.items() if group not in small}
    return large | {f"other ({len(small)} groups)": pooled}


def _named(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    r"""The name (n,) of each row's group, and all names in order."""
    missing = _missing(values)
    present = values[~missing]
    names = np.full(len(values), MISSING, dtype=object)
    numeric = _as_numbers(present)
    if numeric is None:
        names[~missing] = np.array([str(value) for value in present.tolist()], dtype=object)
        order = sorted(set(names[~missing]))
    elif len(distinct := np.unique(numeric)) <= DISTINCT:
        order = [_number(value, values.dtype) for value in distinct]
        names[~missing] = np.array(order, dtype=object)[np.searchsorted(distinct, numeric)]
    else:
        ranks = np.array([0.25, 0.5, 0.75]) * len(numeric)
        edges = np.unique(np.sort(numeric)[np.ceil(ranks).astype(int) - 1])
        shown = [_number(edge, values.dtype) for edge in edges]
        between = [f"{low} to {high}" for low, high in pairwise(shown)]
        order = [f"up to {shown[0]}", *between, f"above {shown[-1]}"]
        names[~missing] = np.array(order, dtype=object)[np.searchsorted(edges, numeric)]
    return names, order + [MISSING] * bool(missing.any())


def _missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    words = {"None", "nan", "NaT", "<NA>"}  # comparing pandas' NA with itself gives no truth value
    return np.array([not isinstance(v, str) and str(v) in words for v in values], dtype=bool)


def _as_numbers(present: np.ndarray) -> np.ndarray | None:
    r"""Values as numbers, dates as seconds; None if they are neither."""
    kind = present.dtype.kind
    if kind == "O" and len(present):
        plain = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in present)
        return present.astype(float) if plain else None
    if kind in "mM":
        return present.astype(f"{kind}8[s]").astype(float)
    return present.astype(float) if kind in "iuf" else None


def _number(value: float, dtype: np.dtype[Any]) -> str:
    if dtype.kind in "mM":
        moment = np.array(int(value)).astype(f"{dtype.kind}8[s]")
        return str(moment.astype("M8[D]") if dtype.kind == "M" else moment)
    whole = abs(value) < 1e15 and (value == int(value) or abs(value) >= 1e4)
    return f"{value:.0f}" if whole else f"{value:.4g}"
