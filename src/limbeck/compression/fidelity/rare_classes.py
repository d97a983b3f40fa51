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


class ClassCount(NamedTuple):
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
        r"""Which rows belong to it, by decisions (n, K)."""
        members: np.ndarray = decisions[:, self.column] == self.present
        return members


def rare_classes(data: Predictions) -> RareClasses:
    r"""Check the rarest class that has enough rows, and list those that have too few.

    Of several labels, each one counts by its smaller side: the rows with it, or those without.
    """
    if data.task == "regression":
        return RareClasses()
    truth = data.decisions(data.truth)
    classes = list(_classes(data, truth))
    enough = [c for c in classes if c.tally.rows >= MIN_CLASS_ROWS]
    rare = [c for c in enough if not c.common]
    too_few = [c for c in classes if c.tally.rows < MIN_CLASS_ROWS]
    unchecked = [c.tally for c in too_few if data.task == "classification" or not c.common]
    models = [model for model in data.by_model if data.y is not None or model != "teacher"]
    if not rare:
        return RareClasses(unchecked=unchecked, rows={model: {} for model in models})
    rarest = min(rare, key=lambda c: c.tally.rows)
    worst, lost = _worst(data, enough, truth)
    rows = {}
    for model in models:
        p = data.by_model[model]
        scores = p[:, rarest.column] if rarest.present else 1 - p[:, rarest.column]
        detected = data.decisions(p)
        rows[model] = {
            "average_precision": average_precision(scores, rarest.members(truth)),
            "rare_recall": recall(rarest.members(detected).astype(float), rarest.members(truth)),
            "worst_recall": recall(worst.members(detected).astype(float), worst.members(truth)),
        }
    return RareClasses(rarest.tally, worst.tally, unchecked, rows, lost)


def _classes(data: Predictions, truth: np.ndarray) -> Iterator[_Class]:
    whose = "" if data.y is not None else "the teacher's "
    noun = "class" if data.task == "classification" else "label"
    counts = truth.sum(0)
    for k, name in enumerate(data.classes):
        short = str(name) if len(str(name)) <= 16 else f"{str(name)[:15]}…"
        title, rows = f"{whose}{noun} {short}", int(counts[k])
        single = data.task == "classification"
        common = k == counts.argmax() if single else 2 * rows > len(truth)
        yield _Class(ClassCount(name, title, rows), k, True, bool(common))
        if not single:
            without = ClassCount(name, f"rows without {title}", len(truth) - rows)
            yield _Class(without, k, False, not common)


def _worst(data: Predictions, classes: list[_Class], truth: np.ndarray) -> tuple[_Class, bool]:
    r"""The class with the least retention of recall, clear cases first, and whether it is clear."""
    if data.y is None:
        overall = data.rows("student")["agreement"].mean()
    else:  # the retention of right answers over all rows; 1 at most
        right, teacher_right = (data.rows(m)["accuracy"] for m in ("student", "teacher"))
        overall = min(1.0, right.mean() / teacher_right.mean()) if teacher_right.any() else math.nan
    student, teacher = (data.decisions(data.by_model[m]) for m in ("student", "teacher"))
    ranked = []
    for c in classes:
        members = c.members(truth)
        # without labels the teacher is the truth, and so detects every member
        hits, teacher_hits = (c.members(d)[members].astype(float) for d in (student, teacher))
        gap = mean(hits - overall * teacher_hits)
        clear = gap.value < 0 and -gap.value > 3 * gap.std_error
        share = hits.mean() / teacher_hits.mean() if teacher_hits.any() else math.inf
        ranked.append((not clear, share, c.tally.rows, c.column, c.present, c, clear))
    *_, worst, clear = min(ranked, key=lambda entry: entry[:5])
    return worst, clear


def retention(data: Predictions, rare: RareClasses) -> tuple[str, dict[str, Figure]]:
    r"""The measure over all rows, and the fraction of the teacher's that is left, by measure."""
    regression = data.task == "regression"
    overall = "r2" if regression else "accuracy"
    teacher, student = (data.rows(model) for model in ("teacher", "student"))
    if overall not in teacher or np.isnan(teacher[overall]).any():  # no labels, or no variation
        overall = "teacher_r2" if regression else "agreement"
    shares = {overall: ratio(student[overall], teacher.get(overall))}
    for name, rows in rare.rows.get("student", {}).items():
        if name != "worst_recall" or (rare.lost and rare.worst != rare.rarest):
            shares[name] = ratio(rows, rare.rows.get("teacher", {}).get(name))
    return overall, shares
