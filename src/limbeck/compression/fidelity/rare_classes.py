r"""Whether the student still finds rare classes: recall and average precision of the rarest one.

Accuracy and agreement are means over rows, so they hardly notice a class of few rows. Here each
class is looked at by itself, as long as the test rows hold enough of it to tell. Measures are
arrays (n,), as in `measures`: the value plus the influence of each example.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from limbeck.compression.fidelity.calibration import Aligned
from limbeck.compression.fidelity.measures import Figure, mean, measured

__all__ = [
    "CLEARLY_WORSE",
    "MIN_CLASS_ROWS",
    "ClassCount",
    "RareClasses",
    "average_precision",
    "kept_fraction",
    "rare_classes",
    "recall",
]

MIN_CLASS_ROWS = 30
r"""Test rows that a class must have to be checked: a recall of fewer rows says little."""

CLEARLY_WORSE = 3.0
r"""Standard errors by which less of a class must be kept than of all rows, to count as lost."""

MAX_NAME = 16  # characters of a class name in titles


class ClassCount(NamedTuple):
    r"""A class and its test rows.

    Attributes:
        name: The class, or the label.
        title: What tables and sentences call it, such as "class fraud".
        rows: The number of test rows that belong to it.
    """

    name: Any
    title: str
    rows: int


@dataclass(frozen=True)
class RareClasses:
    r"""What the test rows tell about rare classes.

    Attributes:
        rarest: The rarest class that has enough rows; None where there is none.
        worst: The class with enough rows that loses the largest part of its recall.
        unchecked: The classes that have too few rows.
        arrays: By model, arrays (n,) of "average_precision" and "rare_recall", of the rarest
            class, and "worst_recall", of the worst. Without labels the teacher's own classes are
            the truth, and the teacher has none.
        lost: Whether clearly less of the worst class is kept than of all rows. (Of many classes,
            chance alone makes one of them come out worst.)
    """

    rarest: ClassCount | None = None
    worst: ClassCount | None = None
    unchecked: list[ClassCount] = field(default_factory=list)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    lost: bool = False


class _Class(NamedTuple):
    r"""A class, whether each row belongs to it (n,), and which side of a column it is."""

    of: ClassCount
    positive: np.ndarray
    column: int
    present: bool  # of a label: whether this is "there" or "not there"
    common: bool  # the most common class, or the larger side of a label, is not a rare one


def rare_classes(found: Aligned) -> RareClasses:
    r"""Check the rarest class that has enough rows, and name those that have too few.

    The most common class is no rare one, however few others there are. Of several labels, each one
    counts by its smaller side: the rows that have it, or those that do not.
    """
    if found.task == "regression":
        return RareClasses()
    classes = list(_classes(found))
    unchecked = [c.of for c in classes if c.of.rows < MIN_CLASS_ROWS]
    if found.task == "multilabel":  # the larger side is as large as the rows allow
        unchecked = [c.of for c in classes if c.of.rows < MIN_CLASS_ROWS and not c.common]
    enough = [c for c in classes if c.of.rows >= MIN_CLASS_ROWS]
    models = [m for m in found.predictions if found.y is not None or m != "teacher"]
    rare = [c for c in enough if not c.common]
    arrays: dict[str, dict[str, np.ndarray]] = {model: {} for model in models}
    if not rare:
        return RareClasses(unchecked=unchecked, arrays=arrays)
    rarest = min(rare, key=lambda c: c.of.rows)
    worst, lost = _worst(found, enough)
    for model in models:
        p = found.predictions[model]
        arrays[model] = {
            "average_precision": average_precision(_scores(rarest, p), rarest.positive),
            "rare_recall": recall(_hits(found.task, rarest, p), rarest.positive),
            "worst_recall": recall(_hits(found.task, worst, p), worst.positive),
        }
    return RareClasses(rarest.of, worst.of, unchecked, arrays, lost)


def _classes(found: Aligned) -> Iterator[_Class]:
    teacher = found.predictions["teacher"]
    whose = "" if found.y is not None else "the teacher's "
    if found.task == "classification":
        codes = teacher.argmax(1) if found.y is None else found.y
        counts = np.bincount(codes, minlength=len(found.classes))
        for k, name in enumerate(found.classes):
            title = f"{whose}class {_short(name)}"
            common = k == int(counts.argmax())
            yield _Class(ClassCount(name, title, int(counts[k])), codes == k, k, True, common)
        return
    truth = (teacher if found.y is None else found.y) > 0.5
    for k, name in enumerate(found.classes):
        there = truth[:, k]
        rows = int(there.sum())
        few = 2 * rows <= len(there)
        title = f"{whose}label {_short(name)}"
        yield _Class(ClassCount(name, title, rows), there, k, True, not few)
        without = ClassCount(name, f"rows without {title}", len(there) - rows)
        yield _Class(without, ~there, k, False, few)


def _worst(found: Aligned, classes: list[_Class]) -> tuple[_Class, bool]:
    r"""The class that keeps least of its recall, clear cases first, and whether it is clear."""
    overall = _overall(found)
    ranked = []
    for c in classes:
        student = _hits(found.task, c, found.predictions["student"])[c.positive]
        teacher = np.ones_like(student)
        if found.y is not None:
            teacher = _hits(found.task, c, found.predictions["teacher"])[c.positive]
        gap = mean(student - overall * teacher)
        clear = gap.value < 0 and -gap.value > CLEARLY_WORSE * gap.std_error
        share = student.mean() / teacher.mean() if teacher.any() else math.inf
        ranked.append((not clear, share, c.of.rows, c.column, c.present, c, clear))
    *_, worst, clear = min(ranked, key=lambda each: each[:5])
    return worst, clear


def _overall(found: Aligned) -> float:
    r"""The fraction of right answers, over all rows, that is kept; 1 at most."""
    name = "agreement" if found.y is None else "accuracy"
    student, teacher = (
        measured(found.task, found.predictions[m], found.y, found.predictions["teacher"])[name]
        for m in ("student", "teacher")
    )
    return min(1.0, float(student.mean() / teacher.mean())) if teacher.any() else math.nan


def _scores(c: _Class, p: np.ndarray) -> np.ndarray:
    return p[:, c.column] if c.present else 1 - p[:, c.column]


def _hits(task: str, c: _Class, p: np.ndarray) -> np.ndarray:
    r"""Whether a model takes each row for one of the class, as numbers (n,)."""
    if task == "classification":
        return (p.argmax(1) == c.column).astype(float)
    return ((p[:, c.column] > 0.5) == c.present).astype(float)


def recall(hits: np.ndarray, positive: np.ndarray) -> np.ndarray:
    r"""The share of a class that is found, plus the influence of each example, (n,).

    >>> float(recall(np.array([1.0, 0, 1, 1]), np.array([True, True, False, False])).mean())
    0.5
    """
    share = positive.mean()
    value = hits[positive].mean()
    return value + positive * (hits - value) / share


def average_precision(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    r"""The mean over a class of the precision at each row's score, with influences, (n,).

    With P(s) = A(s)/B(s) the precision among rows that score s or more, where A and B are the
    shares of all rows that do so and belong to the class, or do so at all, the value is the mean
    of P over the class. Equal scores are one threshold, as in scikit-learn. The influence of a row
    on it is ([positive] (P + G − value) − H)/π: G and H at its score are the means over all rows of
    the class that score no more of 1/B and P/B, and π is the share of the class.

    >>> found = average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]))
    >>> round(float(found.mean()), 4)
    0.8333
    """
    n = len(scores)
    _, place = np.unique(-scores, return_inverse=True)  # 0 is the highest score
    above = np.cumsum(np.bincount(place)) / n
    hits = np.bincount(place, positive)
    precision = np.cumsum(hits) / n / above
    # sums over scores that are no higher run from the lowest one up
    inverse, ratio = (np.cumsum((hits / n * each / above)[::-1])[::-1] for each in (1, precision))
    share = positive.mean()
    value = (hits * precision).sum() / hits.sum()
    influence = positive * (precision + inverse - value)[place] - ratio[place]
    return value + influence / share


def kept_fraction(student: np.ndarray, teacher: np.ndarray | None) -> Figure:
    r"""The ratio of the student's measure to the teacher's, by the delta method.

    NaN where the teacher's is 0 or less: there is nothing to keep. Without a teacher's measure the
    student's is already relative to it.
    """
    if teacher is None:
        return mean(student)
    whole = float(teacher.mean())
    if not whole > 1e-12:  # rounding may leave a little of 0
        return Figure(math.nan, math.nan)
    ratio = float(student.mean()) / whole
    return Figure(ratio, mean((student - ratio * teacher) / whole).std_error)


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"
