r"""Python text that computes with NumPy: lines, the arrays they need, and small functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from limbeck.errors import LimbeckError

__all__ = ["FUNCTIONS", "KINDS", "Script"]

FUNCTIONS = {
    "relu": "def relu(z):\n    return np.maximum(z, 0)",
    "sigmoid": "def sigmoid(z):\n    return np.exp(-np.logaddexp(0, -z))",
    "log_softmax": (
        "def log_softmax(z):\n    return z - np.logaddexp.reduce(z, axis=-1, keepdims=True)"
    ),
    "softmax": (
        "def softmax(z):\n    return np.exp(z - np.logaddexp.reduce(z, axis=-1, keepdims=True))"
    ),
    "normal_cdf": "def normal_cdf(z):\n    return np.vectorize(math.erfc)(-z / 2**0.5) / 2",
}
r"""What scripts define where they need it."""

KINDS = {
    "linear": "{}",
    "relu": "relu({})",
    "tanh": "np.tanh({})",
    "logistic": "sigmoid({})",
    "probit": "normal_cdf({})",
    "softmax": "softmax({})",
    "log_softmax": "log_softmax({})",
}
r"""The layer kinds of `MLP`, as expressions."""

Writer = Callable[["Script", Any, str], None]


class Script:
    r"""The body of a function: each line changes `h`, which begins as the input.

    Arguments:
        name: What errors call the student.
        writers: By type of module, what writes its lines, given the prefix of its arrays' names.
        features: How many numbers a row has; 0 for a table.
        single: Whether features are numbers of 32 bits, as trees compare them.
    """

    def __init__(
        self, name: str, writers: dict[type, Writer], features: int = 0, single: bool = False
    ) -> None:
        self.name, self.writers, self.features, self.single = name, writers, features, single
        self.lines: list[str] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.uses: set[str] = set()

    def add(self, line: str) -> None:
        r"""One more line; of the functions that it calls, the definitions come along."""
        self.lines.append(line)
        self.uses |= set(re.findall(r"\b\w+(?=\()", line)) & FUNCTIONS.keys()

    def array(self, name: str, value: Tensor | np.ndarray[Any, Any]) -> str:
        r"""Keep an array; the expression that stands for it."""
        plain = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.arrays[name] = plain
        return f'W["{name}"]'

    def module(self, module: nn.Module, prefix: str = "") -> None:
        r"""The lines of a module."""
        for kind in type(module).__mro__:
            if kind in self.writers:
                self.writers[kind](self, module, prefix)
                return
        raise LimbeckError(
            f"export: {type(module).__name__} in {self.name} has no NumPy form; accepted: MLP, "
            "Preprocessed, Trees, Ensemble, GaussianMixture, a NADE of two states, a SampleBag of "
            "a ready-made model, simple torch layers; .onnx and .pt2 take other modules"
        )

    def dense(self, weight: str, bias: str | None, kind: str) -> None:
        r"""A linear layer and its nonlinearity."""
        z = f"h @ {weight}.T" + (f" + {bias}" if bias else "")
        self.add(f"h = {KINDS[kind].format(z)}")
