r"""Columns of a table: numbers, categories, dates, and their values."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from limbeck.arguments import choice
from limbeck.environment import import_extra
from limbeck.errors import ArgumentError, shown
from limbeck.records import read_record

if TYPE_CHECKING:
    import pandas as pd

Array: TypeAlias = np.ndarray[Any, Any]
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # a second, by NumPy's unit of time
LIMIT = float(np.finfo(np.float32).max) / 4  # so that differences stay within float32
MARKERS = {"None": lambda: None, "nan": lambda: np.nan, "NA": lambda: pandas().NA}  # of gaps


def pandas() -> Any:
    r"""The module pandas, which only tables need."""
    return import_extra("pandas", "tables", "tables, and rows with missing values, need")


def is_date(dtype: Any) -> bool:
    r"""Whether a dtype is one of dates, with or without a time zone."""
    return isinstance(dtype, np.dtype | pandas().DatetimeTZDtype) and dtype.kind == "M"


def measured(series: pd.Series, date: bool, argument: str) -> Array:
    r"""Float64 (n,) of a series of numbers, or seconds since 1970 of dates; NaN where missing."""
    module, dtype = pandas(), series.dtype
    if date:
        if not is_date(dtype):
            expected = "dates: pandas.to_datetime makes them"
            raise ArgumentError(argument, f"values of dtype {dtype}", expected)
        if isinstance(dtype, module.DatetimeTZDtype):
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        whole, rest = np.divmod(series.to_numpy().view(np.int64), ticks := TICKS[series.dt.unit])
        return np.where(series.isna(), np.nan, whole + rest / ticks)
    kind = module.api.types.infer_dtype(series, skipna=True)  # NumPy would read strings as numbers
    if kind not in ("integer", "floating", "mixed-integer-float", "boolean", "empty"):
        raise ArgumentError(argument, f"{kind} values ({dtype})", "numbers")
    values = np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if np.isinf(values).any():
        received = f"infinity, the first in row {np.isinf(values).argmax()}"
        raise ArgumentError(argument, received, "finite numbers, or missing values")
    if (np.abs(values) > LIMIT).any():
        received = f"numbers of up to {np.nanmax(np.abs(values)):g}"
        raise ArgumentError(argument, received, f"numbers within ±{LIMIT:.2g}, for float32")
    return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Column:
    r"""One column of a table."""

    name: str | int  # in frames
    key: str  # among tensors
    kind: str  # "number", "whole number", "date", "flag", "category"; "nothing" if all is missing
    dtype: str  # the name of its pandas dtype
    missing: int = 0  # how many values were missing in the data
    constant: bool = False  # then it has no tensors, and frames get its one value
    marker: str = "nan"  # of missing values in a column of Python objects: one of `MARKERS`

    @property
    def argument(self) -> str:
        r"""Its name in error messages."""
        return f"df[{self.name!r}]"

    @property
    def keys(self) -> tuple[str, ...]:
        r"""The names of its tensors."""
        mask = getattr(self, "mask", None)
        values = () if self.constant else (self.key,)
        return values if mask is None else (*values, mask)

    def spec(self) -> dict[str, Any]:
        r"""All of it, as JSON can hold it."""
        return {"type": type(self).__name__} | dataclasses.asdict(self)

    def _refuse_gaps(self, gone: Array) -> None:
        r"""Refuse missing values, which a student that was trained without them cannot use."""
        if gone.any():
            received = f"{gone.sum()} missing values, the first in row {gone.argmax()}"
            expected = "none, as in the data that the student was made with: fill them in first"
            raise ArgumentError(self.argument, received, expected)

    def _series(self, values: Array, gone: Array) -> Any:
        r"""A series of the column's dtype, with missing values in its own way."""
        pd = pandas()
        if self.dtype == "object":
            values = values.astype(object)
            values[gone] = MARKERS[self.marker]()
            return pd.Series(values, dtype=object)
        series = pd.Series(values).astype(self.dtype)
        return series.mask(gone) if gone.any() else series


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(_Column):
    r"""Numbers, or seconds of dates, less an origin: float64 (n,), missing ones filled."""

    origin: float = 0.0  # zero where float32 has digits enough
    step: float = 0.0  # of which values are whole multiples, from the origin; 0 for real numbers
    low: float = -LIMIT  # what the dtype can hold, where there is a step
    high: float = LIMIT
    fill: float = 0.0  # the median, less the origin
    mean: float = 0.0  # less the origin
    scale: float = 1.0  # the standard deviation, or 1 if that is 0
    mask: str | None = None  # the key of the mask; None if nothing was missing

    @property
    def counts(self) -> bool:
        r"""Whether values are whole numbers, if only as floats, as pandas keeps those with gaps."""
        return self.step > 0 and self.kind != "date"

    def values(self, x: Mapping[str, Tensor]) -> Array:
        r"""Float64 (n,) of the column's tensor, less the origin; NaN where missing."""
        values = x[self.key].numpy(force=True).astype(np.float64)
        return values if self.mask is None else np.where(x[self.mask].cpu(), np.nan, values)

    def encode(self, series: pd.Series) -> dict[str, Array]:
        r"""Arrays (n,) by key of a pandas series of such values."""
        raw = measured(series, self.kind == "date", self.argument)
        if self.kind == "date" and (", " in str(series.dtype)) != (", " in self.dtype):
            raise ArgumentError(self.argument, f"dates of {series.dtype}", f"{self.dtype}")
        gone = np.isnan(raw)
        value = np.where(gone, self.fill, raw - self.origin)
        if self.mask is not None:
            return {self.key: value, self.mask: gone}
        self._refuse_gaps(gone)
        return {self.key: value}

    def decode(self, parts: Mapping[str, Array], n: int) -> Any:
        r"""The pandas series of n values, of arrays (n,) by key."""
        value = np.full(n, self.fill) if self.constant else parts[self.key].astype(np.float64)
        if not np.isfinite(value).all():
            raise ArgumentError(f"batch[{self.key!r}]", "NaN or infinity", "finite numbers")
        gone = parts[self.mask].astype(bool) if self.mask else np.zeros(n, bool)
        if not self.step:
            return self._series(self.origin + value, gone)
        value = np.clip(value, self.low - self.origin, self.high - self.origin)
        unit = (re.findall(r"datetime64\[(\w+)", self.dtype) or [""])[0]
        ticks = TICKS.get(unit, 1)
        steps = np.rint(value / self.step).astype(np.int64)
        whole = int(self.origin) * ticks + steps * round(self.step * ticks)
        exact = self.kind in ("whole number", "date")  # of a date, ticks since 1970 in UTC
        return self._series(whole if exact else whole + 0.0, gone)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Category(_Column):
    r"""One of K categories: int64 codes (n,) from 0 to K − 1; K is unknown, K + 1 is missing."""

    categories: tuple[Any, ...] = ()  # all strings, whole numbers, floats or booleans
    values: str | None = None  # the dtype of the categories of a categorical dtype
    ordered: bool = False  # of a categorical dtype
    frequent: int = 0  # the code of the most frequent category; K + 1 if all values were missing

    @property
    def unknown(self) -> int:
        r"""The code of what is none of the categories."""
        return len(self.categories)

    @property
    def gone(self) -> int:
        r"""The code of a missing value."""
        return len(self.categories) + 1

    def encode(self, series: pd.Series) -> dict[str, Array]:
        try:
            indices, distinct = pandas().factorize(series)
        except TypeError:
            raise ArgumentError(self.argument, "values that are no scalars", "categories") from None
        text = any(isinstance(value, str) for value in self.categories)
        known = {value: code for code, value in enumerate(self.categories)}
        if others := [value for value in distinct if isinstance(value, str) != text]:
            kind = "strings" if text else f"values such as {self.categories[0]!r}"
            raise ArgumentError(self.argument, f"the value {others[0]!r}", f"{kind}, as before")
        codes = [known.get(value, self.unknown) for value in distinct]
        if not self.missing:
            self._refuse_gaps(indices < 0)
        return {self.key: np.asarray([*codes, self.gone], np.int64)[indices]}

    def decode(self, parts: Mapping[str, Array], n: int) -> Any:
        codes = np.full(n, self.frequent) if self.constant else parts[self.key]
        if codes.dtype.kind not in "iu" or (n and not 0 <= codes.min() <= codes.max() <= self.gone):
            expected = f"whole numbers from 0 to {self.gone}"
            raise ArgumentError(f"batch[{self.key!r}]", f"codes of {codes.dtype}", expected)
        codes = np.where(codes == self.unknown, self.frequent, codes)  # which any teacher takes
        gone = codes == self.gone
        if gone.any() and not self.missing:
            received = f"{self.gone}, the code of a missing value"
            raise ArgumentError(f"batch[{self.key!r}]", received, "no missing values, as before")
        pd = pandas()
        if self.values is not None:
            index = pd.Index(list(self.categories), dtype=self.values)
            dtype = pd.CategoricalDtype(index, self.ordered)
            return pd.Series(pd.Categorical.from_codes(np.where(gone, -1, codes), dtype=dtype))
        values = np.array([*self.categories, None, None], dtype=object)[codes]
        objects = self.dtype == "object"
        return self._series(values, gone) if objects else pd.Series(values, dtype=self.dtype)


Column: TypeAlias = Number | Category


def column_of(spec: Mapping[str, Any]) -> Column:
    r"""The column that a spec describes."""
    name = spec.get("type") if isinstance(spec, Mapping) else None
    kind: Any = next((kind for kind in (Number, Category) if kind.__name__ == name), None)
    if kind is None or set(spec) != {"type", *(field.name for field in dataclasses.fields(kind))}:
        raise ArgumentError("spec", reprlib.repr(spec), "the result of Table.spec()")
    where = f"spec.columns[{spec['name']!r:.40}]"
    fields = {name: value for name, value in spec.items() if name != "type"}
    column: Column = read_record(kind, fields, where)
    choice(f"{where}.marker", column.marker, MARKERS)
    _check_dtype(f"{where}.dtype", column.dtype)
    if isinstance(column, Number):
        unit = (re.findall(r"datetime64\[(\w+)", column.dtype) or [""])[0]
        if column.scale <= 0 or column.step < 0 or column.low > column.high:
            received = f"scale {column.scale:g}, step {column.step:g}, low {column.low:g}"
            raise ArgumentError(where, received, "a scale above 0, a step from 0, low up to high")
        if column.kind == "date" and unit not in TICKS:
            raise ArgumentError(f"{where}.dtype", shown(column.dtype), "a type of dates")
        return column
    if not 0 <= column.frequent <= column.gone or column.frequent == column.unknown:
        expected = f"a code from 0 to {column.gone}, but for {column.unknown}"
        raise ArgumentError(f"{where}.frequent", column.frequent, expected)
    kinds = {type(value) for value in column.categories}
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        expected = "strings, whole numbers, floats or booleans"
        raise ArgumentError(f"{where}.categories", "values of other or several types", expected)
    if column.values is not None:
        _check_dtype(f"{where}.values", column.values)
    return column


def _check_dtype(where: str, name: str) -> None:
    r"""Refuse a name that pandas does not know as a type."""
    try:
        pandas().api.types.pandas_dtype(name)
    except (TypeError, ValueError, LookupError) as error:
        raise ArgumentError(where, repr(name[:60]), "a dtype of pandas") from error
