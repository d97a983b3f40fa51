r"""ONNX inputs of a table, one a column: what each takes, and how it becomes tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from limbeck.compression.tables.columns import Category, Column, Number
from limbeck.errors import ArgumentError

__all__ = ["Nodes", "Port", "feed", "nodes", "port"]


class Port(NamedTuple):
    r"""What an ONNX input takes.

    Attributes:
        dtype: The NumPy type of its array (n, 1); object stands for strings.
        missing: What stands for a missing value; None where there is no such thing, since the
            data had none.
        unknown: Something that is none of the categories; None for numbers and booleans.
    """

    dtype: type
    missing: Any
    unknown: Any = None


def port(column: Column) -> Port:
    r"""What the input of a column takes.

    Numbers are float32, or float64 where float32 lacks digits; dates are seconds since 1970, in
    UTC, as float64; a missing one is NaN. Categories are strings (a missing one is the empty
    string), int64 (the least one), float64 (NaN) or booleans; booleans of which some are missing
    are float32 (NaN). Where the data had no gaps, nothing stands for a missing value: a number or
    category that is NaN makes the answer NaN.
    """
    if isinstance(column, Number):
        kind = np.float64 if column.origin or column.kind == "date" else np.float32
        return Port(kind, np.nan if column.mask else None)
    assert isinstance(column, Category)
    kind = type(column.categories[0])
    if kind is bool:
        return Port(np.float32, np.nan, 0.5) if column.missing else Port(np.bool_, None)
    gaps = column.missing > 0
    if kind is float:
        unknown = _free(column, 0.5, lambda value: value + 1)
        return Port(np.float64, np.nan if gaps else None, unknown)
    if kind is int:
        least = _free(column, -(2**63), lambda value: value + 1)
        unknown = _free(column, least + 1, lambda value: value + 1)
        return Port(np.int64, least if gaps else None, unknown)
    gone = _free(column, "", lambda text: text + "<missing>") if gaps else None
    return Port(object, gone, _free(column, "<unknown>", lambda text: text + "_"))


def _free(column: Category, value: Any, following: Any) -> Any:
    r"""The first of some values that is no category."""
    while value in column.categories:
        value = following(value)
    return value


def feed(column: Column, batch: Mapping[str, Tensor]) -> np.ndarray[Any, Any]:
    r"""What the input of a column is given, (n, 1), for its tensors."""
    takes = port(column)
    parts = {key: batch[key].numpy(force=True) for key in column.keys}
    if isinstance(column, Number):
        values = parts[column.key].astype(np.float64) + column.origin
        if column.mask:
            values = np.where(parts[column.mask], np.nan, values)
    else:
        assert isinstance(column, Category)
        if takes.dtype is np.bool_ and (parts[column.key] > 1).any():
            received = "missing values, which the file's booleans cannot be"
            raise ArgumentError(column.argument, received, "True and False, as the data had")
        choices = np.empty(len(column.categories) + 2, dtype=object)
        choices[:] = [*column.categories, takes.unknown, takes.missing]
        values = choices[parts[column.key]]
    return values.astype(takes.dtype).reshape(-1, 1)


def nodes(column: Column, name: str, outputs: list[str], inside: str) -> list[Any]:
    r"""The ONNX nodes from an input (n, 1) to the tensors (n,) of its column.

    Arguments:
        column: The column.
        name: The input's name.
        outputs: The names of its tensors, in the order of `column.keys`.
        inside: What names of intermediate results begin with.
    """
    made = Nodes(inside)
    row = made("Squeeze", name, made.constant(np.array([1])))
    takes = port(column)
    if isinstance(column, Number):
        if takes.dtype is np.float64:
            row = made("Sub", row, made.constant(np.array(column.origin)))
            row = made("Cast", row, to=1)  # to float32
        if not column.mask:  # the answer to NaN is NaN, where the data had no gaps
            made("Identity", row, output=outputs[0])
            return made.nodes
        gone = made("IsNaN", row)
        made(
            "Where", gone, made.constant(np.array(column.fill, np.float32)), row, output=outputs[0]
        )
        made("Identity", gone, output=outputs[1])
        return made.nodes
    assert isinstance(column, Category)
    if takes.dtype is np.bool_:
        made("Cast", row, to=7, output=outputs[0])  # to int64
        return made.nodes
    known = dict(zip(column.categories, range(column.unknown), strict=True))
    if takes.dtype in (object, np.int64):
        gaps = {takes.missing: column.gone} if column.missing else {}
        codes = made.lookup(row, known | gaps, takes.dtype, column.unknown)
    else:  # floats without gaps have the code of a missing value all the same: the answer is NaN
        codes = made.lookup(row, known, takes.dtype, column.unknown)
        codes = made("Where", made("IsNaN", row), made.constant(np.array(column.gone)), codes)
    made("Identity", codes, output=outputs[0])
    return made.nodes


class Nodes:
    r"""A list of ONNX nodes that grows by calls, each of which gives its output's name."""

    def __init__(self, inside: str) -> None:
        self.nodes: list[Any] = []
        self.inside = inside

    def __call__(
        self, operator: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        from onnx import helper

        name = output or f"{self.inside}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        from onnx import numpy_helper

        return self("Constant", value=numpy_helper.from_array(value))

    def lookup(self, row: str, known: dict[Any, int], dtype: type, default: int) -> str:
        r"""Codes of values, by a table of all that is known."""
        from onnx import numpy_helper

        def tensor(values: Any, dtype: type) -> Any:
            return numpy_helper.from_array(np.array(list(values), dtype=dtype))

        return self(
            "LabelEncoder",
            row,
            domain="ai.onnx.ml",
            keys_tensor=tensor(known, dtype),
            values_tensor=tensor(known.values(), np.int64),
            default_tensor=tensor([default], np.int64),
        )
