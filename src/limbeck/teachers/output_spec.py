r"""What a teacher's raw outputs mean: probabilities of classes or of labels, or values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from limbeck import outputs as forms
from limbeck.errors import ArgumentError

TASKS = ("classification", "multilabel", "regression")


class OutputKind(NamedTuple):
    r"""What outputs mean."""

    task: str  # one of `TASKS`
    form: str  # one of `forms.FORMS[:4]`, or "labels": class names, read as certainties


class OutputSpec(NamedTuple):
    r"""What the user says about a teacher's outputs."""

    task: str = "auto"  # or one of `TASKS`
    output: str = "auto"  # or one of `forms.FORMS[:4]`
    classes: Sequence[Any] | np.ndarray | None = None  # names of the classes or labels

    def checked(self) -> OutputSpec:
        r"""The same, unless a name is unknown or the names contradict each other."""
        task, output = self.task, self.output
        if task not in (*TASKS, "auto"):
            raise ArgumentError.unknown("task", task, (*TASKS, "auto"))
        if output not in (*forms.FORMS[:4], "auto"):
            raise ArgumentError.unknown("output", output, (*forms.FORMS[:4], "auto"))
        if "auto" not in (task, output) and (output == "values") != (task == "regression"):
            expected = '"values" with task="regression", any other with the others'
            raise ArgumentError("output", f"{output!r} with task={task!r}", expected)
        return self


def to_numpy(value: object) -> Any:
    r"""A tensor as an array, bfloat16 as float32, since NumPy lacks it; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def as_outputs(raw: object, n: int) -> np.ndarray:
    r"""A teacher's answer as an array (n,) or (n, K)."""
    raw = to_numpy(raw)
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
    return outputs if outputs.flags.writeable else outputs.copy()  # torch takes no read-only ones


def infer_output(raw: np.ndarray, spec: OutputSpec, *, network: bool = False) -> OutputKind:
    r"""The meaning of outputs (n,) or (n, K) at a few rows; ambiguous ones are refused."""
    task, output, _ = spec.checked()
    columns = 1 if raw.ndim == 1 else raw.shape[1]
    if raw.dtype.kind == "f" and np.isnan(raw).any():
        raise ArgumentError("teacher", "answers with NaN", "finite answers")
    if task == "regression" and raw.dtype.kind in "biuf":
        return OutputKind(task, "values")
    if raw.dtype.kind not in "biuf" or (raw.dtype.kind != "f" and columns == 1):
        if columns == 1 and spec.classes is not None and spec[:2] == ("classification", "auto"):
            return OutputKind("classification", "labels")
        expected = (
            "probabilities (a model itself rather than its predict, or its predict_proba); with "
            'task="classification" and classes=[...] labels are taken as certainties'
            + (', with task="regression" as values' if raw.dtype.kind in "biu" else "")
        )
        received = f"labels without probabilities, as {raw.reshape(-1)[0]!r}"
        raise ArgumentError("teacher", received, expected)
    if output != "auto":
        plain = "regression" if output == "values" else "classification"
        return OutputKind(plain if task == "auto" else task, output)
    inside = bool(((raw >= 0) & (raw <= 1)).all())
    if columns > 1 and task != "multilabel":
        form = forms.recognise(torch.as_tensor(raw, dtype=torch.float64))
        if form is not None:
            return OutputKind("classification", form)
    elif inside and (task == "multilabel" or (task == "classification" and not network)):
        return OutputKind(task, "probabilities")
    elif task == "auto" and not network and not inside:
        return OutputKind("regression", "values")
    if network and task != "auto" and not inside:
        return OutputKind(task, "logits")
    if task != "auto":
        received = f"outputs whose form is not clear with task={task!r}"
        expected = 'output="logits", "probabilities" or "log_probabilities"'
        raise ArgumentError("output", received, expected)
    received = f"{columns} outputs a row, between {raw.min():.4g} and {raw.max():.4g}"
    expected = 'task="regression", or output="logits" for a classifier'
    if inside and columns > 1:
        expected = 'task="regression", task="multilabel", or output="logits" for a classifier'
    elif inside:
        expected = 'task="regression", or task="classification" (of class 1)'
    raise ArgumentError("task", f"'auto', which cannot tell what these are: {received}", expected)


def to_targets(
    raw: np.ndarray, kind: OutputKind, classes: Sequence[Any] | np.ndarray | None = None
) -> np.ndarray:
    r"""Probabilities or values (n, K) in float64; one output of a classifier becomes two."""
    if kind.form == "labels":
        labels, names = raw.reshape(len(raw)), np.asarray(classes)
        one_hot = labels[:, None] == names[None, :]
        if not (known := one_hot.any(1)).all():
            received = f"the label {labels[~known][0]!r}"
            raise ArgumentError("teacher", received, f"one of the classes {names.tolist()}")
        return np.asarray(one_hot, np.float64)
    try:
        y = forms.values(torch.as_tensor(np.ascontiguousarray(raw, dtype=np.float64)))
    except (TypeError, ValueError):
        raise ArgumentError("teacher", f"answers of type {raw.dtype}", "numbers") from None
    if kind == ("multilabel", "logits"):
        y = torch.sigmoid(y)
    elif kind.task != "regression":
        y = forms.probabilities(y, kind.form)
    if kind.task == "classification" and y.shape[1] == 1:
        y = forms.columns(1 - y, y)
    return np.asarray(y.numpy())


def check_outputs(y: np.ndarray, task: str) -> None:
    r"""Refuse answers (n, K) that are not finite, or no probabilities where these are expected."""
    if not (finite := np.isfinite(y)).all():
        row = int(np.flatnonzero(~finite.all(1))[0])
        received = f"{int((~finite).sum())} NaN or infinite answers, the first in row {row}"
        raise ArgumentError("teacher", received, "finite answers")
    if task != "regression":
        p = torch.as_tensor(y)
        forms.check_probabilities(p.reshape(-1, 1) if task == "multilabel" else p, "teacher")
