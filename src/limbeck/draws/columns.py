r"""Variables from columns that are called alpha.1, alpha[1], beta."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from limbeck.draws.variables import Found
from limbeck.errors import ArgumentError

__all__ = ["CHAIN", "from_columns", "places"]

INDEXED = (
    re.compile(r"(?P<name>.+?)\[(?P<index>\d+(?:,\s*\d+)*)\]"),  # alpha[1,2]
    re.compile(r"(?P<name>.+?)\.(?P<index>\d+(?:\.\d+)*)"),  # alpha.1.2
)
CHAIN = ("chain__", ".chain")
OTHER = (".iteration", ".draw", "")  # a nameless column is a table's index

Array = np.ndarray[Any, Any]


def places(header: Sequence[Any]) -> dict[str, Array]:
    r"""The columns of each variable, as an array of column numbers of the variable's shape.

    Columns of the sampler's own (lp__, .draw) are left out. Indices start at one, or at zero if
    a zero is among them. Columns that are called by numbers from zero on are one vector.

    >>> places(["lp__", "theta.1.1", "theta.2.1", "mu"])
    {'theta': array([[1],
           [2]]), 'mu': array(3)}
    """
    names = [str(name).strip() for name in header]
    own = [column for column, name in enumerate(names) if name]
    if [names[column] for column in own] == [str(number) for number in range(len(own))]:
        return {"": np.array(own)}
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for column, text in enumerate(names):
        if text.endswith("__") or text in (*CHAIN, *OTHER):
            continue
        matches = (pattern.fullmatch(text) for pattern in INDEXED)
        match = next((match for match in matches if match), None)
        name, index = (match["name"], re.split(r"[.,]", match["index"])) if match else (text, [])
        place = tuple(map(int, index))
        if place in found.setdefault(name, {}):
            raise ArgumentError("posterior", f"two columns {text!r}", "a name for each column")
        found[name][place] = column
    if not found:
        received = f"the columns {', '.join(names[:8])}"
        raise ArgumentError("posterior", received, "columns of parameters")
    return {name: _filled(name, columns) for name, columns in found.items()}


def from_columns(
    header: Sequence[Any],
    tables: Sequence[Array],
    choose: Callable[[Sequence[str]], list[str]],
    notes: Sequence[str] = (),
) -> Found:
    r"""Variables (chain, draw, ...) of tables (draw, column) of one length.

    Each table is a chain, or several if it has a column that says of which chain a row is.
    """
    whole = np.concatenate([_by_chain(header, table) for table in tables])
    found = places(header)
    return Found({name: whole[..., found[name]] for name in choose(list(found))}, "chains", notes)


def _by_chain(header: Sequence[Any], table: Array) -> Array:
    column = next((place for place, name in enumerate(header) if name in CHAIN), None)
    if column is None:
        return table[None]
    chains = [table[table[:, column] == chain] for chain in np.unique(table[:, column])]
    if len({len(chain) for chain in chains}) > 1:
        received = f"chains of {', '.join(str(len(chain)) for chain in chains)} draws"
        raise ArgumentError("posterior", received, "chains of equal length")
    return np.stack(chains)


def _filled(name: str, columns: dict[tuple[int, ...], int]) -> Array:
    axes = {len(place) for place in columns}
    base = 0 if any(0 in place for place in columns) else 1
    shape = tuple(max(indices) - base + 1 for indices in zip(*columns, strict=False))
    if len(axes) > 1 or math.prod(shape) != len(columns):
        received = f"{len(columns)} columns of {name}, as {list(columns)[-1]}"
        raise ArgumentError("posterior", received, "one for each index, all with as many indices")
    filled = np.empty(shape, int)
    for place, column in columns.items():
        filled[tuple(index - base for index in place)] = column
    return filled
