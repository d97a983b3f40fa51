r"""`RowTeacher`: a teacher of known task and classes on rows of any kind; callables as such."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.errors import ArgumentError, rename_argument
from limbeck.teachers.base import Opaque
from limbeck.teachers.fingerprints import digest
from limbeck.teachers.keys import as_rows, count, select
from limbeck.teachers.output_spec import (
    OutputKind,
    OutputSpec,
    as_outputs,
    check_outputs,
    infer_output,
    to_targets,
)

__all__ = [
    "FunctionTeacher",
    "ModelFile",
    "RawTeacher",
    "RowTeacher",
    "as_given",
    "dense",
    "first_rows",
    "rename_argument",
]

Names: TypeAlias = Sequence[Any] | np.ndarray


def as_given(X: Any) -> Any:
    r"""Tensors and lists as arrays; frames, sparse matrices and arrays as they came."""
    if isinstance(X, dict):
        return {name: as_given(part) for name, part in X.items()}
    if not isinstance(X, Tensor):
        return as_rows(X)
    X = X.detach().cpu()
    return (X.float() if X.dtype == torch.bfloat16 else X).numpy()  # which NumPy does not have


def dense(X: Any) -> np.ndarray:
    r"""One array: a frame's columns side by side, a sparse matrix with its zeros."""
    if isinstance(X, dict):
        raise ArgumentError("X", f"a dict of {', '.join(map(repr, X))}", "one array")
    X = as_given(X)
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X)


def first_rows(X: object, reason: str, most: int = 16) -> Any:
    r"""A few rows at which a teacher is queried first; an error if there are none."""
    rows = None if X is None else as_rows(X)
    if rows is None or count(rows) == 0:
        received = "None" if X is None else "no rows"
        raise ArgumentError("X", received, f"a few rows, to see {reason}")
    return select(rows, np.arange(min(most, count(rows))))


class ModelFile(NamedTuple):
    r"""The file that a teacher was read from.

    Attributes:
        path: The file.
        digest: A hash of its content, and of files that it refers to.
        size: Their bytes.
    """

    path: Path
    digest: str
    size: int


class RowTeacher(Opaque, ABC):
    r"""A teacher on rows of any kind; `teacher(X)` gives an array (n, K) of float64.

    Arguments:
        name: For tables, as "RandomForestClassifier".
        task: "classification", "multilabel" or "regression".
        columns: The number of columns that `answers` gives.
        own: The model's own names for them. Default: None.
        classes: The user's names, in order. They may be more than the model knows, whose
            probabilities are then 0. Default: None.

    Attributes:
        classes: Names (K,) of classes or labels; None in regression.
        outputs: K.
        form: The form of what calls give: "probabilities" or "values".
        module: The torch module that the loop can differentiate, if it is one.
        module_form: The form of the module's raw outputs.
        file: The file that it was read from, if any.
        named: Whether the classes have names, and not just numbers.
    """

    cache_kind = "values"  # the name of its answers in a cache
    module: nn.Module | None = None
    module_form: str | None = None
    file: ModelFile | None = None
    classes: np.ndarray | None

    def __init__(
        self,
        name: str,
        task: str,
        columns: int,
        own: Names | None = None,
        classes: Names | None = None,
    ) -> None:
        super().__init__(self.__call__, "values" if task == "regression" else "probabilities")
        self.name, self.task, self.columns = name, task, columns
        self._own = None if own is None else _names(own)
        self._set_classes(classes)

    @abstractmethod
    def answers(self, X: Any) -> np.ndarray:
        r"""The model's answers (n, columns) to one row or more, not yet checked."""

    def content(self) -> str | None:
        r"""A hash of the model; None where its content cannot be read."""
        return None

    def bytes(self) -> int | None:
        r"""The size of the model when it is written to a file; None where it cannot be."""
        return None if self.file is None else self.file.size

    def refit(self, X: Any, y: np.ndarray) -> RowTeacher:
        r"""The same kind of model fitted to other rows, with the same classes."""
        expected = "None with this teacher; only scikit-learn's estimators and lists of them can be"
        raise ArgumentError("teacher_folds", f"{self.name}, which cannot be fitted again", expected)

    def __call__(self, X: Any) -> np.ndarray:
        X = as_rows(X)
        n = count(X)
        if n == 0:
            return np.zeros((0, self.outputs))
        y = self.answers(X)
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

    def predict(self, X: Any) -> np.ndarray:
        r"""Labels (n,), indicators (n, K) of several labels, or values (n,) or (n, K)."""
        y = self(X)
        if self.task == "regression":
            return y[:, 0] if self.outputs == 1 else y
        if self.task == "multilabel":
            return (y > 0.5).astype(np.int64)
        assert self.classes is not None
        names: np.ndarray = self.classes[y.argmax(1)]
        return names

    def fingerprint(self) -> str | None:
        r"""A hash of the model and of how its outputs are read; None where it has no content."""
        content = self.content() if self.file is None else self.file.digest
        if content is None:
            return None
        order = None if self.classes is None else self.classes.tolist()
        return digest(content, self.task, self.raw_form(), json.dumps(order, default=str))

    def raw_form(self) -> str:
        r"""The form of the model's own outputs."""
        return self.form

    def with_classes(self, classes: Names) -> Self:
        r"""The same teacher with these classes, in this order."""
        copied = copy.copy(self)
        Opaque.__init__(copied, copied.__call__, self.form)
        copied._set_classes(classes)
        return copied

    def _set_classes(self, classes: Names | None) -> None:
        self._positions: np.ndarray | None = None  # of the model's columns among all classes
        self.named = self._own is not None or classes is not None
        if self.task == "regression":
            if classes is not None:
                raise ArgumentError("classes", classes, "None for regression, which has none")
            self.classes = None
        elif classes is None:
            self.classes = np.arange(self.columns) if self._own is None else self._own
        else:
            self.classes = _names(classes)
            self._positions = self._find(self.classes)
        self.outputs = self.columns if self.classes is None else len(self.classes)

    def _find(self, classes: np.ndarray) -> np.ndarray | None:
        own = list(range(self.columns)) if self._own is None else self._own.tolist()
        position = {label: k for k, label in enumerate(classes.tolist())}
        if self._own is not None and set(own) <= set(position):
            positions = [position[label] for label in own]
            return None if positions == list(range(len(classes))) else np.array(positions)
        received = f"{classes.tolist()} for {self.name}, whose classes are {own}"
        if own == list(range(self.columns)):
            if len(classes) == self.columns:
                return None  # numbers are given names
            received = f"{classes.tolist()} for {self.name}, "
            received += f"which has {self.columns} classes without names"
        raise ArgumentError("classes", received, "all classes of the teacher, each once")

    def __repr__(self) -> str:
        return f"the teacher ({self.name})"


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

    @abstractmethod
    def raw(self, X: Any) -> np.ndarray:
        r"""The model's outputs, (n,) or (n, K), as they come."""

    def answers(self, X: Any) -> np.ndarray:
        return to_targets(self.raw(X), self.kind, self.labels)

    def raw_form(self) -> str:
        return self.kind.form


class FunctionTeacher(RawTeacher):
    r"""A callable."""

    def __init__(
        self, predict: Callable[[Any], object], X: Any, spec: OutputSpec, name: str | None = None
    ) -> None:
        self._predict = predict
        raw = self.raw(first_rows(X, "what the teacher gives"))
        self.kind = infer_output(raw, spec)
        self.labels = spec.classes if self.kind.form == "labels" else None
        columns = to_targets(raw, self.kind, self.labels).shape[1]
        name = str(name or getattr(predict, "__name__", type(predict).__name__))
        super().__init__(name, self.kind.task, columns, self.labels, spec.classes)

    def raw(self, X: Any) -> np.ndarray:
        return as_outputs(self._predict(as_given(X)), count(X))
