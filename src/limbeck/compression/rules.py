r"""The rules of a tree student in the user's words: names of columns, and their own units."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from limbeck.compression.data import Kind, TableKind
from limbeck.compression.tables.values import pandas
from limbeck.errors import ArgumentError
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees

__all__ = ["rules_of"]

Written = Callable[[float], str]

DAY = 86_400
r"""Seconds of a day."""


def rules_of(student: nn.Module, kind: Kind | None, classes: Any, names: Any = None) -> str:
    r"""A single tree as nested rules.

    Arguments:
        student: A tree, or one behind the encoder of a table.
        kind: What rows are; a table knows the names of its columns.
        classes: Names of the classes.
        names: Names of an array's columns.
    """
    tree = student.network if isinstance(student, Preprocessed) else student
    if not isinstance(tree, Trees):
        received = f"a {type(tree).__name__}"
        raise ArgumentError("student", received, "a tree, as student='tree' makes one")
    encoder = getattr(student, "encoder", None)
    if isinstance(kind, TableKind) and isinstance(encoder, TableEncoder):
        names, written = _in_own_units(encoder, kind.table)
        text = tree.text(names, classes, written)
        for name in names:  # indicators are 0 or 1
            text = text.replace(f"if {name} <= 0.5:", f"if {name.replace(' is ', ' is not ', 1)}:")
        return text
    origin = getattr(student, "origin", None)
    if origin is None:
        return tree.text(names, classes)
    own = [partial(_from_origin, float(zero)) for zero in origin.flatten()]
    return tree.text(names, classes, own)


def _from_origin(origin: float, threshold: float) -> str:
    r"""A threshold of a column that is far from zero, with all of its digits."""
    return f"{origin + threshold:.6g}" if not origin else f"{origin + threshold:.15g}"


def _in_own_units(encoder: TableEncoder, table: Any) -> tuple[list[str], list[Written]]:
    r"""The names of a tree's features, and how thresholds are written in the columns' own units."""
    columns = {column.key: column for column in table.varying}
    names = [n.key for n in encoder.numbers]
    written = [partial(_written, columns[n.key], n.mean, n.scale) for n in encoder.numbers]
    names += [f"{n.key} is missing" for n in encoder.numbers if n.mask is not None]
    for which, code in zip(encoder.which.tolist(), encoder.slots.tolist(), strict=True):
        column = columns[encoder.indicated[which].key]
        known = code < len(column.categories)
        names.append(f"{column.key} is {column.categories[code] if known else 'missing'}")
    for key, embedding in zip(encoder.embedded, encoder.embeddings, strict=True):
        names += [f"{key}[{k}]" for k in range(embedding.embedding_dim)]  # type: ignore[arg-type]
    return names, written + ["{:.6g}".format] * (len(names) - len(written))


def _written(column: Any, mean: float, scale: float, threshold: float) -> str:
    r"""A standardised threshold as people write it: a number, or a date."""
    own = threshold * scale + mean + column.origin
    if column.kind != "date":
        return f"{own:.6g}"
    zone = column.dtype.partition(", ")[2].rstrip("]") or None
    date = pandas().Timestamp(math.floor(own), unit="s", tz=zone)
    days = column.step and not column.step % DAY and not column.origin % DAY and zone is None
    return str(date.date() if days else date)
