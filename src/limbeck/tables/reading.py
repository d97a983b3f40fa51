r"""Which kind of column a pandas series is, and which whole numbers look like codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from limbeck.errors import ArgumentError, warn
from limbeck.tables.columns import LIMIT, TICKS, Category, Column, Number, is_date, measured, pandas

if TYPE_CHECKING:
    import pandas as pd

KINDS = {  # of columns, by the type that pandas infers
    "string": "category", "boolean": "flag", "integer": "whole number", "floating": "number",
    "mixed-integer-float": "number", "empty": "nothing", "categorical": "categorical",
}  # fmt: skip

FEW_VALUES = 128  # different values up to which a number may have a knot at each
MOST_FEATURES = 1024  # of all numbers with a knot at each value
ID_NAME = re.compile(r"(^|[\W_])(?i:id|index|uuid)$|[a-z]I[Dd]$")


def read(series: pd.Series, mask: str, category: bool) -> Column:
    r"""The column that a series is; with a mask's key, and whether categories were requested."""
    name, gone = _plain(series.name), series.isna().to_numpy()
    about = {"name": name, "key": str(name), "dtype": _name(series.dtype)}
    about["missing"] = int(gone.sum())
    kind = _kind(series, f"df[{name!r}]")
    if about["dtype"] == "object" and gone.any():
        first = series.to_numpy()[gone][0]
        about["marker"] = "None" if first is None else "NA" if first is pandas().NA else "nan"
    if kind == "categorical":
        return _categorical(series, about)
    if gone.all():
        return Category(**about, kind="nothing", constant=True, frequent=1)
    if kind in ("category", "flag") or category:
        return _category(series, about, kind, category)
    return _number(series, about, kind, mask)


def _kind(series: pd.Series, argument: str) -> str:
    if is_date(series.dtype):
        return "date"
    kind = pandas().api.types.infer_dtype(series, skipna=True)
    if kind not in KINDS:
        expected = "numbers, booleans, strings, dates or categories of these: convert the column "
        expected += "with .astype(str), pandas.to_numeric or pandas.to_datetime, or leave it out "
        expected += "with limbeck.Table(df, drop=…)"
        raise ArgumentError(argument, f"values of kind {kind} ({series.dtype})", expected)
    return KINDS[kind]


def _name(dtype: Any) -> str:
    r"""The dtype's name, by which pandas finds it again."""
    return f"string[{dtype.storage}]" if str(dtype) == "string" else str(dtype)


def _plain(value: object) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _categorical(series: pd.Series, about: dict[str, Any]) -> Category:
    r"""The column of a categorical dtype, with all its categories, used or not."""
    dtype = series.dtype
    categories = tuple(map(_plain, dtype.categories))
    _check(categories, about)
    codes = series.cat.codes.to_numpy()
    used = np.bincount(codes[codes >= 0], minlength=len(categories))
    return Category(
        **about, kind="category" if used.any() else "nothing", categories=categories,
        constant=bool((used > 0).sum() + (about["missing"] > 0) <= 1),
        values=_name(dtype.categories.dtype), ordered=bool(dtype.ordered),
        frequent=int(used.argmax()) if used.any() else len(categories) + 1,
    )  # fmt: skip


def _category(series: pd.Series, about: dict[str, Any], kind: str, chosen: bool) -> Category:
    counts = series.value_counts()  # without missing ones, the most frequent first
    values = [_plain(value) for value in counts.index]
    _check(values, about)
    present, argument, names = int(counts.sum()), f"df[{about['name']!r}]", [about["name"]]
    # 20 different strings are categories, however few the rows; half of all look like ids
    dates = kind == "category" and not chosen and len(values) > 20 and _are_dates(values[:20])
    if kind == "category" and not chosen and len(values) > max(20, 0.5 * present):
        way = f"dates of pandas.to_datetime({argument}), with a teacher that takes them, or "
        like, way = ("dates", way) if dates else ("ids or free text", "")
        received = f"{len(values):,} different strings in {present:,} rows, like {like}"
        expected = f"{way}limbeck.Table(df, drop={names!r}), which leaves the column out, for the "
        expected += f"teacher too, or one with categories={names!r}, which takes them as categories"
        raise ArgumentError(argument, received, expected)
    if dates:
        warn(
            f"{argument} has {len(values):,} strings like dates, which are taken as categories: "
            "the student will not know other dates. pandas.to_datetime makes dates of them, for a "
            f"teacher that takes these; limbeck.Table(df, categories={names!r}) takes them as "
            "categories without this warning"
        )
    categories = (False, True) if kind == "flag" else tuple(sorted(values))
    return Category(
        **about, kind=kind if kind == "flag" else "category", categories=categories,
        constant=len(values) == 1 and not about["missing"], frequent=categories.index(values[0]),
    )  # fmt: skip


def _are_dates(values: Sequence[object]) -> bool:
    r"""Whether all values are strings of dates, such as 2026-11-19."""
    if not all(isinstance(value, str) and "-" in value for value in values):
        return False
    pd = pandas()
    return bool(pd.to_datetime(pd.Series(values), format="ISO8601", errors="coerce").notna().all())


def _check(values: Iterable[object], about: dict[str, Any]) -> None:
    kinds = {type(value) for value in values}
    if not kinds <= {str, int, float, bool} or len(kinds) > 1:
        received = "categories of type " + ", ".join(sorted(kind.__name__ for kind in kinds))
        expected = "strings, whole numbers, floats or booleans, of one type: .astype(str)"
        raise ArgumentError(f"df[{about['name']!r}]", received, expected)


def _number(series: pd.Series, about: dict[str, Any], kind: str, mask: str) -> Number:
    argument = f"df[{about['name']!r}]"
    values = measured(series, kind == "date", argument)
    values = values[~np.isnan(values)]
    constant = bool((values == values[0]).all()) and not about["missing"]
    low, high = float(values.min()), float(values.max())
    top, spread = max(-low, high), high - low
    whole = top <= 2**53 and not constant and bool((values == np.rint(values)).all())
    step, bounds, origin = 0.0, (-LIMIT, LIMIT), 0.0
    if kind == "date":
        step = _step(series, ticks := TICKS[series.dt.unit])
        bounds = -(2.0**62) / ticks, 2.0**62 / ticks
        origin = low + step * np.rint(spread / 2 / step) if step >= 1 else np.floor(low)
    elif kind == "whole number" or whole:  # pandas keeps whole numbers with gaps as floats
        if top > 2**53:
            received, names = f"whole numbers of up to {top:.3g}, like ids", [about["name"]]
            way = f"limbeck.Table(df, drop={names} or categories={names})"
            raise ArgumentError(argument, received, f"numbers up to 2**53, or {way}")
        step, bounds = 1.0, (-(2.0**53), 2.0**53)
        if kind == "whole number":
            limits = np.iinfo(_numpy(series.dtype, kind))
            bounds = max(float(limits.min), -(2.0**62)), min(float(limits.max), 2.0**62)
        far = top > 2**24 and _numpy(series.dtype, kind) != np.float32  # which has its own digits
        origin = float(np.rint((low + high) / 2)) if far or constant else 0.0
    # float32 lacks digits, if a number is 1,000 times its range away from zero
    elif constant or (top > 1000 * spread and _numpy(series.dtype, kind).itemsize > 4):
        origin = low + spread / 2
    values = values - origin
    if not constant:
        values = values.astype(np.float32).astype(np.float64)
    median, mean = float(np.median(values)), float(values.mean())
    # once scaled, no value is farther than 20 deviations from the mean
    deviation = max(float(values.std()), float(np.abs(values - mean).max()) / 20)
    fill = step * float(np.rint(median / step)) if step else median
    scale = deviation if deviation > np.finfo(np.float32).tiny else 1.0
    return Number(
        **about, constant=constant, kind=kind, origin=float(origin), step=step, low=bounds[0],
        high=bounds[1], fill=fill, mean=mean, scale=scale,
        mask=mask if about["missing"] else None,
    )  # fmt: skip


def _numpy(dtype: Any, kind: str) -> np.dtype[Any]:
    r"""The NumPy dtype of the numbers that a column of some dtype holds."""
    if str(dtype) == "object":
        return np.dtype(np.int64 if kind == "whole number" else np.float64)
    return np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype)))


def _step(series: pd.Series, ticks: int) -> float:
    r"""The longest unit of time that dates differ by whole multiples of, in seconds."""
    whole = series[series.notna()].astype(np.int64).to_numpy()
    if not (whole % ticks).any():
        gaps, units = whole - whole[0], (86400, 3600, 60, 1)
        return next(unit for unit in units if not (gaps % (unit * ticks)).any())
    parts = (part for part in (10**3, 10**6, 10**9) if part <= ticks)
    return 1 / next(part for part in parts if not (whole % (ticks // part)).any())


def present(column: Number, x: Mapping[str, Tensor]) -> np.ndarray:
    r"""The values of a column that are not missing."""
    values = column.values(x)
    return values[~np.isnan(values)]


def place_knots(values: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    r"""Where a piecewise linear function of float32 values (n,) may bend, by their keys.

    Few values, as of codes and counts, are all knots; others have them at quantiles, and those of
    very many columns nowhere.
    """
    if len(values) > 256:  # as pixels or genes
        return {}
    knots, left = {}, MOST_FEATURES
    most = min(32, max(4, MOST_FEATURES // 2 // max(1, len(values))))
    distinct = {key: np.unique(column) for key, column in values.items()}
    for key in sorted(distinct, key=lambda key: len(distinct[key])):
        bends, rows = distinct[key], len(values[key])
        if len(bends) > min(FEW_VALUES, left, rows // 3):
            levels = np.linspace(0, 1, 1 + min(most, rows // 20))  # each between some rows
            bends = np.unique(np.quantile(values[key], levels).astype(np.float32))
        left -= len(bends)
        knots[key] = bends.tolist() if len(bends) > 2 else []  # two values are on a line
    return knots


def id_columns(columns: Iterable[Column], frame: pd.DataFrame) -> list[Any]:
    r"""Names of columns like ids: another whole number in each row, in order or named like ids."""
    names = []
    for column in columns:
        if column.kind != "whole number" or column.missing or len(frame) < 50:  # by chance
            continue
        series = frame[column.name]
        in_order = series.is_monotonic_increasing or series.is_monotonic_decreasing
        if series.is_unique and (in_order or ID_NAME.search(str(column.name))):
            names.append(column.name)
    return names


def repeated_numbers(columns: Iterable[Number], x: Mapping[str, Tensor]) -> list[Any]:
    r"""Names of columns whose numbers may be codes: too many for knots, each of them repeated."""
    names = []
    for column in columns:
        values = present(column, x)
        count = len(np.unique(values))
        if FEW_VALUES < count <= min(4096, len(values) / 5) and column.kind != "date":
            names.append(column.name)
    return names
