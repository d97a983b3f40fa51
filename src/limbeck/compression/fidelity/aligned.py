r"""Predictions and labels of the same examples, as arrays that line up, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from limbeck.core import forms
from limbeck.errors import ArgumentError

__all__ = ["TASKS", "Aligned", "aligned"]

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
            accepted = f"{first.shape}, as of the {next(iter(found))}"
            raise ArgumentError(model, f"shape {p.shape}", accepted)
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
            accepted = f"labels among {names[:12]}{' …' * (len(names) > 12)}, as in classes"
            raise ArgumentError("y", ", ".join(unknown[:5]), accepted)
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
