r"""`RowTeacher`: a teacher of known task and classes on rows of any kind; callables as such."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from torch import nn

from limbeck.errors import ArgumentError
from limbeck.teachers.base import Opaque
from limbeck.teachers.fingerprints import digest, object_bytes, of_object
from limbeck.teachers.keys import as_rows, count, select
from limbeck.teachers.output_spec import (
    OutputKind,
    OutputSpec,
    as_outputs,
    check_outputs,
    infer_output,
    to_numpy,
    to_targets,
)  # fmt: skip

Names: TypeAlias = Sequence[Any] | np.ndarray


def as_given(X: object) -> Any:
    r"""Tensors and lists as arrays; frames, sparse matrices and arrays as they came."""
    if isinstance(X, dict):
        return {name: as_given(part) for name, part in X.items()}
    return as_rows(to_numpy(X))


def dense(X: object) -> np.ndarray:
    r"""One array: a frame's columns side by side, a sparse matrix with its zeros."""
    if isinstance(X, dict):
        raise ArgumentError("X", f"a dict of {', '.join(map(repr, X))}", "one array")
    rows = as_given(X)
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)


def first_rows(X: object, reason: str, most: int = 16) -> Any:
    r"""A few rows at which a teacher is queried first; an error if there are none."""
    rows = None if X is None else as_rows(X)
    if rows is None or count(rows) == 0:
        received = "None" if X is None else "no rows"
        raise ArgumentError("X", received, f"a few rows, to see {reason}")
    return select(rows, np.arange(min(most, count(rows))))


class ModelFile(NamedTuple):
    r"""The file that a teacher was read from."""

    path: Path
    digest: str  # of its content, and of files that it refers to
    size: int  # in bytes, of all of them


class RowTeacher(Opaque, ABC):
    r"""A teacher on rows of any kind; `teacher(X)` gives probabilities or values (n, K)."""

    module: nn.Module | None = None  # that the loop can differentiate
    module_form: str | None = None  # of the module's raw outputs
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
        r"""The model's answers (n, columns) to one row or more, not yet checked."""

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
        y = self.answers(rows)
        if y.shape != (n, self.columns):
            received = f"answers of shape {y.shape} for {n} rows of X"
            raise ArgumentError("teacher", received, f"shape ({n}, {self.columns})")
        check_outputs(y, self.task)
        if self.task != "regression":
            y = np.clip(y, 0, 1)  # rounded ones may be just outside
        if self._positions is None:
            return y
        spread = np.zeros((n, self.outputs))
        spread[:, self._positions] = y
        return spread

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
        self._positions: np.ndarray | None = None  # of the model's columns among all classes
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
        if classes is None:
            return
        old, new, unnamed = of_model.tolist(), self.classes.tolist(), numbers.tolist()
        if self._model_classes is not None and set(old) <= set(new):
            if old != new:
                position = {label: k for k, label in enumerate(new)}
                self._positions = np.array([position[label] for label in old])
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
    labels: np.ndarray = names[y.argmax(1)]
    return labels


def _names(classes: Names) -> np.ndarray:
    r"""Names of classes as an array, each once."""
    names = np.asarray(classes)
    if isinstance(classes, str) or names.ndim != 1 or not names.size:
        raise ArgumentError("classes", repr(classes), "a list of names")
    if names.tolist() != list(classes):  # names of several types, which NumPy would make strings
        names = np.array(list(classes), dtype=object)
    if len(set(names.tolist())) < len(names):
        raise ArgumentError("classes", names.tolist(), "names that differ")
    return names


class RawTeacher(RowTeacher):
    r"""A teacher whose outputs come in a form that was given or inferred."""

    kind: OutputKind
    labels: Names | None = None  # the classes that labels are names of, where outputs are labels

    def __init__(
        self, name: str, raw: np.ndarray, spec: OutputSpec, model_classes: Names | None = None
    ) -> None:
        self.labels = spec.classes if self.kind.form == "labels" else None
        names = self.labels if model_classes is None else model_classes
        super().__init__(name, self.kind.task, self.targets(raw).shape[1], names, spec.classes)

    @abstractmethod
    def raw(self, X: object) -> np.ndarray:
        r"""The model's outputs, (n,) or (n, K), as they come."""

    def targets(self, raw: np.ndarray) -> np.ndarray:
        r"""Raw outputs as probabilities or values (n, columns)."""
        return to_targets(raw, self.kind, self.labels)

    def answers(self, X: object) -> np.ndarray:
        return self.targets(self.raw(X))


class FunctionTeacher(RawTeacher):
    r"""A callable."""

    def __init__(
        self, predict: Callable[[Any], object], X: object, spec: OutputSpec, name: str | None = None
    ) -> None:
        self._predict = predict
        raw = self.raw(first_rows(X, "what the teacher gives"))
        self.kind = infer_output(raw, spec)
        name = name or getattr(predict, "__name__", type(predict).__name__)
        super().__init__(str(name), raw, spec)

    def raw(self, X: object) -> np.ndarray:
        return as_outputs(self._predict(as_given(X)), count(X))
