r"""How good and how faithful predictions are: one number for each example, so that errors pair.

Each measure is an array (n,) whose mean is the measure's value and whose spread gives its standard
error. Two models on the same examples then differ by the mean of the differences, and the standard
error of that is their standard deviation over √n. For R² and the root mean square error, which are
no means, the arrays are the value plus the influence of each example (the delta method).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = [
    "FLOOR",
    "MEASURES",
    "OF_LABELS",
    "OF_TEACHER",
    "Figure",
    "Measure",
    "absolute_error",
    "agreement",
    "brier",
    "correct",
    "kl",
    "label_agreement",
    "label_brier",
    "label_correct",
    "label_kl",
    "label_log_probability",
    "log_probability",
    "mean",
    "measured",
    "r2",
    "rmse",
    "square_error",
    "subset_agreement",
    "subset_correct",
]

FLOOR = 1e-12
r"""Probabilities below this are read as this, where a logarithm is taken: −27.6 nats at worst."""


class Figure(NamedTuple):
    r"""A value and its standard error, which is NaN where it is not known."""

    value: float
    std_error: float


class Measure(NamedTuple):
    r"""What is known of a measure.

    Attributes:
        title: What tables call it.
        rises: Whether more is better.
        share: Whether it is a fraction, shown as a percentage.
    """

    title: str
    rises: bool
    share: bool = False


MEASURES = {
    "accuracy": Measure("accuracy", rises=True, share=True),
    "subset_accuracy": Measure("all labels right", rises=True, share=True),
    "average_precision": Measure("average precision of the rarest class", rises=True),
    "rare_recall": Measure("recall of the rarest class", rises=True, share=True),
    "worst_recall": Measure("recall of the class that loses most", rises=True, share=True),
    "r2": Measure("R²", rises=True),
    "rmse": Measure("root mean square error", rises=False),
    "absolute_error": Measure("mean absolute error", rises=False),
    "log_probability": Measure("log probability", rises=True),
    "agreement": Measure("agreement with teacher", rises=True, share=True),
    "subset_agreement": Measure("agreement on all labels", rises=True, share=True),
    "teacher_r2": Measure("R² against teacher", rises=True),
    "difference": Measure("difference from teacher", rises=False),
    "kl": Measure("KL from teacher", rises=False),
    "ece": Measure("calibration error", rises=False, share=True),
    "brier": Measure("Brier score", rises=False),
}
r"""By name, in the order of tables."""


def mean(rows: np.ndarray) -> Figure:
    r"""The mean of (n,) numbers and its standard error, which one number does not tell.

    >>> mean(np.array([0.0, 1.0, 1.0, 1.0]))
    Figure(value=0.75, std_error=0.25)
    """
    n = len(rows)
    error = float(rows.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Figure(float(rows.mean()), error)


def correct(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Whether the most probable class is the label: p (n, K), y (n,) of 0 … K − 1."""
    return (p.argmax(1) == y).astype(float)


def log_probability(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The log probability of the label, not below log `FLOOR`."""
    return _log(p[np.arange(len(y)), y])


def brier(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Σ_k (p_k − [y = k])², between 0 and 2: over two classes twice the square error of one."""
    p_y = p[np.arange(len(y)), y]
    return (p**2).sum(1) - 2 * p_y + 1


def agreement(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""Whether both find the same class most probable."""
    return correct(student, teacher.argmax(1))


def kl(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""KL(teacher ‖ student), with the student's probabilities not below `FLOOR`."""
    return np.maximum(_kl_terms(teacher, student).sum(1), 0)  # less than 0 by rounding alone


def label_correct(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The share of labels that are right at a threshold of one half: p and y (n, K)."""
    return ((p > 0.5) == (y > 0.5)).mean(1)


def subset_correct(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Whether all labels are right at a threshold of one half."""
    return ((p > 0.5) == (y > 0.5)).all(1).astype(float)


def label_log_probability(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The mean over labels of the log probability of what each one is."""
    return _log(np.where(y > 0.5, p, 1 - p)).mean(1)


def label_brier(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The mean over labels of (p_k − y_k)²."""
    return ((p - y) ** 2).mean(1)


def label_agreement(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""The share of labels on which both are on the same side of one half."""
    return label_correct(student, teacher)


def subset_agreement(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""Whether both are on the same side of one half for every label."""
    return subset_correct(student, teacher)


def label_kl(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""The mean over labels of the KL divergence of yes and no."""
    terms = _kl_terms(teacher, student) + _kl_terms(1 - teacher, 1 - student)
    return np.maximum(terms, 0).mean(1)


def square_error(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The mean over targets of the square error: f and y (n, K)."""
    return ((f - y) ** 2).mean(1)


def absolute_error(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The mean over targets of the absolute error."""
    return np.abs(f - y).mean(1)


def rmse(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The root mean square error, plus the influence of each example on it."""
    rows = square_error(f, y)
    root = math.sqrt(rows.mean())
    return root + (rows - rows.mean()) / (2 * root) if root else rows


def r2(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""R² = 1 − A/B, plus the influence of each example: mean over the targets that vary.

    With A the mean of e², e = y − f, and B that of d², d = y − ȳ, an example's influence is
    (A/B · d² − e²)/B. Where no target varies, R² is not defined, and all is NaN.
    """
    varies = np.ptp(y, axis=0) > 0
    if not varies.any():
        return np.full(len(y), math.nan)
    f, y = f[:, varies], y[:, varies]
    e, d = (y - f) ** 2, (y - y.mean(0)) ** 2
    ratio = e.mean(0) / d.mean(0)
    return (1 - ratio + (ratio * d - e) / d.mean(0)).mean(1)


def teacher_r2(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""R² of the student's values, with the teacher's as the truth."""
    return r2(student, teacher)


Rows = Callable[[np.ndarray, np.ndarray], np.ndarray]

OF_LABELS: dict[str, dict[str, Rows]] = {
    "classification": {"accuracy": correct, "log_probability": log_probability, "brier": brier},
    "multilabel": {
        "accuracy": label_correct,
        "subset_accuracy": subset_correct,
        "log_probability": label_log_probability,
        "brier": label_brier,
    },
    "regression": {"r2": r2, "rmse": rmse, "absolute_error": absolute_error},
}
r"""For each task, the measures that compare predictions with labels: functions of both."""

OF_TEACHER: dict[str, dict[str, Rows]] = {
    "classification": {"agreement": agreement, "kl": kl},
    "multilabel": {
        "agreement": label_agreement,
        "subset_agreement": subset_agreement,
        "kl": label_kl,
    },
    "regression": {"teacher_r2": teacher_r2, "difference": absolute_error},
}
r"""For each task, the measures that compare a teacher with a student: functions of both."""


def measured(
    task: str, prediction: np.ndarray, y: np.ndarray | None, teacher: np.ndarray | None
) -> dict[str, np.ndarray]:
    r"""All measures of some predictions that labels or a teacher allow, each (n,).

    Arguments:
        task: "classification", "multilabel" or "regression".
        prediction: Probabilities or values (n, K).
        y: Codes of classes (n,), labels (n, K) of 0 and 1, or values (n, K); None without labels.
        teacher: The teacher's predictions (n, K); None to leave out the comparison with it.
    """
    found: dict[str, np.ndarray] = {}
    if y is not None:
        found |= {name: rows(prediction, y) for name, rows in OF_LABELS[task].items()}
    if teacher is not None:
        found |= {name: rows(teacher, prediction) for name, rows in OF_TEACHER[task].items()}
    return found


def _log(p: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(p, FLOOR))


def _kl_terms(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    return t * (np.log(np.where(t > 0, t, 1)) - _log(s))
