r"""Comparison of student and teacher: predictions on the same rows, measures, differences."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from limbeck.arrays import as_part, as_plain_array, as_weights
from limbeck.compression.fidelity import measures as m
from limbeck.compression.fidelity.measures import MEASURES, Figure, mean
from limbeck.errors import ArgumentError
from limbeck.teachers.keys import missing
from limbeck.teachers.row_teacher import check_outputs, class_columns

MIN_CLASS_ROWS = 30  # test rows that a class must have: a recall of fewer rows says little
SMALL = 10  # groups of fewer rows are pooled, since their errors would be too large
ERRORS = 3.0  # paired standard errors from which a student is called worse in a subgroup


@dataclass(frozen=True, eq=False)
class Predictions:
    r"""Predictions (n, K) of several models on the same rows."""

    task: str
    by_model: dict[str, np.ndarray]  # of "teacher", "student" and perhaps "baseline"
    y: np.ndarray | None  # labels (n, K) of 0 and 1, or values
    classes: list[Any]  # K names, of classes, labels or targets
    weight: m.Weight = 1.0  # (n,), of mean 1, or 1.0

    @property
    def truth(self) -> np.ndarray:
        r"""The labels, or without them the teacher's predictions, (n, K)."""
        return self.by_model["teacher"] if self.y is None else self.y

    @cached_property
    def rows(self) -> dict[str, dict[str, np.ndarray]]:
        r"""Arrays (n,) of measures, by model; the teacher is not compared with itself."""
        rows = {}
        for model, p in self.by_model.items():
            teacher = None if model == "teacher" else self.by_model["teacher"]
            rows[model] = m.measure_rows(self.task, p, self.y, teacher, self.weight)
        return rows

    def weights(self, rows: np.ndarray | slice) -> m.Weight:
        r"""The weights of some rows, of mean 1; equal ones if all of them are 0."""
        if isinstance(self.weight, float):
            return self.weight
        total = self.weight[rows].mean()
        return self.weight[rows] / total if total > 0 else 1.0

    def decisions(self, p: np.ndarray) -> np.ndarray:
        r"""The most probable class, or the labels above one half, as booleans (n, K)."""
        if self.task == "classification":
            return p.argmax(1)[:, None] == np.arange(p.shape[1])
        return p > 0.5

    def select(self, rows: np.ndarray | slice, columns: slice = slice(None)) -> Predictions:
        r"""Some of the rows, or some of the labels or targets."""
        by_model = {model: p[rows, columns] for model, p in self.by_model.items()}
        y = None if self.y is None else self.y[rows, columns]
        return Predictions(self.task, by_model, y, self.classes[columns], self.weights(rows))


def align(
    task: str, by_model: Mapping[str, Any], y: object = None, classes: object = None,
    sample_weight: object = None,
) -> Predictions:  # fmt: skip
    r"""Predictions with labels and weights that were checked against them, in one form."""
    arrays: dict[str, np.ndarray] = {}
    for model, p in by_model.items():
        if p is None:
            continue
        if not len(p):
            raise ArgumentError("X", "no rows", "one row or more")
        p = np.asarray(p).astype(np.float64).reshape(len(p), -1)
        check_outputs(p, task, model)
        arrays[model] = p if task == "regression" else p.clip(0, 1)  # off by rounding
        if task == "classification":
            arrays[model] /= arrays[model].sum(1, keepdims=True)
    n, outputs = arrays["teacher"].shape
    names = list(range(outputs)) if classes is None else np.asarray(classes).tolist()
    if len(set(map(str, names))) != outputs:
        raise ArgumentError("classes", names, f"{outputs} different names, one for each column")
    labels, weight = None if y is None else _labels(y, task, n, names), as_weights(sample_weight, n)
    return Predictions(task, arrays, labels, names, 1.0 if weight is None else weight)


def _labels(y: object, task: str, n: int, names: list[Any]) -> np.ndarray:
    values = as_plain_array(y.toarray() if hasattr(y, "toarray") else y, "y")
    if task == "classification":
        if values.size != n or values.ndim > 2:
            raise ArgumentError("y", f"shape {values.shape}", f"one label for each row, ({n},)")
        return np.eye(len(names))[class_columns(values.ravel(), names, "y")]
    shape = (n, len(names))
    rows = values.shape[:1] == (n,) and values.size == n * len(names)
    if values.dtype.kind not in "biuf" or not rows:
        raise ArgumentError("y", f"shape {values.shape} of {values.dtype}", f"numbers, {shape}")
    values = as_part(values.reshape(shape), "y").values.double().numpy()
    if task == "multilabel" and not np.isin(values, (0, 1)).all():
        received = f"numbers between {values.min():g} and {values.max():g}"
        raise ArgumentError("y", received, "0 and 1 alone: a column for each label")
    return values


@dataclass
class Comparison:
    r"""Measures of several models on the same examples, by model and name."""

    rows: int
    measures: dict[str, dict[str, Figure]]
    # the student's from another model, or from itself "elsewhere", on other examples
    differences: dict[str, dict[str, Figure]] = field(default_factory=dict)


ClassRows = Mapping[str, dict[str, np.ndarray]]  # arrays (n,) by model and measure


def compare(data: Predictions, of_classes: ClassRows | None = None) -> Comparison:
    r"""Every measure that predictions and labels allow, and arrays (n,) of those of classes."""
    more = of_classes or {}
    rows = {model: {**arrays, **more.get(model, {})} for model, arrays in data.rows.items()}
    result = _compared(rows, len(data.truth))
    if data.task == "regression":
        for model in rows.keys() - {"teacher"}:
            teacher, p = data.by_model["teacher"], data.by_model[model]
            result.measures[model] |= m.difference_quantiles(teacher, p, data.weight)
    return result


def _compared(rows: ClassRows, n: int) -> Comparison:
    r"""The means of arrays (n,), and of their differences from the student's where both have it."""
    measures = {model: {k: mean(a) for k, a in arrays.items()} for model, arrays in rows.items()}
    student = rows["student"]
    differences = {
        other: {k: mean(student[k] - arrays[k]) for k in student.keys() & arrays.keys()}
        for other, arrays in rows.items()
        if other != "student"
    }
    return Comparison(n, measures, differences)


def by_group(data: Predictions, columns: Mapping[str, object]) -> dict[str, dict[str, Comparison]]:
    r"""Comparisons within the subgroups of some columns."""
    _, name = decisive(data.task, False)
    every = MEASURES[name].rows[data.task](data.by_model["teacher"], data.by_model["student"])
    parts: dict[str, dict[str, Comparison]] = {}
    for column, groups in subgroups(columns, len(every)).items():
        parts[column] = {group: compare(data.select(rows)) for group, rows in groups.items()}
        for group, rows in groups.items():
            if len(rows) < len(every):
                others = np.delete(np.arange(len(every)), rows)
                parted = (m.weighted(every[part], data.weights(part)) for part in (rows, others))
                here, there = map(mean, parted)
                error = float(np.hypot(here.std_error, there.std_error))
                gap = Figure(here.value - there.value, error)
                parts[column][group].differences["elsewhere"] = {name: gap}
    return parts


def by_column(data: Predictions) -> dict[str, dict[str, Comparison]]:
    r"""Comparisons of each of several labels, or targets."""
    if data.task == "classification" or len(data.classes) < 2:
        return {}
    kind = "each label" if data.task == "multilabel" else "each target"
    parts = (data.select(slice(None), slice(k, k + 1)) for k in range(len(data.classes)))
    return {kind: {str(part.classes[0]): compare(part) for part in parts}}


def by_class(data: Predictions) -> dict[str, Comparison]:
    r"""Recall and KL among the rows of each class or label; without labels, the teacher's."""
    if data.task == "regression":
        return {}
    truth, parts = data.decisions(data.truth), {}
    for k, name in enumerate(data.classes):
        members = np.flatnonzero(truth[:, k])
        if not len(members):
            continue
        part, rows = data.select(members), dict[str, dict[str, np.ndarray]]()
        for model, p in part.by_model.items():
            hits = m.weighted(part.decisions(p)[:, k].astype(float), part.weight)
            rows[model] = {"recall": hits} if data.y is not None or model != "teacher" else {}
            if model != "teacher":
                kl = MEASURES["kl"].rows[data.task](part.by_model["teacher"], p)
                rows[model]["kl"] = m.weighted(kl, part.weight)
        parts[str(name)] = _compared(rows, len(members))
    return parts


def decisive(task: str, labels: bool) -> tuple[str, str]:
    r"""The model that a student is compared with in a subgroup, and the measure."""
    if not labels:
        return "elsewhere", "difference" if task == "regression" else "agreement"
    return "teacher", "rmse" if task == "regression" else "accuracy"


def advantage(task: str, labels: bool, part: Comparison) -> float:
    r"""Standard errors by which the student is better in a subgroup; infinite if unknown."""
    other, name = decisive(task, labels)
    gap = part.differences.get(other, {}).get(name)
    if gap is None or math.isnan(gap.value + gap.std_error):
        return math.inf
    better = gap.value if MEASURES[name].rises else -gap.value
    return better / max(gap.std_error, 1e-300) if better else 0.0


def subgroups(columns: Mapping[str, object], n: int) -> dict[str, dict[str, np.ndarray]]:
    r"""The rows of every subgroup, by column and by group; small groups are one."""
    result = {}
    for name, column in columns.items():
        values = np.asarray(column)
        if values.shape != (n,):
            raise ArgumentError(f"groups[{name!r}]", f"shape {values.shape}", f"{n} values, ({n},)")
        names, order = _group_names(values)
        # as objects: texts of NumPy's lose zeros at their end
        rows = {group: np.flatnonzero(names == np.array(group, object)) for group in order}
        parts = {group: part for group, part in rows.items() if len(part)}
        small = [group for group, part in parts.items() if len(part) < SMALL]
        if len(small) > 1:
            pooled = np.sort(np.concatenate([parts.pop(group) for group in small]))
            parts[f"other ({len(small)} groups)"] = pooled
        result[str(name)] = parts
    return result


def _group_names(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    r"""The name (n,) of each row's group, and all names in order."""
    kind = values.dtype
    gone = missing(values)
    present = values[~gone]
    names = np.full(len(values), "missing", dtype=object)
    numeric = kind.kind in "iufmM"
    if kind.kind == "O" and len(present):
        numeric = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in present)
    if not numeric:
        names[~gone] = np.array([str(value) for value in present.tolist()], dtype=object)
        order = sorted(set(names[~gone]))
    else:
        seconds = present.astype(f"{kind.kind}8[s]") if kind.kind in "mM" else present
        amounts = seconds.astype(float)
        edges = np.unique(amounts)
        order = [_group_number(value, kind) for value in edges[:11]]
        if len(edges) > 10:
            quartiles = np.quantile(amounts, [0.25, 0.5, 0.75], method="inverted_cdf")
            edges = np.unique(quartiles)
            shown = [_group_number(edge, kind) for edge in edges]
            between = [f"{low} to {high}" for low, high in pairwise(shown)]
            order = [f"up to {shown[0]}", *between, f"above {shown[-1]}"]
        names[~gone] = np.array(order, dtype=object)[np.searchsorted(edges, amounts)]
    return names, order + ["missing"] * bool(gone.any())


def _group_number(value: float, dtype: np.dtype[Any]) -> str:
    if dtype.kind in "mM":
        moment = np.array(int(value)).astype(f"{dtype.kind}8[s]")
        return str(moment.astype("M8[D]") if dtype.kind == "M" else moment)
    whole = abs(value) < 1e15 and (value == int(value) or abs(value) >= 1e4)
    return f"{value:.0f}" if whole else f"{value:.4g}"
