r"""Whether the student still detects rare classes: recall and average precision of the rarest one.

Accuracy and agreement are means over rows, so they hardly notice a class of few rows. Here each
class is checked by itself, as long as it has enough test rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from limbeck.compression.fidelity.comparison import Predictions
from limbeck.compression.fidelity.measures import Figure, average_precision, mean, ratio, recall

__all__ = ["MIN_CLASS_ROWS", "ClassCount", "RareClasses", "rare_classes", "retention"]

MIN_CLASS_ROWS = 30  # test rows that a class must have: a recall of fewer rows says little


@dataclass(frozen=True)
class ClassCount:
    r"""A class or label, and its number of test rows."""

    name: Any
    title: str  # in tables and sentences, such as "class fraud"
    rows: int


@dataclass(frozen=True)
class RareClasses:
    r"""Results of the check of rare classes; without labels the teacher's classes are the truth."""

    rarest: ClassCount | None = None  # of those with enough rows
    worst: ClassCount | None = None  # it loses the largest part of its recall
    unchecked: list[ClassCount] = field(default_factory=list)  # too few rows
    rows: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # (n,), by model and name
    lost: bool = False  # the worst is clearly below all rows: chance alone makes one the worst


class _Class(NamedTuple):
    r"""A class; or the rows with a label, or those without it."""

    tally: ClassCount
    column: int
    present: bool  # False for the rows without a label
    common: bool  # the most common class, or the larger side of a label, is not a rare one

    def members(self, decisions: np.ndarray) -> np.ndarray:
        r"""Which rows belong to it, by decisions (n, K), as 0 and 1."""
        return (decisions[:, self.column] == self.present).astype(float)


def rare_classes(data: Predictions) -> RareClasses:
    r"""Check the rarest class that has enough rows, and list those that have too few.

    Of several labels, each one counts by its smaller side: the rows with it, or those without.
    """
    if data.task == "regression":
        return RareClasses()
    truth = data.decisions(data.truth)
    classes = list(_classes(data, truth))
    enough = [c for c in classes if c.tally.rows >= MIN_CLASS_ROWS]
    too_few = [c for c in classes if c.tally.rows < MIN_CLASS_ROWS]
    unchecked = [c.tally for c in too_few if data.task == "classification" or not c.common]
    rare = [c for c in enough if not c.common]
    if not rare:
        return RareClasses(unchecked=unchecked)
    rarest = min(rare, key=lambda c: c.tally.rows)
    worst, lost = _worst(data, enough, truth)
    in_rarest, in_worst = rarest.members(truth) > 0, worst.members(truth) > 0
    rows = {}
    for model, p in data.by_model.items():
        if data.y is None and model == "teacher":  # which is the truth
            continue
        scores = p[:, rarest.column] if rarest.present else 1 - p[:, rarest.column]
        detected = data.decisions(p)
        rows[model] = {
            "average_precision": average_precision(scores, in_rarest),
            "rare_recall": recall(rarest.members(detected), in_rarest),
            "worst_recall": recall(worst.members(detected), in_worst),
        }
    return RareClasses(rarest.tally, worst.tally, unchecked, rows, lost)


def _classes(data: Predictions, truth: np.ndarray) -> Iterator[_Class]:
    whose = "" if data.y is not None else "the teacher's "
    single, n, counts = data.task == "classification", len(truth), truth.sum(0)
    for k, name in enumerate(data.classes):
        short = str(name) if len(str(name)) <= 16 else f"{str(name)[:15]}…"
        title, rows = f"{whose}{'class' if single else 'label'} {short}", int(counts[k])
        common = bool(k == counts.argmax() if single else 2 * rows > n)
        yield _Class(ClassCount(name, title, rows), k, True, common)
        if not single:
            without = ClassCount(name, f"rows without {title}", n - rows)
            yield _Class(without, k, False, not common)


def _worst(data: Predictions, classes: list[_Class], truth: np.ndarray) -> tuple[_Class, bool]:
    r"""The class with the least retention of recall, clear cases first, and whether it is clear."""
    if data.y is None:
        overall = data.rows("student")["agreement"].mean()
    else:  # the retention of right answers over all rows; 1 at most
        right, teacher_right = (data.rows(m)["accuracy"] for m in ("student", "teacher"))
        overall = min(1.0, right.mean() / teacher_right.mean()) if teacher_right.any() else math.nan
    student, teacher = (data.decisions(data.by_model[m]) for m in ("student", "teacher"))

    def rank(c: _Class) -> tuple[bool, float, int, int, bool]:
        members = c.members(truth) > 0
        # without labels the teacher is the truth, and so detects every member
        hits, teacher_hits = (c.members(decisions)[members] for decisions in (student, teacher))
        gap = mean(hits - overall * teacher_hits)
        clear = gap.value < 0 and -gap.value > 3 * gap.std_error
        share = hits.mean() / teacher_hits.mean() if teacher_hits.any() else math.inf
        return not clear, share, c.tally.rows, c.column, c.present

    worst = min(classes, key=rank)
    return worst, not rank(worst)[0]


def retention(data: Predictions, rare: RareClasses) -> tuple[str, dict[str, Figure]]:
    r"""The measure over all rows, and the fraction of the teacher's that is left, by measure."""
    regression = data.task == "regression"
    overall = "r2" if regression else "accuracy"
    teacher, student = (
        data.rows(model) | rare.rows.get(model, {}) for model in ("teacher", "student")
    )
    if overall not in teacher or np.isnan(teacher[overall]).any():  # no labels, or no variation
        overall = "teacher_r2" if regression else "agreement"
    names = [overall, *rare.rows.get("student", {})]
    if "worst_recall" in names and (not rare.lost or rare.worst == rare.rarest):
        names.remove("worst_recall")
    return overall, {name: ratio(student[name], teacher.get(name)) for name in names}
