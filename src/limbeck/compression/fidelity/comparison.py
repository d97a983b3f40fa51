r"""A student beside its teacher: measures and their differences, all with errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limbeck.compression.fidelity.aligned import Aligned
from limbeck.compression.fidelity.calibration import calibration_errors, outcomes
from limbeck.compression.fidelity.measures import MEASURES, Figure, mean, measured
from limbeck.compression.fidelity.subgroups import SMALL, subgroups

__all__ = ["Comparison", "by_column", "by_group", "compare", "decisive", "worse"]

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
