r"""Values of a pandas series as arrays: numbers, dates as seconds, places among the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["LIMIT", "TICKS", "factorized", "measured", "pandas"]

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
r"""Ticks a second of NumPy's units of time."""

LIMIT = float(np.finfo(np.float32).max) / 4
r"""The largest number that is taken, so that differences stay within float32."""

ROWS = 32
r"""Rows up to which values are looked at one by one."""

NUMERIC = ("integer", "floating", "mixed-integer-float", "boolean", "empty")
r"""What pandas calls objects that are numbers."""


def pandas() -> Any:
    r"""The module pandas, which nothing but tables needs."""
    try:
        import pandas as module
    except ImportError:
        raise LimbeckError("df: tables need pandas: pip install 'limbeck[tables]'") from None
    return module


def factorized(series: Any) -> tuple[np.ndarray[Any, Any], Any]:
    r"""Places (n,) among the values that occur, −1 where they are missing; and these values.

    Each stands there once, but for a few rows, where looking for equals takes longer than it
    saves. Lists and the like are a TypeError.
    """
    pd = pandas()
    if len(series) > ROWS:
        found: tuple[np.ndarray[Any, Any], Any] = pd.factorize(series)
        return found
    places, values = list[int](), list[Any]()
    for value in series.tolist():  # quicker, if they are few
        hash(value)
        gone = pd.isna(value) is True
        places.append(-1 if gone else len(values))
        values += [] if gone else [value]
    return np.array(places, int), values


def measured(series: Any, date: bool, argument: str) -> np.ndarray[Any, Any]:
    r"""Float64 (n,) of a series of numbers, or seconds since 1970 of dates; NaN where missing."""
    pd = pandas()
    if date:
        if not isinstance(series.dtype, np.dtype | pd.DatetimeTZDtype) or series.dtype.kind != "M":
            received = f"values of dtype {series.dtype}"
            raise ArgumentError(argument, received, "dates: pandas.to_datetime makes them")
        if isinstance(series.dtype, pd.DatetimeTZDtype):
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        ticks = TICKS[series.dt.unit]
        whole = series.to_numpy().view(np.int64)
        return np.where(series.isna(), np.nan, whole // ticks + whole % ticks / ticks)
    plain = isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf"
    if not plain and (not pd.api.types.is_numeric_dtype(series.dtype) or series.dtype.kind == "c"):
        found = pd.api.types.infer_dtype(series, skipna=True)  # NumPy would read strings as numbers
        if found not in NUMERIC:
            raise ArgumentError(argument, f"{found} values ({series.dtype})", "numbers")
    gaps = {} if plain else {"na_value": np.nan}
    values = np.asarray(series.to_numpy(dtype=np.float64, **gaps))
    if np.isinf(values).any():
        first = int(np.isinf(values).argmax())
        received = f"infinity, the first in row {first}"
        raise ArgumentError(argument, received, "finite numbers, or missing values")
    if (np.abs(values) > LIMIT).any():
        received = f"numbers of up to {np.nanmax(np.abs(values)):g}"
        raise ArgumentError(argument, received, f"numbers within ±{LIMIT:.2g}, for float32")
    return values
