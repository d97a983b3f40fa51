r"""How a teacher's raw outputs are read: probabilities of classes or of labels, or values."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from limbeck import outputs as forms
from limbeck.errors import ArgumentError

__all__ = ["TASKS", "Reading", "Said", "as_outputs", "check", "read", "settle"]

TASKS = ("classification", "multilabel", "regression")
OUTPUTS = forms.FORMS[:4]


class Reading(NamedTuple):
    r"""What outputs mean.

    Attributes:
        task: One of `TASKS`.
        form: "logits", "probabilities", "log_probabilities", "values", or "labels": names of
            classes, read as certainties.
    """

    task: str
    form: str


class Said(NamedTuple):
    r"""What the user said of a teacher's outputs.

    Attributes:
        task: One of `TASKS`, or "auto".
        output: "logits", "probabilities", "log_probabilities", "values", or "auto".
        classes: Names of the classes or labels, or None.
    """

    task: str = "auto"
    output: str = "auto"
    classes: Any = None

    def checked(self) -> Said:
        r"""The same, unless there are no such names, or they contradict each other."""
        task, output = self.task, self.output
        if task not in (*TASKS, "auto"):
            raise ArgumentError.unknown("task", task, (*TASKS, "auto"))
        if output not in (*OUTPUTS, "auto"):
            raise ArgumentError.unknown("output", output, (*OUTPUTS, "auto"))
        if "auto" not in (task, output) and (output == "values") != (task == "regression"):
            expected = '"values" with task="regression", any other with the others'
            raise ArgumentError("output", f"{output!r} with task={task!r}", expected)
        return self


def as_outputs(raw: Any, n: int) -> np.ndarray:
    r"""A teacher's answer as an array (n,) or (n, K), or an error that says what came."""
    if isinstance(raw, torch.Tensor):
        raw = raw.detach().cpu()
        raw = raw.float() if raw.dtype == torch.bfloat16 else raw
    if hasattr(raw, "toarray"):
        raw = raw.toarray()
    try:
        outputs = np.asarray(raw)
    except ValueError:  # rows of different lengths
        raise ArgumentError("teacher", "answers of no one shape", f"({n},) or ({n}, K)") from None
    if outputs.ndim not in (1, 2) or len(outputs) != n or outputs.shape[-1] == 0:
        received = f"answers of shape {outputs.shape} for {n} rows of X"
        if outputs.dtype == object and outputs.ndim == 0:
            received = f"an answer of type {type(raw).__name__}"
        raise ArgumentError("teacher", received, f"an array ({n},) or ({n}, K)")
    return outputs if outputs.flags.writeable else outputs.copy()  # as torch wants them


def settle(raw: np.ndarray, said: Said, *, network: bool = False) -> Reading:
    r"""The reading of outputs (n,) or (n, K) at a few rows; ambiguous ones are refused.

    Arguments:
        raw: The outputs.
        said: What is known of them. Labels can only be read if their classes are.
        network: Whether unnormalised outputs are to be expected: they are logits, if anything.
    """
    task, output, _ = said.checked()
    if raw.dtype.kind == "f" and np.isnan(raw).any():
        raise ArgumentError("teacher", "answers with NaN", "finite answers")
    if task == "regression" and raw.dtype.kind in "biuf":
        return Reading(task, "values")
    if raw.dtype.kind not in "biuf" or (raw.dtype.kind != "f" and _columns(raw) == 1):
        return _labels(raw, said)
    if output != "auto":
        plain = "regression" if output == "values" else "classification"
        return Reading(plain if task == "auto" else task, output)
    inside = bool(((raw >= 0) & (raw <= 1)).all())
    if _columns(raw) > 1 and task != "multilabel":
        form = forms.recognise(torch.as_tensor(raw, dtype=torch.float64))
        if form is not None:
            return Reading("classification", form)
    elif inside and (task == "multilabel" or (task == "classification" and not network)):
        return Reading(task, "probabilities")
    elif task == "auto" and not network and not inside:
        return Reading("regression", "values")
    if network and task != "auto" and not inside:
        return Reading(task, "logits")
    _refuse(raw, task, inside)


def _labels(raw: np.ndarray, said: Said) -> Reading:
    known = said.classes is not None and said[:2] == ("classification", "auto")
    if known and _columns(raw) == 1:
        return Reading("classification", "labels")
    example = raw.reshape(-1)[0]
    expected = (
        "probabilities (a model itself rather than its predict, or its predict_proba); with "
        'task="classification" and classes=[...] labels are taken as certainties'
    )
    if raw.dtype.kind in "biu":
        expected += ', with task="regression" as values'
    raise ArgumentError("teacher", f"labels without probabilities, as {example!r}", expected)


def _refuse(raw: np.ndarray, task: str, inside: bool) -> NoReturn:
    many = _columns(raw) > 1
    if task != "auto":
        received = f"outputs whose form is not clear with task={task!r}"
        expected = 'output="logits", "probabilities" or "log_probabilities"'
        raise ArgumentError("output", received, expected)
    received = f"{_columns(raw)} outputs a row, between {raw.min():.4g} and {raw.max():.4g}"
    expected = 'task="regression"'
    if inside:
        expected += ', task="multilabel"' if many else ', or task="classification" (of class 1)'
    if many or not inside:
        expected += ', or output="logits" for a classifier'
    raise ArgumentError("task", f"'auto', which cannot tell what these are: {received}", expected)


def read(raw: np.ndarray, reading: Reading, classes: Any = None) -> np.ndarray:
    r"""Probabilities or values (n, K) in float64; one output of a classifier becomes two classes.

    >>> read(np.array([0.0, 100.0]), Reading("classification", "logits"))
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    if reading.form == "labels":
        return _one_hot(raw.reshape(len(raw)), np.asarray(classes))
    y = forms.values(torch.as_tensor(_floats(raw)))
    if reading.task == "multilabel" and reading.form == "logits":
        y = torch.sigmoid(y)
    elif reading.task != "regression":
        y = forms.probabilities(y, reading.form)
    if reading.task == "classification" and y.shape[1] == 1:
        y = forms.columns(1 - y, y)
    return y.numpy()


def _floats(raw: np.ndarray) -> np.ndarray:
    try:
        return np.ascontiguousarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        expected = "numbers"
        raise ArgumentError("teacher", f"answers of type {raw.dtype}", expected) from None


def _one_hot(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    found = labels[:, None] == classes[None, :]
    if not (known := found.any(1)).all():
        received = f"the label {labels[~known][0]!r}"
        raise ArgumentError("teacher", received, f"one of the classes {classes.tolist()}")
    return found.astype(np.float64)


def check(y: np.ndarray, task: str) -> None:
    r"""Refuse answers (n, K) that are not finite, or not probabilities where they ought to be."""
    if not (finite := np.isfinite(y)).all():
        row = int(np.flatnonzero(~finite.all(1))[0])
        received = f"{int((~finite).sum())} NaN or infinite answers, the first in row {row}"
        raise ArgumentError("teacher", received, "finite answers")
    if task != "regression":
        p = torch.as_tensor(y)
        forms.check_probabilities(p.reshape(-1, 1) if task == "multilabel" else p, "teacher")


def _columns(raw: np.ndarray) -> int:
    return 1 if raw.ndim == 1 else raw.shape[1]
