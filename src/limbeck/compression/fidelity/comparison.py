r"""A student beside its teacher: measures and their differences, all with errors."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from limbeck.compression.fidelity.calibration import Aligned, calibration_errors, outcomes
from limbeck.compression.fidelity.measures import MEASURES, Figure, mean, measured
from limbeck.errors import ArgumentError

__all__ = [
    "SMALL",
    "Comparison",
    "by_column",
    "by_group",
    "compare",
    "decisive",
    "subgroups",
    "worse",
]

SMALL = 10
r"""Groups of fewer rows are pooled: their errors would say little."""

DISTINCT = 10
r"""Columns of more distinct numbers than this are cut into quartiles."""

MISSING = "missing"


def subgroups(columns: Mapping[str, Any], n: int) -> dict[str, dict[str, np.ndarray]]:
    r"""The rows of every subgroup, by column and by group.

    Numbers with more than `DISTINCT` values, and dates, are cut into quartiles; missing values are
    a group of their own. Several groups of fewer than `SMALL` rows become one, however small.

    Arguments:
        columns: (n,) values by name: a dict, or a data frame.
        n: The number of rows that each column must have.

    >>> columns = {"size": ["S"] * 12 + ["L"] * 15 + ["XL"] * 2}
    >>> {name: len(rows) for name, rows in subgroups(columns, 29)["size"].items()}
    {'L': 15, 'S': 12, 'XL': 2}
    """
    if not callable(getattr(columns, "items", None)):
        received = f"a {type(columns).__name__}"
        raise ArgumentError("groups", received, "a dict of columns by name, or a data frame")
    found = {}
    for name, column in columns.items():
        values = np.asarray(column)
        if values.shape != (n,):
            raise ArgumentError(f"groups[{name!r}]", f"shape {values.shape}", f"{n} values, ({n},)")
        names, order = _named(values)
        place = {group: number for number, group in enumerate(order)}
        placed = np.array([place[group] for group in names], dtype=int)  # NumPy drops "\0" in words
        parts = {group: np.flatnonzero(placed == number) for group, number in place.items()}
        found[str(name)] = _pooled({group: rows for group, rows in parts.items() if len(rows)})
    return found


def _pooled(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    small = {group: rows for group, rows in parts.items() if len(rows) < SMALL}
    if len(small) < 2:
        return parts
    pooled = np.sort(np.concatenate(list(small.values())))
    large = {group: rows for group, rows in parts.items() if group not in small}
    return large | {f"other ({len(small)} groups)": pooled}


def _named(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    r"""The name (n,) of each row's group, and all names in order."""
    missing = _missing(values)
    present = values[~missing]
    names = np.full(len(values), MISSING, dtype=object)
    numeric = _as_numbers(present)
    if numeric is None:
        names[~missing] = np.array([str(value) for value in present.tolist()], dtype=object)
        order = sorted(set(names[~missing]))
    elif len(distinct := np.unique(numeric)) <= DISTINCT:
        order = [_group_number(value, values.dtype) for value in distinct]
        names[~missing] = np.array(order, dtype=object)[np.searchsorted(distinct, numeric)]
    else:
        ranks = np.array([0.25, 0.5, 0.75]) * len(numeric)
        edges = np.unique(np.sort(numeric)[np.ceil(ranks).astype(int) - 1])
        shown = [_group_number(edge, values.dtype) for edge in edges]
        between = [f"{low} to {high}" for low, high in pairwise(shown)]
        order = [f"up to {shown[0]}", *between, f"above {shown[-1]}"]
        names[~missing] = np.array(order, dtype=object)[np.searchsorted(edges, numeric)]
    return names, order + [MISSING] * bool(missing.any())


def _missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    words = {"None", "nan", "NaT", "<NA>"}  # comparing pandas' NA with itself gives no truth value
    return np.array([not isinstance(v, str) and str(v) in words for v in values], dtype=bool)


def _as_numbers(present: np.ndarray) -> np.ndarray | None:
    r"""Values as numbers, dates as seconds; None if they are neither."""
    kind = present.dtype.kind
    if kind == "O" and len(present):
        plain = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in present)
        return present.astype(float) if plain else None
    if kind in "mM":
        return present.astype(f"{kind}8[s]").astype(float)
    return present.astype(float) if kind in "iuf" else None


def _group_number(value: float, dtype: np.dtype[Any]) -> str:
    if dtype.kind in "mM":
        moment = np.array(int(value)).astype(f"{dtype.kind}8[s]")
        return str(moment.astype("M8[D]") if dtype.kind == "M" else moment)
    whole = abs(value) < 1e15 and (value == int(value) or abs(value) >= 1e4)
    return f"{value:.0f}" if whole else f"{value:.4g}"


Figures = dict[str, dict[str, Figure]]
r"""A value and its standard error, by model and by measure."""

ERRORS = 3.0
r"""Paired standard errors by which a student must be worse, to be called so."""


@dataclass
class Comparison:
    r"""Measures of several models on the same examples.

    Attributes:
        rows: How many examples.
        measures: By model ("teacher", "student", "baseline") and name, value and standard error.
        differences: By what the student is compared with, student minus that, with the paired
            standard error. "elsewhere" is the student itself on all other examples.
    """

    rows: int
    measures: Figures
    differences: Figures = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        figures = {
            name: {model: {m: list(f) for m, f in known.items()} for model, known in found.items()}
            for name, found in (("measures", self.measures), ("differences", self.differences))
        }
        return {"rows": self.rows, **figures}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Comparison:
        figures = [
            {
                model: {m: Figure(*map(_number, f)) for m, f in known.items()}
                for model, known in found
            }
            for found in (saved["measures"].items(), saved["differences"].items())
        ]
        return cls(saved["rows"], *figures)


def compare(
    found: Aligned, seed: int = 0, further: Mapping[str, Mapping[str, np.ndarray]] | None = None
) -> Comparison:
    r"""Every measure that predictions and labels allow.

    Arguments:
        found: What is compared.
        seed: Of the bootstrap.
        further: By model, arrays (n,) of measures beside those of `measured`.
    """
    task, predictions, y = found.task, found.predictions, found.y
    teacher = predictions["teacher"]
    arrays = {
        model: measured(task, p, y, None if model == "teacher" else teacher)
        | dict((further or {}).get(model, {}))
        for model, p in predictions.items()
    }
    measures = {model: {m: mean(a) for m, a in known.items()} for model, known in arrays.items()}
    student = arrays["student"]
    differences = {
        other: {m: mean(student[m] - a) for m, a in known.items() if m in student}
        for other, known in arrays.items()
        if other != "student"
    }
    if y is not None and task != "regression":
        models = {model: outcomes(task, p, y) for model, p in predictions.items()}
        pairs = {f"student - {other}": ("student", other) for other in differences}
        errors = calibration_errors(models, pairs, seed=seed)
        for model, known in measures.items():
            known["ece"] = errors[model]
        for other, known in differences.items():
            known["ece"] = errors[f"student - {other}"]
    ordered = [
        {model: {m: known[m] for m in MEASURES if m in known} for model, known in figures.items()}
        for figures in (measures, differences)
    ]
    return Comparison(len(teacher), *ordered)


def by_group(found: Aligned, columns: Any, seed: int = 0) -> dict[str, dict[str, Comparison]]:
    r"""The same for the subgroups of some columns."""
    name = faithful(found.task)
    every = measured(found.task, found.predictions["student"], None, found.predictions["teacher"])
    n = len(every[name])
    parts: dict[str, dict[str, Comparison]] = {}
    for column, groups in subgroups(columns, n).items():
        parts[column] = {}
        for group, rows in groups.items():
            part = parts[column][group] = compare(found.rows(rows), seed)
            if len(rows) < n:
                here, there = mean(every[name][rows]), mean(np.delete(every[name], rows))
                error = float(np.hypot(here.std_error, there.std_error))
                gap = Figure(here.value - there.value, error)
                part.differences["elsewhere"] = {name: gap}
    return parts


def by_column(found: Aligned, seed: int = 0) -> dict[str, dict[str, Comparison]]:
    r"""The same for each of several labels, or targets."""
    if found.task == "classification" or len(found.classes) < 2:
        return {}
    kind = "each label" if found.task == "multilabel" else "each target"
    return {kind: {str(c): compare(found.column(k), seed) for k, c in enumerate(found.classes)}}


def faithful(task: str) -> str:
    r"""The measure of faithfulness that is a mean over examples."""
    return "difference" if task == "regression" else "agreement"


def decisive(task: str, labels: bool) -> tuple[str, str]:
    r"""With what a student is compared in a subgroup, and by which measure."""
    if not labels:
        return "elsewhere", faithful(task)
    return "teacher", "rmse" if task == "regression" else "accuracy"


def worse(
    task: str, labels: bool, groups: dict[str, dict[str, Comparison]]
) -> list[tuple[str, str]]:
    r"""Columns and groups where the student is worse by more than three standard errors.

    With labels, worse than the teacher; without, less faithful than it is elsewhere.
    """
    other, name = decisive(task, labels)
    sign = 1 if MEASURES[name].rises else -1
    found = []
    for column, parts in groups.items():
        for group, part in parts.items():
            gap = part.differences.get(other, {}).get(name)
            if gap is None or part.rows < SMALL or not sign * gap.value < 0:
                continue
            if abs(gap.value) > ERRORS * gap.std_error:
                found.append((column, group))
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
