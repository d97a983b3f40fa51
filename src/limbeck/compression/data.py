r"""The user's rows: tensors for generators and students, and back into what the teacher eats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data as torch_data

from limbeck.compression.naming import called
from limbeck.core.batch import X
from limbeck.errors import ArgumentError
from limbeck.inputs.materialise import materialise
from limbeck.inputs.parts import as_part

__all__ = ["ArrayKind", "Kind", "Rows", "TableKind", "kind_from_spec", "read"]

DENSE_AT_MOST = 2**28
r"""Numbers up to which sparse rows are made dense, as students need them."""


class Kind(ABC):
    r"""What the user's rows are: how they become tensors, and how tensors become rows again."""

    @abstractmethod
    def encode(self, given: Any, argument: str = "X") -> X:
        r"""Rows of this kind as tensors; an error names what does not fit."""

    @abstractmethod
    def decode(self, x: X) -> Any:
        r"""What the teacher eats, of tensors."""

    def encoder(self, embed: str = "auto") -> nn.Module | None:
        r"""From tensors to a matrix (n, features), where they are none; see `Table.encoder`."""
        return None

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        r"""All of it, as JSON can hold it."""


class Rows(NamedTuple):
    r"""The user's rows as tensors, their kind, and labels if they came with some."""

    kind: Kind
    x: X
    labels: Any = None


class ArrayKind(Kind):
    r"""Rows of numbers (n, ...).

    Arguments:
        shape: The shape of a row.
        dtype: The floating type of the arrays that the teacher gets.
        sparse: Whether it gets sparse matrices.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: str = "float64", sparse: bool = False
    ) -> None:
        self.shape, self.dtype, self.sparse = tuple(shape), np.dtype(dtype), sparse

    def encode(self, given: Any, argument: str = "X") -> Tensor:
        x = _tensor(given, argument)
        if tuple(x.shape[1:]) != self.shape:
            expected = f"rows of shape {self.shape}, as the student was made for"
            raise ArgumentError(argument, f"rows of shape {tuple(x.shape[1:])}", expected)
        return x

    def decode(self, x: X) -> Any:
        assert isinstance(x, Tensor)
        array = x.detach().cpu().numpy().astype(self.dtype)
        if not self.sparse:
            return array
        from scipy import sparse

        return sparse.csr_matrix(array)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "array",
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "sparse": self.sparse,
        }


class TableKind(Kind):
    r"""Rows of a data frame, by the schema of a `Table`.

    Arguments:
        table: The schema.
        array: Whether the teacher gets arrays: rows of numbers with gaps are taken as a table.
    """

    def __init__(self, table: Any, array: bool = False) -> None:
        self.table, self.array = table, array

    def encode(self, given: Any, argument: str = "X") -> X:
        if self.array and not hasattr(given, "columns"):
            given = _framed(given)
        if not hasattr(given, "columns"):
            received = f"a {type(given).__name__}"
            raise ArgumentError(argument, received, "a data frame with the columns of the data")
        if not len(given):
            raise ArgumentError(argument, "a data frame without rows", "one row or more")
        with called("df", argument):
            found: X = self.table.encode(given)
        return found

    def decode(self, x: X) -> Any:
        frame = self.table.to_frame(x)
        return frame.to_numpy(np.float64) if self.array else frame

    def encoder(self, embed: str = "auto") -> nn.Module:
        encoder: nn.Module = self.table.encoder(embed)
        return encoder

    def spec(self) -> dict[str, Any]:
        return {"kind": "table", "table": self.table.spec(), "array": self.array}


def read(given: Any, table: Any = None) -> Rows:
    r"""The user's rows: a frame, a sparse matrix, a torch Dataset, or numbers.

    Numbers with gaps (NaN) are taken as a table, whose students see what is missing.

    Arguments:
        given: The rows.
        table: The schema of a data frame; None reads it off.
    """
    if isinstance(given, torch_data.Dataset):
        x, labels = materialise(given, "X")
        return read(x)._replace(labels=labels)
    if hasattr(given, "columns") and hasattr(given, "dtypes"):
        return _table(given, table, array=False)
    if table is not None:
        raise ArgumentError("X", f"a {type(given).__name__}", "a data frame, beside a table")
    if _has_gaps(given):
        return _table(_framed(given), None, array=True)
    x = _tensor(given, "X")
    dtype = getattr(given, "dtype", None)
    floating = isinstance(dtype, np.dtype) and dtype.kind == "f"
    name = str(dtype) if floating else "float64" if dtype is None else "float32"
    return Rows(ArrayKind(tuple(x.shape[1:]), name, hasattr(given, "toarray")), x)


def kind_from_spec(spec: dict[str, Any]) -> Kind:
    r"""What `Kind.spec` described."""
    fields = dict(spec)
    if fields.pop("kind") == "array":
        return ArrayKind(**fields)
    from limbeck.compression.tables.table import Table

    return TableKind(Table.from_spec(fields["table"]), fields["array"])


def _table(frame: Any, table: Any, array: bool) -> Rows:
    from limbeck.compression.tables.table import Table

    with called("df", "X"):
        kind = TableKind(Table(frame) if table is None else table, array)
    return Rows(kind, kind.encode(frame))


def _tensor(given: Any, argument: str) -> Tensor:
    if hasattr(given, "toarray"):
        if given.shape[0] * given.shape[1] > DENSE_AT_MOST:
            received = f"a sparse matrix of {given.shape[0]:,} × {given.shape[1]:,}"
            accepted = f"at most {DENSE_AT_MOST:,} numbers once dense: fewer rows or columns"
            raise ArgumentError(argument, received, accepted)
        given = given.toarray()
    x = as_part(given, argument).values
    if x.ndim == 1:
        accepted = "rows and columns (n, D); one column is X[:, None]"
        raise ArgumentError(argument, f"shape {tuple(x.shape)}", accepted)
    x = x.detach().cpu().to(torch.float32)
    if not bool(x.isfinite().all()):
        raise ArgumentError(argument, "numbers beyond float32", "numbers below 3e38 in size")
    return x


def _has_gaps(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.ndim == 2 and given.is_floating_point() and bool(given.isnan().any())
    if not isinstance(given, list | np.ndarray):
        return False
    array = np.asarray(given)
    return array.ndim == 2 and array.dtype.kind == "f" and bool(np.isnan(array).any())


def _framed(given: Any) -> Any:
    import pandas

    array = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    return pandas.DataFrame(array, columns=[f"x{k}" for k in range(array.shape[1])])
