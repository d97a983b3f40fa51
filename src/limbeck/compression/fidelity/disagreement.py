r"""Where a student and its teacher disagree: the worst rows, and what both predict together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from limbeck.compression.fidelity.aligned import Aligned

__all__ = ["disagreements", "pairs", "plain"]

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


def plain(value: Any) -> Any:
    r"""Lists, dicts and numbers of Python's own; None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
