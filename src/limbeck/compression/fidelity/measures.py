r"""How good and how faithful predictions are: arrays (n,), so that errors of differences pair.

Their mean is the measure, and their spread its standard error. For measures that are no means (R²,
root mean square error, recall, AUC, average precision, calibration error) they are the value plus
the influence of each example (the delta method). Errors of quantiles are those of the bootstrap.
Weights w (n,) of examples have mean 1; 1.0 stands for equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TINY = np.finfo(np.float64).tiny  # in place of no weight at all
FLOOR = 1e-12  # smallest probability whose logarithm is taken: −27.6 nats
BINS = 15  # of calibration curves

Rows = Callable[..., np.ndarray]
Weight = np.ndarray | float
Outcomes = tuple[np.ndarray, np.ndarray]  # confidences, and whether predictions were right, (n, m)


class Figure(NamedTuple):
    r"""A value and its standard error, which is NaN where it is not known."""

    value: float
    std_error: float


def mean(rows: np.ndarray) -> Figure:
    r"""The mean of (n,) numbers and its standard error, which is NaN for one number."""
    n = len(rows)
    error = float(rows.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Figure(float(rows.mean()), error)


def weighted(rows: np.ndarray, w: Weight) -> np.ndarray:
    r"""Numbers (n,) whose mean is the weighted mean of others, and whose spread gives its error."""
    if isinstance(w, float):
        return rows
    value = (w * rows).mean()
    return np.asarray(value + w * (rows - value))


def influence(statistic: Callable[[Tensor], Tensor], w: Weight, n: int) -> np.ndarray:
    r"""The same for a statistic of weights (n,) of mean 1: its value plus the influences.

    An example's influence is its weight times the derivative with respect to the weight.
    """
    weight = torch.tensor(np.broadcast_to(w, n), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        value = statistic(weight / weight.mean())
    (slope,) = torch.autograd.grad(value, weight)
    return np.asarray((value + n * weight * slope).detach())


def ratio(student: np.ndarray, teacher: np.ndarray | None) -> Figure:
    r"""The student's measure over the teacher's, by the delta method; NaN if that is 0 or less."""
    if teacher is None:  # the student's is already relative to the teacher
        return mean(student)
    whole = float(teacher.mean())
    if not whole > 1e-12:  # rounding may leave a little of 0
        return Figure(math.nan, math.nan)
    value = float(student.mean()) / whole
    return Figure(value, mean((student - value * teacher) / whole).std_error)


# Functions of the truth and of predictions, both (n, K): probabilities, labels (one column for
# each class, of 0 and 1) or values. The truth is the labels or the teacher.


def agreement(truth: np.ndarray, p: np.ndarray) -> np.ndarray:
    r"""Whether both have the same most probable class."""
    return (p.argmax(1) == truth.argmax(1)).astype(float)


def log_probability(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    r"""The log probability of the label, not below log `FLOOR`."""
    return np.log((p * y).sum(1).clip(FLOOR))


def brier(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    r"""Σ_k (p_k − y_k)², between 0 and 2: for two classes twice the square error of one."""
    return (p**2).sum(1) - 2 * (p * y).sum(1) + 1


def kl(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    r"""KL(teacher ‖ student), with the student's probabilities not below `FLOOR`."""
    terms = teacher * (np.log(np.where(teacher > 0, teacher, 1)) - np.log(student.clip(FLOOR)))
    return np.maximum(terms.sum(1), 0)  # below 0 by rounding alone


def by_task(measure: Rows) -> dict[str, Rows]:
    r"""A measure of classes; of labels its mean over them, each of two classes, no and yes."""

    def each_label(truth: np.ndarray, p: np.ndarray) -> np.ndarray:
        classes = (np.stack([1 - part, part], 2).reshape(-1, 2) for part in (truth, p))
        return measure(*classes).reshape(p.shape).mean(1)

    return {"classification": measure, "multilabel": each_label}


def subset_agreement(truth: np.ndarray, p: np.ndarray) -> np.ndarray:
    r"""Whether both are on the same side of one half for every label."""
    return ((p > 0.5) == (truth > 0.5)).all(1).astype(float)


def square_error(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    r"""The mean over targets, or labels, of the square error."""
    return ((f - y) ** 2).mean(1)


def absolute_error(truth: np.ndarray, f: np.ndarray) -> np.ndarray:
    r"""The mean over targets of the absolute error."""
    return np.abs(f - truth).mean(1)


def rmse(y: np.ndarray, f: np.ndarray, w: Weight = 1.0) -> np.ndarray:
    r"""The root mean square error."""
    rows = square_error(y, f)
    if not rows.any():
        return rows
    return influence(lambda v: (v @ torch.from_numpy(rows) / len(rows)).sqrt(), w, len(rows))


def r2(truth: np.ndarray, f: np.ndarray, w: Weight = 1.0) -> np.ndarray:
    r"""R², as a mean over the targets that vary; NaN where no target does."""
    varies = np.ptp(truth, axis=0) > 0
    if not varies.any():
        return np.full(len(truth), math.nan)
    y, p = (torch.from_numpy(part[:, varies]) for part in (truth, f))

    def value(v: Tensor) -> Tensor:
        return 1 - (v @ (y - p) ** 2 / (v @ (y - v @ y / len(y)) ** 2)).mean()

    return influence(value, w, len(y))


QUANTILES = {
    "difference_50": (0.5, "median difference"),
    "difference_90": (0.9, "90th percentile"),
    "difference_99": (0.99, "99th percentile"),
    "difference_max": (1.0, "largest difference"),
}


def difference_quantiles(teacher: np.ndarray, f: np.ndarray, w: Weight = 1.0) -> dict[str, Figure]:
    r"""Quantiles of |f − teacher| over the teacher's standard deviation, a mean over targets.

    Their errors are those of the bootstrap, without resampling: a quantile of rank r among n draws
    is at most the i-th value with the probability I(i/n; r, n − r + 1) (Hutson and Ernst, 2000).
    """
    from scipy.special import betainc

    spread = teacher.std(0)
    varies = spread > 0
    if not varies.any():
        return dict.fromkeys(QUANTILES, Figure(math.nan, math.nan))
    errors = (np.abs(f - teacher)[:, varies] / spread[varies]).mean(1)
    order, weight = np.argsort(errors), np.broadcast_to(w, len(errors))
    errors, weight = errors[order], weight[order] / weight.sum()
    below, n, figures = np.cumsum(weight).clip(max=1), 1 / (weight**2).sum(), {}
    for name, (level, _) in QUANTILES.items():
        place = min(int(np.searchsorted(below, level - 1e-9)), len(errors) - 1)
        rank = max(level * n, 1.0)
        chance = np.diff(betainc(rank, n - rank + 1, below), prepend=0)
        variance = (chance * (errors - (chance * errors).sum()) ** 2).sum()
        error = math.sqrt(variance) if len(errors) > 1 else math.nan
        figures[name] = Figure(float(errors[place]), error)
    return figures


def average_precision(scores: np.ndarray, positive: np.ndarray, w: Weight = 1.0) -> np.ndarray:
    r"""The mean over a class of the precision among the rows that score as much or more."""

    def value(v: Tensor) -> Tensor:
        ones, others = _tally(-scores, positive, v)  # from the highest score on
        precision = ones.cumsum(0) / (ones + others).cumsum(0).clamp_min(TINY)
        return ones @ precision / ones.sum()

    return influence(value, w, len(scores))


def auc(y: np.ndarray, p: np.ndarray, w: Weight = 1.0) -> np.ndarray:
    r"""The mean AUC of each class or label against all others.

    Those without a row, or without any other, are left out; NaN if none is left.
    """
    shares = [(w * column).mean() for column in y.T]
    known = [k for k, share in enumerate(shares) if 0 < share < 1 - 1e-12]

    def value(v: Tensor, k: int) -> Tensor:  # the chance to score above another, ties by half
        ones, others = _tally(p[:, k], y[:, k] > 0.5, v)
        return ones @ (others.cumsum(0) - others / 2) / ones.sum() / others.sum()

    each = [influence(partial(value, k=k), w, len(y)) for k in known]
    return np.asarray(np.mean(each, axis=0)) if each else np.full(len(y), math.nan)


def _tally(scores: np.ndarray, positive: np.ndarray, v: Tensor) -> Tensor:
    r"""The weights inside and outside of a class, summed by score, the lowest one first."""
    _, place = np.unique(scores, return_inverse=True)
    parts = v * torch.from_numpy(np.stack([positive, 1.0 - positive]))
    return v.new_zeros(2, place.max() + 1).index_add(1, torch.from_numpy(place), parts)


def outcomes(task: str, p: np.ndarray, y: np.ndarray) -> Outcomes:
    r"""Confidences, and whether they came true: of the top class (n, 1), or every label (n, K)."""
    if task == "classification":
        return p.max(1, keepdims=True), agreement(y, p)[:, None]
    return p, (y > 0.5).astype(float)


def calibration_error(results: Outcomes, w: Weight = 1.0, bins: int = BINS) -> np.ndarray:
    r"""The expected calibration error: over bins, the mean |frequency − confidence|."""
    confidence, right = results
    codes = torch.from_numpy(_bins(confidence.ravel(), bins))
    excess = torch.from_numpy(right - confidence) / confidence.size

    def value(v: Tensor) -> Tensor:
        return v.new_zeros(bins).index_add(0, codes, (v[:, None] * excess).ravel()).abs().sum()

    return influence(value, w, len(right))


def _bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    edges = np.quantile(confidence, np.arange(1, bins) / bins)
    return np.searchsorted(edges, confidence)


class Measure(NamedTuple):
    r"""How a measure is computed and shown."""

    title: str
    rises: bool  # whether more is better
    share: bool = False  # shown as a percentage
    truth: str = ""  # "labels", "teacher" or, if it is no function of the rows alone, ""
    rows: Mapping[str, Rows] = {}  # its function of the truth and of predictions, by task
    format: str = ",.4g"  # in a sentence, if it is no percentage
    class_title: str = ""  # of a measure of one class, its name before "of class …"


def _of_class(title: str, which: str, share: bool = True, rises: bool = True) -> Measure:
    return Measure(f"{title} of {which}", rises, share, format=".3f", class_title=title)


_SAME = by_task(agreement)
_SUBSET: dict[str, Rows] = {"multilabel": subset_agreement}
_BRIER: dict[str, Rows] = {"classification": brier, "multilabel": square_error}
_AUC: dict[str, Rows] = {"classification": auc, "multilabel": auc}
_ABSOLUTE: dict[str, Rows] = {"regression": absolute_error}
_ECE: dict[str, Rows] = {
    task: lambda y, p, w, task=task: calibration_error(outcomes(task, p, y), w)
    for task in ("classification", "multilabel")
}
_WEIGHTED = {auc, rmse, r2, *_ECE.values()}  # no means over rows: they take weights themselves

MEASURES = {  # in the order of tables
    "accuracy": Measure("accuracy", True, True, "labels", _SAME),
    "subset_accuracy": Measure("all labels right", True, True, "labels", _SUBSET),
    "auc": Measure("AUC", True, False, "labels", _AUC, ".3f"),
    "average_precision": _of_class("average precision", "the rarest class", False),
    "rare_recall": _of_class("recall", "the rarest class"),
    "worst_recall": _of_class("recall", "the class that loses most"),
    "r2": Measure("R²", True, False, "labels", {"regression": r2}, ".3f"),
    "rmse": Measure("root mean square error", False, False, "labels", {"regression": rmse}),
    "absolute_error": Measure("mean absolute error", False, False, "labels", _ABSOLUTE),
    "log_probability": Measure("log probability", True, False, "labels", by_task(log_probability)),
    "agreement": Measure("agreement with teacher", True, True, "teacher", _SAME),
    "subset_agreement": Measure("agreement on all labels", True, True, "teacher", _SUBSET),
    "teacher_r2": Measure("R² against teacher", True, False, "teacher", {"regression": r2}, ".3f"),
    "difference": Measure("difference from teacher", False, False, "teacher", _ABSOLUTE),
    **{name: Measure(f"{title} / teacher's σ", False) for name, (_, title) in QUANTILES.items()},
    "kl": Measure("KL from teacher", False, False, "teacher", by_task(kl)),
    "rare_kl": _of_class("KL from teacher", "the rarest class", False, rises=False),
    "ece": Measure("calibration error", False, True, "labels", _ECE),
    "brier": Measure("Brier score", False, False, "labels", _BRIER),
}


def measure_rows(
    task: str, prediction: np.ndarray, y: np.ndarray | None, teacher: np.ndarray | None,
    w: Weight = 1.0,
) -> dict[str, np.ndarray]:  # fmt: skip
    r"""Every measure that labels (n, K) or a teacher's predictions (n, K) allow, each (n,)."""
    truths = {"labels": y, "teacher": teacher}

    def rows(function: Rows, truth: np.ndarray) -> np.ndarray:
        if function in _WEIGHTED:
            return function(truth, prediction, w)
        return weighted(function(truth, prediction), w)

    return {
        name: rows(measure.rows[task], truth)
        for name, measure in MEASURES.items()
        if task in measure.rows and (truth := truths[measure.truth]) is not None
    }


def curve(results: Outcomes, bins: int = BINS) -> dict[str, list[float]]:
    r"""For each bin: mean confidence, frequency of being right, its standard error, and count."""
    confidence, right = (part.ravel() for part in results)
    _, codes, count = np.unique(_bins(confidence, bins), return_inverse=True, return_counts=True)
    mean_confidence, f = (np.bincount(codes, part) / count for part in (confidence, right))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(count > 1, np.sqrt(f * (1 - f) / (count - 1)), math.nan)
    columns = {"confidence": mean_confidence, "frequency": f, "std_error": error, "count": count}
    return {name: column.astype(float).tolist() for name, column in columns.items()}
