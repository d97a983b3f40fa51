r"""Any callable on arrays or frames as a teacher; it has no content that a cache could know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limbeck.compression.asking.keys import count
from limbeck.compression.teachers.predictors import RawPredictor, look
from limbeck.compression.teachers.readings import Said, as_outputs, read, settle
from limbeck.compression.teachers.rows import as_given

__all__ = ["Function"]


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
