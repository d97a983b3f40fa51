r"""`RowTeacher`: a teacher with known task and classes on rows of any kind; callables."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from limbeck import outputs as forms
from limbeck.arguments import choice
from limbeck.errors import ArgumentError, shown
from limbeck.teachers.base import Opaque, as_outputs
from limbeck.teachers.fingerprints import digest, object_bytes, of_object
from limbeck.teachers.keys import Array, as_given, as_rows, count, first_rows
from limbeck.text import listed

Names: TypeAlias = Sequence[Any] | np.ndarray
TASKS = ("classification", "multilabel", "regression")


class OutputKind(NamedTuple):
    r"""The meaning of outputs."""

    task: str  # one of `TASKS`
    form: str  # one of `forms.FORMS[:4]`, or "labels": class names, read as certainties


class OutputSpec(NamedTuple):
    r"""The user's description of a teacher's outputs."""

    task: str = "auto"  # or one of `TASKS`
    output: str = "auto"  # or one of `forms.FORMS[:4]`
    classes: Names | None = None  # names of the classes or labels
    onnx_output: str | None = None  # the name of an ONNX file's output

    def checked(self) -> OutputSpec:
        r"""The same, unless a name is unknown or the names contradict each other."""
        task, output = self.task, self.output
        choice("task", task, (*TASKS, "auto"))
        choice("teacher_output", output, (*forms.FORMS[:4], "auto"))
        if "auto" not in (task, output) and (output == "values") != (task == "regression"):
            expected = '"values" with task="regression", any other with the others'
            raise ArgumentError("teacher_output", f"{output!r} with task={task!r}", expected)
        return self

    def expect(self, task: str, name: str) -> OutputKind:
        r"""Probabilities or values of a model whose task is known; other settings are refused."""
        kind = OutputKind(task, "values" if task == "regression" else "probabilities")
        for argument, setting, known in zip(("task", "teacher_output"), self, kind, strict=False):
            if setting not in ("auto", known):
                expected = f"{known!r}, which is what it gives"
                raise ArgumentError(argument, f"{setting!r} for {name}", expected)
        return kind

    def infer(self, raw: np.ndarray, *, network: bool = False) -> OutputKind:
        r"""The meaning of outputs (n,) or (n, K) at a few rows; ambiguous ones are refused."""
        task, output, classes, _ = self.checked()
        columns, dtype = 1 if raw.ndim == 1 else raw.shape[1], raw.dtype.kind
        if dtype == "f" and np.isnan(raw).any():
            raise ArgumentError("teacher", "answers with NaN", "finite answers")
        if task == "regression" and dtype in "biuf":
            return OutputKind(task, "values")
        if dtype not in "biuf" or (dtype != "f" and columns == 1):
            if columns == 1 and classes is not None and self[:2] == ("classification", "auto"):
                return OutputKind("classification", "labels")
            received = f"labels without probabilities, as {raw.reshape(-1)[0]!r}"
            expected = "probabilities (a model itself rather than its predict, or its predict_proba"
            expected += '); with task="classification" and classes=[...] labels are taken as '
            values = ', with task="regression" as values' if dtype in "biu" else ""
            raise ArgumentError("teacher", received, f"{expected}certainties{values}")
        if output != "auto":
            plain = "regression" if output == "values" else "classification"
            return OutputKind(plain if task == "auto" else task, output)
        inside = bool(((raw >= 0) & (raw <= 1)).all())
        if columns > 1 and task != "multilabel":
            if form := forms.recognise(torch.as_tensor(raw, dtype=torch.float64)):
                return OutputKind("classification", form)
        elif inside and (task == "multilabel" or (task == "classification" and not network)):
            return OutputKind(task, "probabilities")
        elif task == "auto" and not network and not inside:
            return OutputKind("regression", "values")
        if network and task != "auto" and not inside:
            return OutputKind(task, "logits")
        if task != "auto":
            received = f"outputs whose form is not clear with task={task!r}"
            expected = 'teacher_output="logits", "probabilities" or "log_probabilities"'
            raise ArgumentError("teacher_output", received, expected)
        received = f"{columns} outputs a row, between {raw.min():.4g} and {raw.max():.4g}"
        received = f"'auto', which cannot tell what these are: {received}"
        several = ' task="multilabel",' if inside and columns > 1 else ""
        expected = f'task="regression",{several} or teacher_output="logits" for a classifier'
        if inside and columns == 1:
            expected = 'task="regression", or task="classification" (of class 1)'
        raise ArgumentError("task", received, expected)


class ModelFile(NamedTuple):
    r"""The file that a teacher was read from."""

    path: Path
    digest: str  # of its content, and of files that it refers to
    size: int  # in bytes, of all of them


class RowTeacher(Opaque, ABC):
    r"""A teacher on rows of any kind; `teacher(X)` gives probabilities or values (n, K)."""

    module: nn.Module | None = None  # that the loop can differentiate
    kind: OutputKind | None = None  # what the model's raw outputs mean, where they are converted
    file: ModelFile | None = None
    model: object = None  # an object whose pickle is the teacher's content
    classes: np.ndarray | None  # names (K,); those that the model lacks have probability 0
    outputs: int  # K
    named: bool  # whether the classes have names, and not just numbers

    def __init__(
        self, name: str, task: str, columns: int, model_classes: Names | None, classes: Names | None
    ) -> None:
        super().__init__(self.__call__, "values" if task == "regression" else "probabilities")
        self.name, self.task, self.columns = name, task, columns
        self._model_classes = None if model_classes is None else _names(model_classes)
        self._set_classes(classes)

    @abstractmethod
    def answers(self, X: object) -> np.ndarray:
        r"""The model's outputs (n, columns) at one or more rows, not yet checked."""

    def content(self) -> str | None:
        r"""A hash of the model; None where its content cannot be read."""
        return None if self.model is None else of_object(self.model)

    def bytes(self) -> int | None:
        r"""The size of the model when it is written to a file; None where it cannot be."""
        if self.file is not None:
            return self.file.size
        return None if self.model is None else object_bytes(self.model)

    def refit(self, X: object, y: np.ndarray) -> RowTeacher:
        r"""The same kind of model fitted to other rows, with the same classes."""
        expected = "None with this teacher; only scikit-learn's estimators and lists of them can be"
        raise ArgumentError("teacher_folds", f"{self.name}, which cannot be fitted again", expected)

    def __call__(self, X: object) -> np.ndarray:
        rows = as_rows(X)
        n = count(rows)
        if n == 0:
            return np.zeros((0, self.outputs))
        return self._finished(self.answers(rows), n)

    def probed(self) -> tuple[Any, np.ndarray] | None:
        r"""Rows at which the teacher was queried to see what it gives, and its targets there."""
        return None

    def _finished(self, y: np.ndarray, n: int) -> np.ndarray:
        r"""Checked outputs (n, columns) as targets (n, K)."""
        if y.shape != (n, self.columns):
            received = f"outputs of shape {y.shape} for {n} rows of X"
            raise ArgumentError("teacher", received, f"shape ({n}, {self.columns})")
        check_outputs(y, self.task)
        if self.task == "regression":
            return y
        targets = np.zeros((n, self.outputs))
        targets[:, self._positions] = np.clip(y, 0, 1)  # rounded ones may be just outside
        return targets

    def predict(self, X: object) -> np.ndarray:
        r"""Labels (n,), indicators (n, K) of several labels, or values (n,) or (n, K)."""
        return predicted_labels(self(X), self.task, self.classes)

    def fingerprint(self) -> str | None:
        r"""A hash of the model and of how its outputs are read; None where it has no content."""
        content = self.content() if self.file is None else self.file.digest
        if content is None:
            return None
        form = self.form if self.kind is None else self.kind.form
        names = None if self.classes is None else self.classes.tolist()
        return digest(content, self.task, form, json.dumps(names, default=str))

    def with_classes(self, classes: Names) -> Self:
        r"""The same teacher with these classes, in this order."""
        copied = copy.copy(self)
        Opaque.__init__(copied, copied.__call__, self.form)
        copied._set_classes(classes)
        return copied

    def _set_classes(self, classes: Names | None) -> None:
        self._positions: np.ndarray | slice = slice(None)  # of its columns among all classes
        self.named = self._model_classes is not None or classes is not None
        self.classes, self.outputs = None, self.columns
        if self.task == "regression":
            if classes is not None:
                raise ArgumentError("classes", classes, "None for regression, which has none")
            return
        numbers = np.arange(self.columns)
        of_model = numbers if self._model_classes is None else self._model_classes
        self.classes = of_model if classes is None else _names(classes)
        self.outputs = len(self.classes)
        old, new, unnamed = of_model.tolist(), self.classes.tolist(), numbers.tolist()
        if self._model_classes is not None and set(old) <= set(new):
            self._positions = class_columns(of_model, self.classes)
        elif old != unnamed or len(new) != self.columns:  # else numbers are given names
            without = f"which has {self.columns} classes without names"
            known = without if old == unnamed else f"whose classes are {old}"
            received = f"{new} for {self.name}, {known}"
            raise ArgumentError("classes", received, "all classes of the teacher, each once")

    def __repr__(self) -> str:
        return f"the teacher ({self.name})"


def predicted_labels(y: np.ndarray, task: str, classes: Names | None) -> np.ndarray:
    r"""Outputs (n, K) as class names (n,), label indicators (n, K), or values (n,) or (n, K)."""
    if task == "regression":
        return y[:, 0] if y.shape[1] == 1 else y
    if task == "multilabel":
        return (y > 0.5).astype(np.int64)
    names = np.arange(y.shape[1]) if classes is None else np.asarray(classes)
    return np.asarray(names[y.argmax(1)])


def _names(classes: Names) -> np.ndarray:
    r"""Names of classes as an array, each once."""
    names = np.asarray(classes)
    if isinstance(classes, str) or names.ndim != 1 or not names.size:
        raise ArgumentError("classes", shown(classes), "a list of names")
    if names.tolist() != list(classes):  # names of several types, which NumPy would make strings
        names = np.array(list(classes), dtype=object)
    if len(set(names.tolist())) < len(names):
        raise ArgumentError("classes", names.tolist(), "names that differ")
    return names


def class_columns(labels: Array, classes: ArrayLike | None, argument: str = "labels") -> Array:
    r"""The column (n,) of each label."""
    known = {name: column for column, name in enumerate(np.asarray(classes).tolist())}
    columns = np.array([known.get(value, -1) for value in labels.tolist()], np.intp)
    if (columns < 0).any():
        unknown = sorted({repr(value) for value in labels[columns < 0].tolist()})
        expected = f"the teacher's classes: {listed(map(repr, known))}"
        raise ArgumentError(argument, listed(unknown), expected)
    return columns


def to_targets(raw: np.ndarray, kind: OutputKind, classes: Names | None = None) -> np.ndarray:
    r"""Probabilities or values (n, K) in float64; one output of a classifier becomes two."""
    if kind.form == "labels":
        one_hot: np.ndarray = np.eye(np.size(np.asarray(classes)))
        return one_hot[class_columns(raw.reshape(len(raw)), classes, "teacher")]
    try:
        y = forms.values(torch.as_tensor(np.ascontiguousarray(raw, dtype=np.float64)))
    except (TypeError, ValueError):
        raise ArgumentError("teacher", f"outputs of type {raw.dtype}", "numbers") from None
    if kind == ("multilabel", "logits"):
        y = torch.sigmoid(y)
    elif kind.task != "regression":
        y = forms.probabilities(y, kind.form)
    if kind.task == "classification" and y.shape[1] == 1:
        y = forms.columns(1 - y, y)
    return np.asarray(y.numpy())


def check_outputs(y: np.ndarray, task: str, argument: str = "teacher") -> None:
    r"""Refuse outputs (n, K) that are not finite, or not probabilities where these are expected."""
    if not (finite := np.isfinite(y)).all():
        row = int(np.flatnonzero(~finite.all(1))[0])
        received = f"{int((~finite).sum())} NaN or infinite outputs, the first in row {row} of "
        raise ArgumentError(argument, f"{received}{len(y)} in the call", "finite answers")
    if task != "regression":
        p = torch.as_tensor(y)
        forms.check_probabilities(p.reshape(-1, 1) if task == "multilabel" else p, argument)


class RawTeacher(RowTeacher):
    r"""A teacher whose output form was set or inferred."""

    kind: OutputKind
    labels: Names | None = None  # the classes that labels are names of, where outputs are labels
    raw_columns: int  # of all outputs

    def __init__(
        self, name: str, raw: np.ndarray, spec: OutputSpec, model_classes: Names | None = None
    ) -> None:
        self.labels = spec.classes if self.kind.form == "labels" else None
        self.raw_columns = raw.reshape(len(raw), -1).shape[1]
        names = self.labels if model_classes is None else model_classes
        super().__init__(name, self.kind.task, self.targets(raw).shape[1], names, spec.classes)

    @abstractmethod
    def raw(self, X: object) -> np.ndarray:
        r"""The model's raw outputs, (n,) or (n, K)."""

    def targets(self, raw: np.ndarray) -> np.ndarray:
        r"""Raw outputs as probabilities or values (n, columns)."""
        return to_targets(raw, self.kind, self.labels)

    def answers(self, X: object) -> np.ndarray:
        raw = self.raw(X)
        if raw.reshape(len(raw), -1).shape[1] != self.raw_columns:
            received = f"outputs of shape {raw.shape} for {count(X)} rows of X"
            expected = f"shape ({count(X)}, {self.raw_columns}), as at the first rows"
            raise ArgumentError("teacher", received, expected)
        return self.targets(raw)


class FunctionTeacher(RawTeacher):
    r"""A callable."""

    def __init__(
        self, predict: Callable[[Any], object], X: object, spec: OutputSpec, name: str | None = None
    ) -> None:
        self._predict = predict
        rows = first_rows(X, "what the teacher gives")
        raw = self.raw(rows)
        self.kind, self._probe = spec.infer(raw), (rows, raw)
        name = name or getattr(predict, "__name__", type(predict).__name__)
        super().__init__(str(name), raw, spec)

    def raw(self, X: object) -> np.ndarray:
        return as_outputs(self._predict(as_given(X)), count(X))

    def probed(self) -> tuple[Any, np.ndarray]:
        rows, raw = self._probe
        return rows, self._finished(self.targets(raw), count(rows))
