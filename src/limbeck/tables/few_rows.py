r"""A few rows of a data frame as matrices, by a plan that is made once for its columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from limbeck.tables.columns import LIMIT, Array, Category, Column, Number, is_date, pandas

FEW_ROWS = 32  # up to which values are read one by one
EXACT = 2**53  # whole numbers up to here are the same as floats


class Matrices(NamedTuple):
    r"""Rows of a table, with columns of each kind in the table's order."""

    numbers: Array  # float64 (n, N), less origins; missing ones are filled
    missing: Array  # bool (n, N)
    codes: Array  # int64 (n, C)


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
        if not self.usable or not 0 < len(frame) <= FEW_ROWS:
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

    def _numbers(self, rows: list[list[Any]]) -> Array:
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
