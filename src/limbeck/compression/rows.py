r"""The user's rows as tensors for generators and students, and converted back for the teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data as torch_data

from limbeck.arguments import choice, integer
from limbeck.arrays import X, as_part, to_numpy
from limbeck.errors import ArgumentError, rename_argument
from limbeck.inputs.dataset import materialise
from limbeck.models.preprocessed import origin_of, standardising
from limbeck.models.table_encoder import TableEncoder
from limbeck.records import read_fields, read_value
from limbeck.tables.columns import pandas
from limbeck.tables.reading import place_knots
from limbeck.tables.table import Table, as_frame
from limbeck.teachers.keys import as_rows

DENSE_AT_MOST = 2**28  # numbers up to which sparse rows are made dense, as students need them


class ArrayFormat:
    r"""Rows of numbers (n, ...)."""

    def __init__(self, shape: Sequence[int], dtype: str = "float64", sparse: bool = False) -> None:
        self.shape, self.dtype, self.sparse = tuple(shape), np.dtype(dtype), sparse
        self.knots = False  # whether students may bend where trees do

    def encode(self, given: object, argument: str = "X") -> Tensor:
        r"""Rows as tensors: of float64, unless they come in what float32 holds."""
        x = _tensor(given, argument)
        if tuple(x.shape[1:]) != self.shape:
            expected = f"rows of shape {self.shape}, as in the student's training data"
            raise ArgumentError(argument, f"rows of shape {tuple(x.shape[1:])}", expected)
        return x

    def decode(self, x: X) -> Any:
        r"""Generated tensors as rows for the teacher, in the types of the user's own rows."""
        assert isinstance(x, Tensor)
        array = self.rounded(x.detach().cpu()).numpy().astype(self.dtype)  # type: ignore[union-attr]
        if not self.sparse:
            return array
        from scipy import sparse

        return sparse.csr_matrix(array)

    def as_given(self, given: object) -> Any:
        r"""The user's own rows as the teacher receives them."""
        return given

    @property
    def whole(self) -> bool:
        r"""Whether some numbers are whole, so that generated ones have to be rounded."""
        return self.dtype.kind in "biu"

    def rounded(self, x: X) -> X:
        r"""Generated tensors as `decode` passes them to the teacher: whole numbers are rounded."""
        if not self.whole:
            return x
        assert isinstance(x, Tensor)
        if self.dtype.kind == "b":
            return x.round().clamp(0, 1)
        limits = np.iinfo(self.dtype)  # as far as float64 can count
        return x.round().clamp(max(float(limits.min), -(2.0**62)), min(float(limits.max), 2.0**62))

    def encoder(self, embed: str | int = "auto", data: X | None = None) -> nn.Module | None:
        r"""From tensors to a matrix (n, features), or None; see `Table.encoder`."""
        if data is None or not self.knots or len(self.shape) != 1:
            return None
        assert isinstance(data, Tensor)
        origin = origin_of(data)
        x = (data if origin is None else data - origin).float()
        shift, scale = standardising(x)
        varying = scale.nonzero()[:, 0].tolist()
        knots = place_knots({str(k): x[:, k].numpy() for k in varying})
        if not any(knots.values()):  # of two values each, or very many
            return None
        numbers = [(str(k), None, float(shift[k]), 1 / float(scale[k]), 0.0) for k in varying]
        bends = [knots[str(k)] for k in varying]
        return TableEncoder(numbers, [], knots=bends, columns=self.shape[0])

    def spec(self) -> dict[str, Any]:
        r"""All of it, as JSON can hold it."""
        shape, dtype = list(self.shape), str(self.dtype)
        return {"kind": "array", "shape": shape, "dtype": dtype, "sparse": self.sparse}


class TableFormat:
    r"""Rows of a data frame, by the schema of a `Table`; methods as of `ArrayFormat`."""

    def __init__(
        self, table: Table, array: str | None = None, dtypes: Mapping[str, Any] | None = None
    ) -> None:
        self.table, self.array, self.dtypes = table, array, dict({} if dtypes is None else dtypes)

    def encode(self, given: object, argument: str = "X") -> X:
        frame: Any = given
        if not hasattr(given, "columns"):
            if not self.array:
                received = f"a {type(given).__name__}"
                raise ArgumentError(argument, received, "a data frame with the columns of the data")
            frame = _as_frame(given)
        if not len(frame):
            raise ArgumentError(argument, "a data frame without rows", "one row or more")
        with rename_argument("df", argument):
            return self.table.encode_exactly(frame)

    def decode(self, x: X) -> Any:
        assert isinstance(x, dict)
        frame = self.table.to_frame(x)
        if self.array:
            return frame.to_numpy(self.array)
        for name, dtype in self.dtypes.items():
            if name in frame and frame[name].dtype != dtype:
                # only if the type holds all values: a schema may be of other rows
                cast = frame[name].astype(dtype)
                same = (cast.isna() == frame[name].isna()).all()
                if getattr(dtype, "kind", "") in "iu":
                    same &= (cast == frame[name]).all()
                frame[name] = cast if same else frame[name]
        return frame

    def as_given(self, given: Any) -> Any:
        if self.array or not hasattr(given, "columns"):
            return given
        frame = as_frame(given)
        names = [column.name for column in self.table.columns]
        if not set(names) <= set(frame.columns):  # constant columns may be left out
            return self.decode(self.encode(frame))
        return frame if names == list(frame.columns) else frame[names]

    @property
    def whole(self) -> bool:
        return any(getattr(column, "step", 0) for column in self.table.varying)

    def rounded(self, x: X) -> X:
        assert isinstance(x, dict)
        return self.table.rounded(x)

    def encoder(self, embed: str | int = "auto", data: X | None = None) -> nn.Module:
        assert data is None or isinstance(data, dict)
        return self.table.encoder(embed, data=data)

    def spec(self) -> dict[str, Any]:
        return {"kind": "table", "table": self.table.spec(), "array": self.array}


RowFormat: TypeAlias = ArrayFormat | TableFormat


class Rows(NamedTuple):
    r"""The user's rows."""

    format: RowFormat
    x: X  # as tensors
    given: Any  # as the teacher gets them
    labels: Any = None  # if the rows came with some


def read_rows(given: object, table: Table | None = None) -> Rows:
    r"""The user's rows: a frame, a sparse matrix, a torch Dataset, or numbers."""
    if isinstance(given, torch_data.Dataset):
        x, labels = materialise(given, "X")
        return read_rows(x)._replace(labels=labels)
    if hasattr(given, "columns") and hasattr(given, "dtypes"):
        with rename_argument("df", "X"):
            schema = Table(given) if table is None else table
            table_format = TableFormat(schema, dtypes=as_frame(given).dtypes)
        return Rows(table_format, table_format.encode(given), table_format.as_given(given))
    if table is not None:
        raise ArgumentError("X", f"a {type(given).__name__}", "a data frame, beside a table")
    if _has_gaps(given):  # a table, whose students see what is missing
        frame, array = _as_frame(given), _as_array(given)
        with rename_argument("df", "X"):
            table_format = TableFormat(Table(frame), _dtype_name(array))
        return Rows(table_format, table_format.encode(frame), array)
    x, array = _tensor(given, "X"), _as_array(given)
    array_format = ArrayFormat(tuple(x.shape[1:]), _dtype_name(array), hasattr(array, "toarray"))
    return Rows(array_format, x, array)


def format_from_spec(spec: dict[str, Any]) -> RowFormat:
    r"""What `RowFormat.spec` described."""
    kind = read_value(spec, dict[str, Any], "format").get("kind")
    if kind == "array":
        kinds = {"kind": str, "shape": tuple[int, ...], "dtype": str, "sparse": bool}
        fields = read_fields(spec, kinds, "format")
        for size in fields["shape"]:
            integer("format.shape", size, "sizes from 0", least=0)
        _check_dtype("format.dtype", fields["dtype"])
        return ArrayFormat(fields["shape"], fields["dtype"], fields["sparse"])
    choice("format.kind", kind, ("array", "table"))
    fields = read_fields(spec, {"kind": str, "table": Any, "array": str | None}, "format")
    if fields["array"] is not None:
        _check_dtype("format.array", fields["array"])
    return TableFormat(Table.from_spec(fields["table"]), fields["array"])


def _check_dtype(where: str, name: str) -> None:
    r"""Refuse a name that is no NumPy type of numbers."""
    with suppress(TypeError, ValueError, SyntaxError):
        if np.dtype(name).kind in "biuf":
            return
    raise ArgumentError(where, repr(name[:60]), "a type of numbers, such as 'float64'")


def _as_array(given: object) -> Any:
    r"""Arrays, tensors and sparse matrices as they are; of lists, the array."""
    if isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
        given = torch.stack(list(given))
    return as_rows(given)


def _dtype_name(array: Any) -> str:
    r"""The NumPy type of the arrays that a teacher gets for rows such as these."""
    return str(np.dtype(to_numpy(array).dtype))


def _tensor(given: Any, argument: str) -> Tensor:
    if hasattr(given, "toarray"):
        if given.shape[0] * given.shape[1] > DENSE_AT_MOST:
            received = f"a sparse matrix of {given.shape[0]:,} × {given.shape[1]:,}"
            expected = f"at most {DENSE_AT_MOST:,} numbers once dense: fewer rows or columns"
            raise ArgumentError(argument, received, expected)
        given = given.toarray()
    x = as_part(given, argument).values
    if x.ndim == 1:
        expected = "rows and columns (n, D); one column is X[:, None]"
        raise ArgumentError(argument, f"shape {tuple(x.shape)}", expected)
    exact = x.element_size() <= (4 if x.is_floating_point() else 2)  # in float32
    x = x.detach().cpu().to(torch.float32 if exact else torch.float64)
    if bool((x.abs() > torch.finfo(torch.float32).max).any()):
        raise ArgumentError(argument, "numbers beyond float32", "numbers below 3e38 in size")
    return x


def _has_gaps(given: object) -> bool:
    if not isinstance(given, list | np.ndarray | Tensor):
        return False
    array = np.asarray(to_numpy(given))
    return array.ndim == 2 and array.dtype.kind == "f" and bool((array != array).any())


def _as_frame(given: object) -> Any:
    array = np.asarray(to_numpy(given))
    return pandas().DataFrame(array, columns=[f"x{k}" for k in range(array.shape[1])])
