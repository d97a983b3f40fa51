r"""Predictions side by side, and how well probabilities are calibrated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from limbeck import outputs as forms
from limbeck.compression.fidelity.measures import Figure, correct
from limbeck.errors import ArgumentError

__all__ = [
    "BINS",
    "TASKS",
    "Aligned",
    "Outcomes",
    "aligned",
    "calibration_errors",
    "curve",
    "outcomes",
]

TASKS = ("classification", "multilabel", "regression")


class Aligned(NamedTuple):
    r"""What is compared.

    Attributes:
        task: One of `TASKS`.
        predictions: Probabilities or values (n, K) by model: teacher, student, baseline.
        y: Codes of classes (n,), labels (n, K) of 0 and 1, values (n, K), or None.
        classes: K names, of classes, labels or targets.
    """

    task: str
    predictions: dict[str, np.ndarray]
    y: np.ndarray | None
    classes: list[Any]

    def rows(self, chosen: np.ndarray) -> Aligned:
        r"""Some of the examples."""
        predictions = {name: p[chosen] for name, p in self.predictions.items()}
        return self._replace(predictions=predictions, y=None if self.y is None else self.y[chosen])

    def column(self, k: int) -> Aligned:
        r"""One label, or one target."""
        predictions = {name: p[:, [k]] for name, p in self.predictions.items()}
        y = None if self.y is None else self.y[:, [k]]
        return self._replace(predictions=predictions, y=y, classes=[self.classes[k]])


def aligned(
    task: str, given: dict[str, Any], y: Any = None, classes: Sequence[Any] | None = None
) -> Aligned:
    r"""Check predictions and labels against each other, and bring them into one form.

    One column of a classifier of two classes is the probability of the second. Probabilities that
    are off by rounding are clipped, and a classifier's rescaled to sum to one.

    Arguments:
        task: One of `TASKS`.
        given: Predictions by model, of which None are left out.
        y: Labels as they are called in `classes`, (n, K) of 0 and 1, or values; or None.
        classes: K names; None for 0 … K − 1.
    """
    if task not in TASKS:
        raise ArgumentError.unknown("task", task, TASKS)
    names = None if classes is None else np.asarray(classes).tolist()
    found = {
        model: _predictions(model, values, task, names)
        for model, values in given.items()
        if values is not None
    }
    first = next(iter(found.values()))
    for model, p in found.items():
        if p.shape != first.shape:
            expected = f"{first.shape}, as of the {next(iter(found))}"
            raise ArgumentError(model, f"shape {p.shape}", expected)
    n, outputs = first.shape
    names = list(range(outputs)) if names is None else names
    if len(names) != outputs or len(set(map(str, names))) != outputs:
        raise ArgumentError(
            "classes", f"{names}", f"{outputs} different names, one for each column"
        )
    return Aligned(task, found, None if y is None else _labels(y, task, n, names), names)


def _predictions(model: str, given: Any, task: str, names: list[Any] | None) -> np.ndarray:
    p = _array(given)
    if p.dtype.kind not in "biuf" or p.ndim not in (1, 2) or not p.size:
        received = f"shape {p.shape} of {p.dtype}"
        raise ArgumentError(model, received, "numbers, a row for each example and one or more rows")
    p = p.reshape(len(p), -1).astype(float)
    _finite(model, p)
    if task == "regression":
        return p
    independent = task == "multilabel"
    forms.check_probabilities(torch.from_numpy(p.reshape(-1, 1) if independent else p), model)
    p = p.clip(0, 1)
    if independent:
        return p
    if p.shape[1] == 1 and (names is None or len(names) == 2):
        p = np.hstack([1 - p, p])
    return p / p.sum(1, keepdims=True) if p.shape[1] > 1 else np.ones_like(p)


def _labels(y: Any, task: str, n: int, names: list[Any]) -> np.ndarray:
    found = _array(y.toarray() if hasattr(y, "toarray") else y)
    if task == "classification":
        if found.size != n or found.ndim > 2:
            raise ArgumentError("y", f"shape {found.shape}", f"one label for each row, ({n},)")
        codes = {name: code for code, name in enumerate(names)}
        labels = found.ravel().tolist()
        y = np.array([codes.get(label, -1) for label in labels])
        if (y < 0).any():
            unknown = sorted(
                {repr(label) for label, code in zip(labels, y, strict=True) if code < 0}
            )
            expected = f"labels among {names[:12]}{' …' * (len(names) > 12)}, as in classes"
            raise ArgumentError("y", ", ".join(unknown[:5]), expected)
        return y
    shape = (n, len(names))
    if found.dtype.kind not in "biuf" or found.reshape(len(found), -1).shape != shape:
        raise ArgumentError("y", f"shape {found.shape} of {found.dtype}", f"numbers, {shape}")
    found = found.reshape(shape).astype(float)
    _finite("y", found)
    if task == "multilabel" and not np.isin(found, (0, 1)).all():
        received = f"numbers between {found.min():g} and {found.max():g}"
        raise ArgumentError("y", received, "0 and 1 alone: a column for each label")
    return found


def _array(given: Any) -> np.ndarray:
    return np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given)


def _finite(argument: str, values: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        received = f"{len(bad)} rows that are not finite, of which row {bad[0]} is the first"
        raise ArgumentError(argument, received, "finite numbers")


BINS = 15
RESAMPLES = 200

BLOCKS = 5000
r"""More examples than this are resampled in blocks of some, which costs less and errs as much."""

Outcomes = tuple[np.ndarray, np.ndarray]
r"""Confidences (n, m), and whether what was predicted came true (n, m)."""


def outcomes(task: str, p: np.ndarray, y: np.ndarray) -> Outcomes:
    r"""Confidences and what came of them.

    Of a classifier, the probability of the most probable class and whether it is the right one,
    (n, 1); of a multi-label one, the probability of every label and whether it is there, (n, K).
    """
    if task == "classification":
        return p.max(1, keepdims=True), correct(p, y)[:, None]
    return p, (y > 0.5).astype(float)


def curve(found: Outcomes, bins: int = BINS) -> dict[str, list[float]]:
    r"""For each bin: mean confidence, frequency of being right, its standard error, and count.

    >>> always = np.array([[0.9]] * 4), np.array([[1.0], [0.0], [1.0], [1.0]])
    >>> {name: [round(x, 2) for x in column] for name, column in curve(always).items()}
    {'confidence': [0.9], 'frequency': [0.75], 'std_error': [0.25], 'count': [4.0]}
    """
    confidence, right = (part.ravel() for part in found)
    codes = _bins(confidence, bins)
    count = np.bincount(codes, minlength=bins)
    full, count = count > 0, count[count > 0]
    sums = [np.bincount(codes, part, bins)[full] for part in (confidence, right)]
    f = sums[1] / count
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(count > 1, np.sqrt(f * (1 - f) / (count - 1)), math.nan)
    columns = (sums[0] / count, f, error, count.astype(float))
    names = ("confidence", "frequency", "std_error", "count")
    return {name: column.tolist() for name, column in zip(names, columns, strict=True)}


def calibration_errors(
    models: Mapping[str, Outcomes],
    pairs: Mapping[str, tuple[str, str]],
    *,
    bins: int = BINS,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Figure]:
    r"""Expected calibration errors of several models on the same examples, and differences.

    Arguments:
        models: What `outcomes` gives, by name.
        pairs: Names of differences, and of the two models whose errors are subtracted.
        bins: How many there are at most.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
    """
    n = len(next(iter(models.values()))[0])
    generator = np.random.default_rng(seed)
    blocks = generator.permutation(n) % (n // -(-n // BLOCKS))
    gaps = {name: _gaps(found, bins, blocks) for name, found in models.items()}
    values = {name: float(np.abs(gap.sum(1)).sum()) for name, gap in gaps.items()}
    draws = generator.integers(0, blocks.max() + 1, (resamples, blocks.max() + 1))
    counts = np.stack([np.bincount(draw, minlength=len(draw)) for draw in draws], axis=1)
    spread = {name: np.abs(gap @ counts).sum(0) for name, gap in gaps.items()}
    for name, (one, other) in pairs.items():
        values[name], spread[name] = values[one] - values[other], spread[one] - spread[other]
    return {
        name: Figure(value, float(spread[name].std(ddof=1)) if n > 1 else math.nan)
        for name, value in values.items()
    }


def _bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    edges = np.quantile(confidence, np.arange(1, bins) / bins)
    return np.searchsorted(edges, confidence)


def _gaps(found: Outcomes, bins: int, blocks: np.ndarray) -> np.ndarray:
    # (bins, blocks): what each block of examples adds to a bin's |frequency − confidence|
    confidence, right = found
    n, m = confidence.shape
    width = int(blocks.max()) + 1
    cells = _bins(confidence.ravel(), bins) * width + np.repeat(blocks, m)
    return np.bincount(cells, (right - confidence).ravel() / (n * m), bins * width).reshape(
        bins, -1
    )
