r"""The rules of a tree student in the user's words: names of columns, and their own units."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from limbeck.compression.data import Kind, TableKind
from limbeck.errors import ArgumentError
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees

__all__ = ["rules_of"]


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
        tree, names = _in_own_units(tree, encoder, kind.table)
        text = tree.text(names, classes)
        for name in names:  # indicators are 0 or 1
            text = text.replace(f"if {name} <= 0.5:", f"if {name.replace(' is ', ' is not ', 1)}:")
        return text
    return tree.text(names, classes)


def _in_own_units(tree: Trees, encoder: TableEncoder, table: Any) -> tuple[Trees, list[str]]:
    r"""The tree with thresholds in the columns' own units, and the names of its features."""
    columns = {column.key: column for column in table.varying}
    names = [columns[n.key].key for n in encoder.numbers]
    names += [f"{n.key} is missing" for n in encoder.numbers if n.mask is not None]
    for which, code in zip(encoder.which.tolist(), encoder.slots.tolist(), strict=True):
        column = columns[encoder.indicated[which].key]
        known = code < len(column.categories)
        names.append(f"{column.key} is {column.categories[code] if known else 'missing'}")
    for key, embedding in zip(encoder.embedded, encoder.embeddings, strict=True):
        names += [f"{key}[{k}]" for k in range(embedding.embedding_dim)]  # type: ignore[arg-type]
    own = copy.deepcopy(tree)
    for node, (feature, leaf) in enumerate(
        zip(own.feature.tolist(), own.is_leaf.tolist(), strict=True)
    ):
        place = feature % own.inputs
        if place < len(encoder.numbers) and not leaf:
            number = encoder.numbers[place]
            column = columns[number.key]
            raw = float(own.threshold[node]) * number.scale + number.mean + column.origin
            own.threshold[node] = raw
    return own, names
