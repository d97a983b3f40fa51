r"""What a teacher that is not a torch module is: a predictor of rows."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.errors import ArgumentError
from limbeck.teachers import readings
from limbeck.teachers.fingerprints import digest
from limbeck.teachers.keys import as_rows, count, select
from limbeck.teachers.readings import Said, as_outputs, read, settle

__all__ = [
    "Function",
    "ModelFile",
    "Predictor",
    "RawPredictor",
    "as_given",
    "called",
    "dense",
    "look",
]


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


@contextmanager
def called(inside: str, outside: str) -> Iterator[None]:
    r"""Errors about one argument, or about a part of it such as df['age'], as about another.

    >>> with called("df", "X"):
    ...     raise ArgumentError("df['age']", "infinity", "finite numbers")
    Traceback (most recent call last):
    ...
    limbeck.errors.ArgumentError: X['age']: expected finite numbers, got infinity
    """
    try:
        yield
    except ArgumentError as error:
        name, rest = error.argument[: len(inside)], error.argument[len(inside) :]
        if inside == outside or name != inside or rest[:1] not in ("", "["):
            raise
        raise ArgumentError(outside + rest, error.received, error.expected) from error


LOOK = 16
r"""Rows at which a teacher is asked what it gives."""


class ModelFile(NamedTuple):
    r"""Where a teacher was read from.

    Attributes:
        path: The file.
        digest: A hash of its content, and of files that it refers to.
        size: Their bytes.
    """

    path: Path
    digest: str
    size: int


class Predictor(ABC):
    r"""A teacher on rows of any kind; `predictor(X)` gives an array (n, K) of float64.

    Arguments:
        name: For tables, as "RandomForestClassifier".
        task: "classification", "multilabel" or "regression".
        columns: The number of columns that `answers` gives.
        own: The names that the model itself has for them, if any.
        classes: The names that the user wants, in order. They may be more than the model knows,
            whose probabilities are then 0.

    Attributes:
        classes: Names (K,) of classes or labels; None in regression.
        outputs: K.
        form: What calls give: "probabilities" or "values".
        module: The torch module that the loop can differentiate, if it is one.
        module_form: The form of the module's raw outputs.
        file: Where it was read from, if it was a file.
    """

    kept_as = "values"  # what a cache calls its answers
    module: nn.Module | None = None
    module_form: str | None = None
    file: ModelFile | None = None

    def __init__(
        self,
        name: str,
        task: str,
        columns: int,
        own: Sequence[Any] | np.ndarray | None = None,
        classes: Any = None,
    ) -> None:
        self.name, self.task, self.columns = name, task, columns
        self.form = "values" if task == "regression" else "probabilities"
        self._own = None if own is None else names(own)
        self.classes: np.ndarray | None
        self._place(classes)

    @abstractmethod
    def answers(self, X: Any) -> np.ndarray:
        r"""What the model says of one row or more: (n, columns), not yet checked."""

    @abstractmethod
    def content(self) -> str | None:
        r"""A hash of the model; None where it has no content to look at."""

    def bytes(self) -> int | None:
        r"""The size of the model when it is written to a file; None where it cannot be."""
        return None if self.file is None else self.file.size

    def refit(self, X: Any, y: Any) -> Predictor:
        r"""The same kind of model fitted to other rows, with the same classes."""
        expected = "None with this teacher; only scikit-learn's estimators and lists of them can be"
        raise ArgumentError("teacher_folds", f"{self.name}, which cannot be fitted again", expected)

    @property
    def __name__(self) -> str:  # as functions have one, by which errors call them
        return self.name

    @property
    def named(self) -> bool:
        r"""Whether the classes have names, the model's or the user's, and not just numbers."""
        return self._named

    def __call__(self, X: Any) -> np.ndarray:
        X = as_rows(X)
        n = count(X)
        if n == 0:
            return np.zeros((0, self.outputs))
        y = self.answers(X)
        if y.shape != (n, self.columns):
            received = f"answers of shape {y.shape} for {n} rows of X"
            raise ArgumentError("teacher", received, f"shape ({n}, {self.columns})")
        readings.check(y, self.task)
        if self.task != "regression":
            y = np.clip(y, 0, 1)  # rounded ones may be just outside
        if self._places is None:
            return y
        spread = np.zeros((n, self.outputs))
        spread[:, self._places] = y
        return spread

    def predict(self, X: Any) -> np.ndarray:
        r"""Labels (n,), indicators (n, K) of several labels, or values (n,) or (n, K)."""
        y = self(X)
        if self.task == "regression":
            return y[:, 0] if self.outputs == 1 else y
        if self.task == "multilabel":
            return (y > 0.5).astype(np.int64)
        assert self.classes is not None
        return self.classes[y.argmax(1)]

    def fingerprint(self) -> str | None:
        r"""A hash of the model and of how its outputs are read; None where it has no content."""
        content = self.content() if self.file is None else self.file.digest
        if content is None:
            return None
        order = None if self.classes is None else self.classes.tolist()
        return digest(content, self.task, self.read_as(), json.dumps(order, default=str))

    def read_as(self) -> str:
        r"""The form of the model's own outputs."""
        return self.form

    def onto(self, classes: Any) -> Self:
        r"""The same predictor with these classes, in this order."""
        moved = copy.copy(self)
        moved._place(classes)
        return moved

    def _place(self, classes: Any) -> None:
        self._places: np.ndarray | None = None
        self._named = self._own is not None or classes is not None
        if self.task == "regression":
            if classes is not None:
                raise ArgumentError("classes", classes, "None for regression, which has none")
            self.classes = None
        elif classes is None:
            self.classes = np.arange(self.columns) if self._own is None else self._own
        else:
            self.classes = names(classes)
            self._places = self._find(self.classes)
        self.outputs = self.columns if self.classes is None else len(self.classes)

    def _find(self, classes: np.ndarray) -> np.ndarray | None:
        own = np.arange(self.columns) if self._own is None else self._own
        wanted = {label: place for place, label in enumerate(classes.tolist())}
        numbers = own.tolist() == list(range(self.columns))
        if self._own is not None and set(own.tolist()) <= set(wanted):
            places = [wanted[label] for label in own.tolist()]
            return None if places == list(range(len(classes))) else np.array(places)
        if numbers and len(classes) == self.columns:
            return None  # numbers are given names
        received = f"{classes.tolist()} for {self.name}, "
        if numbers:
            received += f"which has {self.columns} classes without names"
        else:
            received += f"whose classes are {own.tolist()}"
        raise ArgumentError("classes", received, "all classes of the teacher, each once")

    def __repr__(self) -> str:
        return f"Predictor({self.name}, {self.task}, outputs={self.outputs})"


class RawPredictor(Predictor):
    r"""A predictor whose outputs come in a form that was said or found out."""

    reading: readings.Reading
    labels: Any = None  # the classes that labels are names of, where outputs are labels

    @abstractmethod
    def raw(self, X: Any) -> np.ndarray:
        r"""The model's outputs, (n,) or (n, K), as they come."""

    def answers(self, X: Any) -> np.ndarray:
        return readings.read(self.raw(X), self.reading, self.labels)

    def read_as(self) -> str:
        return self.reading.form


def look(X: Any, reason: str, most: int = LOOK) -> Any:
    r"""A few rows at which to ask a teacher; an error if there are none."""
    rows = None if X is None else as_rows(X)
    if rows is None or count(rows) == 0:
        received = "None" if X is None else "no rows"
        raise ArgumentError("X", received, f"a few rows, to see {reason}")
    return select(rows, np.arange(min(most, count(rows))))


def names(classes: Any) -> np.ndarray:
    r"""Names of classes as an array, each once."""
    found = np.asarray(classes)
    if isinstance(classes, str) or found.ndim != 1 or not found.size:
        raise ArgumentError("classes", repr(classes), "a list of names")
    if found.tolist() != list(classes):  # names of several types, which NumPy would make strings
        found = np.array(list(classes), dtype=object)
    if len(set(found.tolist())) < len(found):
        raise ArgumentError("classes", found.tolist(), "names that differ")
    return found


class Function(RawPredictor):
    r"""A callable.

    Arguments:
        function: Maps rows to an array (n,) or (n, K).
        X: A few rows, at which its answers are looked at.
        said: What the user said of its answers.
        name: For tables; None is the callable's own.
    """

    def __init__(
        self, function: Callable[[Any], Any], X: Any, said: Said, name: str | None = None
    ) -> None:
        self.function = function
        raw = self.raw(look(X, "what the teacher gives"))
        self.reading = settle(raw, said)
        self.labels = said.classes if self.reading.form == "labels" else None
        columns = read(raw, self.reading, self.labels).shape[1]
        called = str(name or getattr(function, "__name__", type(function).__name__))
        super().__init__(called, self.reading.task, columns, self.labels, said.classes)

    def content(self) -> None:
        return None

    def raw(self, X: Any) -> np.ndarray:
        return as_outputs(self.function(as_given(X)), count(X))
