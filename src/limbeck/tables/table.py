r"""The schema of a mixed table: frames for the teacher, tensors for generators and students."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import Batch, to_numpy
from limbeck.errors import ArgumentError
from limbeck.inputs.combined import Munge
from limbeck.models.table_encoder import TableEncoder
from limbeck.records import check_depth, read_fields
from limbeck.tables.columns import LIMIT, Category, Column, Number, column_of, is_date, pandas
from limbeck.tables.reading import place_knots, present, read
from limbeck.text import PlainTable, table_text

EXACT = 2**53  # whole numbers up to here are the same as floats


class TableMunge(Munge):
    r"""`Munge` on rows of a table, which rounds them as the teacher gets them."""

    def __init__(self, table: Table, parts: dict[str, Tensor], **options: Any) -> None:
        self.table = table
        # keys of masks by the keys of their numbers
        self.masked = {c.key: c.mask for c in table.numbers if c.mask is not None}
        numbers = {c.key: parts[c.key] for c in table.numbers}
        numbers |= {key: numbers[key][~parts[mask]] for key, mask in self.masked.items()}
        binary = [key for key, values in numbers.items() if len(values.unique()) <= 2]
        super().__init__(parts, categorical=binary, **options)

    def draw(self, n: int) -> dict[str, Any]:
        drawn, rows = super().draw(n), self.data.x
        assert isinstance(rows, dict)
        for key, mask in self.masked.items():  # a number and its mask are replaced together
            drawn["swap"][mask] = drawn["swap"][key]
            missing = rows[mask][drawn["row"]] | rows[mask][drawn["neighbour"]]
            drawn["noise"][key] = torch.where(missing, 0.0, drawn["noise"][key])
        return drawn

    def build(self, drawn: dict[str, Any]) -> Batch:
        batch = super().build(drawn)
        assert isinstance(batch.x, dict)
        return batch._replace(x=self.table.rounded(batch.x))


class Table:
    r"""What the columns of a data frame are.

    Numbers and dates become float32, with a boolean mask if some are missing; floats that are all
    whole count as whole numbers. Strings, booleans and categorical columns become int64 codes, with
    codes for unknown and missing values. Constant columns have no tensors, but are in frames.
    `to_frame(encode(df))` is df, up to the rounding of numbers to float32.

    Arguments:
        df: A pandas data frame; a Polars one is converted, and frames come back as pandas.
        categories: Columns to take as categories: numbers that are codes, or strings of which
            there are so many that they look like ids. Default: none.
        drop: Columns to leave out, of the frames for the teacher, too. Default: none.

    Attributes:
        columns: The columns, in order.
        rows: The number of rows of the frame.
    """

    _reader: FewRowsReader | None = None  # of frames like the last one

    @arg.checked_arguments
    def __init__(
        self, df: arg.UserObject[Any], *, categories: arg.Text | arg.Items[Iterable[Any]] = (),
        drop: arg.Text | arg.Items[Iterable[Any]] = (),
    ) -> None:  # fmt: skip
        frame = as_frame(df)
        check_names(frame)
        options = {"categories": categories, "drop": drop}
        chosen = {a: [v] if isinstance(v, str) else list(v) for a, v in options.items()}
        for argument, listed in chosen.items():
            known = set(frame.columns)
            if unknown := [n for n in listed if not isinstance(n, Hashable) or n not in known]:
                raise ArgumentError.unknown(argument, unknown[0], map(str, frame.columns))
        names = [name for name in frame.columns if name not in chosen["drop"]]
        if not names or not len(frame):
            received = f"a frame of {len(frame)} rows and {len(names)} columns"
            raise ArgumentError("df", received, "one row and one column or more")
        keys = set(map(str, names))
        self.rows, self.columns = len(frame), list[Column]()
        for name in names:
            mask = f"{name}__missing"
            while mask in keys:
                mask += "_"
            keys.add(mask)
            self.columns.append(read(frame[name], mask, name in chosen["categories"]))
        if not self.varying:
            received = "one row" if len(frame) == 1 else "columns that are all constant"
            if not frame[names].notna().to_numpy().any():
                received = "columns without a value, all of them missing"
            raise ArgumentError("df", received, "rows with a column that varies, or more")

    @property
    def varying(self) -> list[Column]:
        r"""The columns that vary, which are those with tensors."""
        return [column for column in self.columns if not column.constant]

    @property
    def numbers(self) -> list[Number]:
        r"""The columns of numbers and dates that vary."""
        return [column for column in self.varying if isinstance(column, Number)]

    def groups(self) -> dict[str, str]:
        r"""For each tensor the column that it belongs to: a mask goes with its values."""
        return {key: column.key for column in self.columns for key in column.keys}

    def encode(self, df: arg.UserObject[object]) -> dict[str, Tensor]:
        r"""The tensors (n,) of a frame, by column; further columns of the frame are ignored.

        A missing value is refused where the data had none; a new category becomes "unknown".
        """
        parts = self.encode_exactly(df)
        return {k: t.float() if t.is_floating_point() else t for k, t in parts.items()}

    def encode_exactly(self, df: arg.UserObject[object]) -> dict[str, Tensor]:
        r"""The same with numbers in float64, which holds them as they are in the frame."""
        frame = as_frame(df)
        parts: dict[str, Tensor] = {}
        times = Counter(frame.columns)
        if absent := [column.name for column in self.varying if not times[column.name]]:
            received = f"no column {', '.join(map(repr, absent))}"
            raise ArgumentError("df", received, "all columns of the table that vary")
        for column in self.varying:
            if times[column.name] > 1:
                raise ArgumentError("df", f"{column.name!r} more than once", "different names")
            arrays = column.encode(frame[column.name])
            parts |= {key: torch.from_numpy(array) for key, array in arrays.items()}
        return parts

    def few_rows(self, frame: arg.UserObject[Any]) -> Matrices | None:
        r"""The same of a few rows as matrices; None of others, and of values to be refused."""
        is_frame = hasattr(frame, "iloc") and hasattr(frame, "columns")
        if not is_frame or len(frame) > 32:  # more are not read one by one
            return None
        names, dtypes, reader = frame.columns.tolist(), frame.dtypes.tolist(), self._reader
        if reader is None or reader.names != names or reader.dtypes != dtypes:
            reader = self._reader = FewRowsReader(self.varying, names, dtypes)
        return reader(frame)

    @arg.checked_arguments
    def to_frame(self, batch: arg.Dict[Mapping[str, Any]]) -> Any:
        r"""The frame of tensors or arrays (n,), with the dtypes and order of the columns.

        Whole numbers and dates are rounded to what the column holds (days, if all dates were
        days). An unknown category becomes the most frequent one, which any teacher takes.
        """
        if absent := [key for key in self.groups() if key not in batch]:
            raise ArgumentError("batch", f"no part {absent[0]!r}", "all that `encode` gives")
        parts = {key: np.asarray(to_numpy(batch[key])) for key in self.groups()}
        n = len(next(iter(parts.values())))
        for key, part in parts.items():
            if part.shape != (n,):
                received = f"an array of shape {part.shape}"
                raise ArgumentError(f"batch[{key!r}]", received, f"one of shape ({n},)")
        series = {column.name: column.decode(parts, n) for column in self.columns}
        return pandas().DataFrame(series, columns=list(series))

    def rounded(self, batch: arg.UserObject[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        r"""Tensors after a round trip through a frame: rounded, with missing values filled."""
        parts = dict(batch)
        for column in self.numbers:
            value = parts[column.key]
            if column.step:
                value = value.clamp(column.low - column.origin, column.high - column.origin)
                value = (value / column.step).round() * column.step
            if column.mask:
                value = torch.where(parts[column.mask], column.fill, value)
            parts[column.key] = value
        return parts

    @arg.checked_arguments
    def encoder(
        self,
        embed: arg.Count | Annotated[str, arg.Choice("auto", "one_hot")] = "auto",
        *,
        data: arg.UserObject[object] = None,
        generator: torch.Generator | None = None,
    ) -> TableEncoder:
        r"""A module from the tensors to features (n, width), to be trained with the student.

        Arguments:
            embed: The size of embeddings, or "one_hot" for none. Default: "auto", one-hot up to 16
                categories, else an embedding whose size grows with their number.
            data: Rows, a frame or its tensors, by which numbers get knots, so that a student can
                bend there as trees do. Default: None, no knots.
            generator: Of the embeddings. Default: None, the same ones each time.
        """
        x = {} if data is None else self._tensors(data)
        knots = place_knots({c.key: present(c, x).astype(np.float32) for c in self.numbers if x})
        numbers = [(c.key, c.mask, c.mean, c.scale, c.fill) for c in self.numbers]
        coded = [column for column in self.varying if isinstance(column, Category)]
        categories = [(c.key, len(c.categories), bool(c.missing)) for c in coded]
        bends = [knots.get(c.key, []) for c in self.numbers]
        return TableEncoder(numbers, categories, embed, knots=bends, generator=generator)

    @arg.checked_arguments
    def munge(
        self, data: arg.UserObject[Any], swap: arg.Fraction = 0.5,
        local_variance: arg.Positive = 1.0, seed: arg.Seed | None = None,
        weight: arg.UserObject[Any] = None,
    ) -> TableMunge:  # fmt: skip
        r"""MUNGE on the rows of a frame, or on its tensors: see `limbeck.inputs.Munge`.

        Where a number is taken from the neighbour, so is whether it is missing.
        """
        options = {"swap": swap, "local_variance": local_variance, "seed": seed, "weight": weight}
        return TableMunge(self, self._tensors(data), **options)

    def _tensors(self, data: object) -> dict[str, Tensor]:
        r"""The tensors of a frame, or tensors of this table themselves."""
        if not isinstance(data, Mapping) or not all(isinstance(v, Tensor) for v in data.values()):
            return self.encode(data)
        self.to_frame(data)  # which refuses tensors of another table
        return dict(data)

    def spec(self) -> dict[str, Any]:
        r"""All of it, as JSON can hold it."""
        columns = [column.spec() for column in self.columns]
        return {"type": "Table", "rows": self.rows, "columns": columns}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Table:
        r"""The table that a spec describes."""
        kinds = {"type": Literal["Table"], "rows": int, "columns": list[Any]}
        fields = read_fields(check_depth(spec, "spec"), kinds, "spec")
        table = cls.__new__(cls)
        table.rows = arg.integer("spec.rows", fields["rows"], "a whole number from 1", least=1)
        table.columns = list(map(column_of, fields["columns"]))
        keys = [key for column in table.columns for key in column.keys]
        different = {str(column.name) for column in table.columns}
        if not keys or len(set(keys)) < len(keys) or len(different) < len(table.columns):
            received = f"{len(table.columns)} columns, of equal names or without tensors"
            raise ArgumentError("spec.columns", received, "different columns, of which one varies")
        return table

    def __repr__(self) -> str:
        title = f"{len(self.columns)} columns of {self.rows:,} rows"
        counts = ("missing", "categories")
        table = PlainTable("column", "kind", "dtype", *counts, right=counts, title=title)
        for column in self.columns[: (shown := 30)]:
            codes = f"{len(column.categories):,}" if isinstance(column, Category) else ""
            kind = "whole number" if getattr(column, "counts", False) else column.kind
            kind = f"{kind}, constant" if column.constant else kind
            table.add_row(str(column.name), kind, column.dtype, f"{column.missing:,}", codes)
        if len(self.columns) > shown:
            table.add_row(f"and {len(self.columns) - shown:,} more")
        return table_text(table).rstrip()


def as_frame(df: object) -> Any:
    r"""A frame of pandas; one of Polars is converted."""
    pd = pandas()
    if not isinstance(df, pd.DataFrame) and hasattr(df, "to_pandas"):
        df = df.to_pandas()
    if not isinstance(df, pd.DataFrame):
        expected = "a data frame of pandas or Polars; pandas.DataFrame converts most other data"
        raise ArgumentError("df", f"a {type(df).__name__}", expected)
    return df


def check_names(frame: Any) -> None:
    r"""Refuse a frame whose columns have no names, or the same."""
    if frame.columns.nlevels > 1:
        expected = "one name per column: df.columns = df.columns.map('_'.join)"
        raise ArgumentError("df", f"columns of {frame.columns.nlevels} levels", expected)
    times = Counter(map(str, frame.columns))
    for name in frame.columns:
        if isinstance(name, bool) or not isinstance(name, str | int | np.integer) or name == "":
            expected = "non-empty strings or whole numbers: df.columns = df.columns.astype(str)"
            raise ArgumentError("df", f"the column name {name!r}", expected)
        if times[str(name)] > 1:
            raise ArgumentError("df", f"the column name {str(name)!r} twice", "different names")


class Matrices(NamedTuple):
    r"""Rows of a table, with columns of each kind in the table's order."""

    numbers: np.ndarray  # float64 (n, N), less origins; missing ones are filled
    missing: np.ndarray  # bool (n, N)
    codes: np.ndarray  # int64 (n, C)


class FewRowsReader:
    r"""Reads frames of the same names and dtypes of columns, or leaves them to `Table.encode`."""

    def __init__(self, columns: list[Column], names: list[Any], dtypes: list[Any]) -> None:
        self.names, self.dtypes = names, dtypes
        once = all(names.count(column.name) == 1 for column in columns)
        self.usable = once and all(_readable(c, dtypes[names.index(c.name)]) for c in columns)
        if not self.usable:
            return
        numbers = [column for column in columns if isinstance(column, Number)]
        self.places = [names.index(column.name) for column in numbers]
        self.dates = [k for k, column in enumerate(numbers) if column.kind == "date"]
        self.origin = np.array([column.origin for column in numbers])
        self.fill = np.array([column.fill for column in numbers])
        self.no_gaps = np.array([column.mask is None for column in numbers], bool)
        categories = [column for column in columns if isinstance(column, Category)]
        self.categories = [
            (names.index(c.name), {v: k for k, v in enumerate(c.categories)}, c) for c in categories
        ]

    def __call__(self, frame: Any) -> Matrices | None:
        r"""The matrices of a frame; None for values that are to be refused, or to be looked at."""
        if not self.usable or not len(frame):
            return None
        one = len(frame) == 1  # which pandas reads faster as a series
        rows = [frame.iloc[0].tolist()] if one else frame.to_numpy(dtype=object).tolist()
        try:
            codes = [[_code(row[k], known, c) for k, known, c in self.categories] for row in rows]
            numbers = self._numbers(rows)
        except (TypeError, ValueError, OverflowError):
            return None
        gone = np.isnan(numbers)
        known = np.where(gone, 0.0, numbers)
        if (gone & self.no_gaps).any() or not (np.abs(known) <= LIMIT).all():
            return None
        shape = (len(rows), len(self.categories))
        filled = np.where(gone, self.fill, known - self.origin)
        return Matrices(filled, gone, np.array(codes, np.int64).reshape(shape))

    def _numbers(self, rows: list[list[Any]]) -> np.ndarray:
        gap, not_a_time = pandas().NA, pandas().NaT
        values: list[list[Any]]
        values = [[np.nan if row[k] is gap else row[k] for k in self.places] for row in rows]
        for k in self.dates:
            for row in values:
                whole, rest = divmod(row[k].value, 10**9)
                row[k] = np.nan if row[k] is not_a_time else whole + rest / 10**9
        return np.array(values, np.float64).reshape(len(rows), len(self.places))


def _code(value: Any, known: dict[Any, int], column: Category) -> int:
    r"""The code of a value; a ValueError for one that has to be refused."""
    value = value.item() if isinstance(value, np.generic) else value
    if (code := known.get(value)) is not None:
        return code
    missing = pandas().isna(value) is True
    text = any(isinstance(category, str) for category in column.categories)
    if not column.missing if missing else isinstance(value, str) != text:
        raise ValueError
    return column.gone if missing else column.unknown


def _readable(column: Column, dtype: Any) -> bool:
    r"""Whether values of a dtype mean in a row of objects what they mean in their series."""
    if isinstance(column, Category):
        return not any(type(v) is int and abs(v) > EXACT for v in column.categories)
    if column.kind == "date":
        return is_date(dtype) and (", " in str(dtype)) == (", " in column.dtype)
    return bool(pandas().api.types.is_numeric_dtype(dtype)) and dtype.kind in "biuf"
