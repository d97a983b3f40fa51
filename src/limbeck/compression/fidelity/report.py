r"""How faithful a student is to its teacher, how good both are, and what they cost."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from limbeck.arguments import whole_number
from limbeck.compression.fidelity.calibration import Aligned, aligned, curve, outcomes
from limbeck.compression.fidelity.comparison import Comparison, by_column, by_group, compare, worse
from limbeck.compression.fidelity.cost import Cost, as_cost
from limbeck.compression.fidelity.measures import Figure, mean, measured
from limbeck.compression.fidelity.rare_classes import (
    ClassCount,
    RareClasses,
    kept_fraction,
    rare_classes,
)
from limbeck.compression.fidelity.tables import group_table, remarks, sentence, size_remarks, table
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import files
from limbeck.storage.files import plain

__all__ = ["Fidelity", "disagreements", "fidelity", "kept", "pairs", "plain"]

LARGEST = 20
r"""How many of the largest disagreements are kept."""

CLASSES, POINTS = 20, 1000
r"""Classes, and values of teacher and student, that are kept for pictures."""


def disagreements(found: Aligned) -> list[dict[str, Any]]:
    r"""The rows on which predictions are furthest apart, with both predictions and the label.

    "size" is half the sum over classes of absolute differences, or their mean over labels or
    targets.
    """
    teacher, student = (found.predictions[model] for model in ("teacher", "student"))
    gap = np.abs(teacher - student)
    size = gap.sum(1) / 2 if found.task == "classification" else gap.mean(1)  # ½Σ: 0 to 1
    rows = [row for row in np.argsort(-size, kind="stable")[:LARGEST].tolist() if size[row] > 0]
    known = [
        {"row": row, "size": size[row], "teacher": teacher[row], "student": student[row]}
        for row in rows
    ]
    for each, row in zip(known, rows, strict=True):
        if found.y is not None:
            label = found.y[row]
            each["label"] = found.classes[label] if found.task == "classification" else label
    return plain(known)


def pairs(found: Aligned, seed: int) -> dict[str, Any]:
    r"""What both predict together, for pictures.

    Of a classifier, counts (classes of the teacher, classes of the student) and the number of rows
    that differ, which with many classes is more than is counted apart; of a multi-label one,
    the share of rows where only one of both says yes, by label; of values, some rows of both.
    """
    teacher, student = (found.predictions[model] for model in ("teacher", "student"))
    if found.task == "regression":
        size = min(len(teacher), max(POINTS // teacher.shape[1], 100))
        rows = np.sort(np.random.default_rng(seed).choice(len(teacher), size, replace=False))
        return plain({"teacher": teacher[rows], "student": student[rows]})
    if found.task == "multilabel":
        one, two = teacher > 0.5, student > 0.5
        only = {"teacher": (one & ~two).mean(0), "student": (two & ~one).mean(0)}
        return plain(only)
    k = len(found.classes)
    counts = np.zeros((k, k), dtype=int)
    np.add.at(counts, (teacher.argmax(1), student.argmax(1)), 1)
    names = list(map(str, found.classes))
    differ = len(teacher) - counts.trace()
    if k > CLASSES:  # the classes with most disagreements, and one for all others
        apart = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
        first = np.sort(np.argsort(-apart, kind="stable")[: CLASSES - 1])
        place = np.full(k, CLASSES - 1)
        place[first] = np.arange(CLASSES - 1)
        pooled = np.zeros((CLASSES, CLASSES), dtype=int)
        np.add.at(pooled, (place[:, None], place[None]), counts)
        counts, names = pooled, [*(names[c] for c in first), f"other ({k - CLASSES + 1})"]
    return plain({"classes": names, "counts": counts, "differ": differ})


NAMES = {"teacher": "teacher", "student": "student", "baseline": "labels alone"}
FORMAT = "limbeck-fidelity-1"


@dataclass(repr=False)
class Fidelity(Comparison):
    r"""A report on a student. It prints as tables, and ends with a sentence to tell a colleague.

    Besides `rows`, `measures` and `differences`, as of every `Comparison`:

    Attributes:
        task: "classification", "multilabel" or "regression".
        classes: Names of the classes, labels or targets.
        names: What the columns of the table are called, by model.
        main: The measure that `kept` is about: of those in `kept_by`, the one that is kept least.
        kept: The fraction of the teacher's main measure that the student keeps; NaN where a ratio
            has no meaning, such as of an R² below zero.
        kept_error: Its standard error.
        kept_by: The fraction that is kept, by measure: "accuracy" or "r2" (without labels
            "agreement" or "teacher_r2"); "average_precision" and "rare_recall" of the rarest class
            with 30 test rows or more; "worst_recall" where another class is clearly lost.
        rarest: The class of "average_precision" and "rare_recall", with its number of test rows;
            None where no class but the most common one has enough rows.
        worst: The class of "worst_recall".
        unchecked: Classes with too few test rows to be checked; None in a report that was saved
            before rare classes were checked.
        costs: Parameters, bytes, latency, by model.
        by_group: The same measures by column and group.
        worse: Columns and groups where the student is worse by more than three standard errors.
        calibration: By model, columns "confidence", "frequency", "std_error" and "count" by bin.
        disagreements: The rows on which both differ most: "row", "size", predictions, "label".
        pairs: What both predict together: counts of classes, shares of labels, or values.
        notes: What else is known of the student, a sentence each.
    """

    task: str = ""
    classes: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=lambda: dict(NAMES))
    main: str = ""
    kept: float = math.nan
    kept_error: float = math.nan
    kept_by: dict[str, Figure] = field(default_factory=dict)
    rarest: ClassCount | None = None
    worst: ClassCount | None = None
    unchecked: list[ClassCount] | None = None
    costs: dict[str, Cost] = field(default_factory=dict)
    by_group: dict[str, dict[str, Comparison]] = field(default_factory=dict)
    worse: list[tuple[str, str]] = field(default_factory=list)
    calibration: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    pairs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def labelled(self) -> bool:
        r"""Whether there were labels to compare with."""
        return bool(self.differences["teacher"])

    def table(self) -> Table:
        r"""Models side by side."""
        return table(self)

    def sentence(self) -> str:
        r"""What a user would tell a colleague."""
        return sentence(self)

    def __str__(self) -> str:
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(self.table())
        if self.by_group:
            console.print(group_table(self))
        said = [*size_remarks(self), *remarks(self), *self.notes, self.sentence()]
        return "\n".join([console.export_text().rstrip(), *said])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        r"""Everything in plain numbers, words and lists, as JSON takes it; None for no number."""
        known = {name: getattr(self, name) for name in PLAIN}
        groups = {
            column: {group: part.to_dict() for group, part in parts.items()}
            for column, parts in self.by_group.items()
        }
        known["kept_by"] = {name: list(figure) for name, figure in self.kept_by.items()}
        for name in ("rarest", "worst"):
            count: ClassCount | None = known[name]
            known[name] = None if count is None else count._asdict()
        if self.unchecked is not None:
            known["unchecked"] = [count._asdict() for count in self.unchecked]
        costs = {model: asdict(cost) for model, cost in self.costs.items()}
        whole = super().to_dict() | known | {"costs": costs, "by_group": groups}
        return plain({"format": FORMAT, "sentence": self.sentence(), **whole})

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Fidelity:
        r"""A report of what `to_dict` gave."""
        if saved.get("format") != FORMAT:
            received = f"format {saved.get('format')!r}"
            raise ArgumentError("saved", received, f"{FORMAT!r}, as Fidelity.to_dict gives it")
        known = dict(saved)
        whole = Comparison.from_dict(known)
        known.setdefault("notes", [])  # reports of earlier versions have none
        own = {name: known[name] for name in PLAIN if name not in NEW or name in known}
        own["kept_by"] = {
            name: Figure(*(math.nan if part is None else part for part in figure))
            for name, figure in known.get("kept_by", {}).items()
        }
        for name in ("rarest", "worst"):
            own[name] = ClassCount(**known[name]) if known.get(name) else None
        if own.get("unchecked") is not None:
            own["unchecked"] = [ClassCount(**count) for count in own["unchecked"]]
        for name in ("kept", "kept_error"):
            own[name] = math.nan if own[name] is None else own[name]
        own["worse"] = [(column, group) for column, group in own["worse"]]
        own["costs"] = {model: as_cost(cost, model) for model, cost in known["costs"].items()}
        own["by_group"] = {
            column: {group: Comparison.from_dict(part) for group, part in parts.items()}
            for column, parts in known["by_group"].items()
        }
        return cls(whole.rows, whole.measures, whole.differences, **own)

    def shipped(self, files: Sequence[Path]) -> Fidelity:
        r"""The same report, with the size of the files that the student was exported to."""
        size = sum(file.stat().st_size for file in files)
        names = " and ".join(file.name for file in files)
        costs = self.costs | {"student": replace(self.costs["student"], bytes=size, files=names)}
        return replace(self, costs=costs)

    def save(self, path: str | Path) -> Path:
        r"""Write the report as a JSON file."""
        path = Path(path)
        files.write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Fidelity:
        r"""Read what `save` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ArgumentError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"report: {path} cannot be read ({error!r})") from error


NEW = ("kept_by", "rarest", "worst", "unchecked")
r"""Fields that older files lack."""

PLAIN = (
    "task", "classes", "names", "main", "kept", "kept_error", *NEW, "worse", "calibration",
    "disagreements", "pairs", "notes",
)  # fmt: skip


def fidelity(
    task: str,
    teacher: Any,
    student: Any,
    y: Any = None,
    *,
    baseline: Any = None,
    classes: Sequence[Any] | None = None,
    groups: Mapping[str, Any] | None = None,
    teacher_cost: Cost | Mapping[str, Any] | None = None,
    student_cost: Cost | Mapping[str, Any] | None = None,
    baseline_cost: Cost | Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Fidelity:
    r"""Compare the predictions of a student with its teacher's, and both with labels if there are.

    Arguments:
        task: "classification", "multilabel" or "regression".
        teacher: Its predictions (n, K): probabilities, of several labels independent ones, or
            values.
        student: Its predictions for the same rows.
        y: Labels: names in `classes` (n,), 0 and 1 (n, K), or values; None to compare with the
            teacher alone.
        baseline: Predictions of the same student trained on the labels alone.
        classes: K names of classes, labels or targets; None for 0 … K − 1.
        groups: Columns (n,) by name, or a data frame: the same measures for each of their values,
            numbers in quartiles.
        teacher_cost: Parameters, bytes and latency.
        student_cost: The student's.
        baseline_cost: The baseline's.
        names: What tables call "teacher", "student" and "baseline".
        notes: Sentences to print with the report.
        seed: Of the bootstrap, and of the choice of points for pictures.

    >>> taught = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]
    >>> report = fidelity("classification", taught, taught[::-1], [0, 1, 1, 1])
    >>> report.measures["teacher"]["accuracy"], report.kept
    (Figure(value=0.75, std_error=0.25), 0.333...)
    """
    for name in (names or {}).keys() - NAMES.keys():
        raise ArgumentError.unknown("names", name, NAMES)
    seed = whole_number("seed", seed, "a whole number from 0", 0)
    given = {"teacher": teacher, "student": student, "baseline": baseline}
    found = aligned(task, given, y, classes)
    rare = rare_classes(found)
    whole = compare(found, seed, rare.arrays)
    parts = by_column(found, seed) | by_group(found, {} if groups is None else groups, seed)
    overall, shares = kept(found, rare)
    main = overall
    if not math.isnan(shares[overall].value):  # others do not stand in for one without a meaning
        main = min(shares, key=lambda name: _or_infinite(shares[name].value))
    costs = {"teacher": teacher_cost, "student": student_cost, "baseline": baseline_cost}
    curves = {}
    if found.y is not None and task != "regression":
        curves = {m: curve(outcomes(task, p, found.y)) for m, p in found.predictions.items()}
    return Fidelity(
        whole.rows,
        whole.measures,
        whole.differences,
        task=task,
        classes=found.classes,
        names=NAMES | dict(names or {}),
        main=main,
        kept=shares[main].value,
        kept_error=shares[main].std_error,
        kept_by=shares,
        rarest=rare.rarest,
        worst=rare.worst,
        unchecked=rare.unchecked,
        costs={model: as_cost(cost, f"{model}_cost") for model, cost in costs.items()},
        by_group=parts,
        worse=worse(task, found.y is not None, parts),
        calibration=curves,
        disagreements=disagreements(found),
        pairs=pairs(found, seed),
        notes=list(notes),
    )


def kept(found: Aligned, rare: RareClasses) -> tuple[str, dict[str, Figure]]:
    r"""The measure over all rows, and the fraction of the teacher's that is kept, by measure."""
    regression = found.task == "regression"
    overall = "r2" if regression else "accuracy"
    teacher, student = (
        measured(found.task, found.predictions[model], found.y, found.predictions["teacher"])
        for model in ("teacher", "student")
    )
    if overall not in teacher or np.isnan(teacher[overall]).any():  # no labels, or no variation
        overall = "teacher_r2" if regression else "agreement"
        shares = {overall: mean(student[overall])}
    else:
        shares = {overall: kept_fraction(student[overall], teacher[overall])}
    for name, rows in rare.arrays.get("student", {}).items():
        if name != "worst_recall" or (rare.lost and rare.worst != rare.rarest):
            shares[name] = kept_fraction(rows, rare.arrays.get("teacher", {}).get(name))
    return overall, shares


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value
