r"""Few rows in NumPy: what a small student says of them takes less time than asking torch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.compression.students import output_form
from limbeck.models.mlp import MLP
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.tree import SURE, Trees

__all__ = ["NumpyFastPath"]

ROWS = 32  # rows up to which a net is evaluated here
STEPS = 1000  # steps down trees, over all rows and trees, up to which they are walked here
LARGEST = 1e30  # up to which nothing overflows; greater numbers, and NaN, are for others' checks
TINY = float(np.finfo(np.float32).tiny)  # in place of a probability of 0, which has no logarithm
TYPES = (np.dtype(np.float32), np.dtype(np.float64))

Function = Callable[[np.ndarray], np.ndarray]
# kinds of layers that are known here, as in `limbeck.models.MLP`
LAYERS: dict[str, Function] = {
    "linear": lambda z: z,
    "relu": lambda z: np.maximum(z, 0, out=z),
    "tanh": np.tanh,
}


class NumpyFastPath:
    r"""A student on a few rows, (n, K) in float64: probabilities, or values.

    It computes on the memory of limbeck's own students of float32 on the CPU, nets and trees
    without hooks; `current` tells whether their parts were replaced or moved.
    """

    def __init__(
        self, student: nn.Module, shape: tuple[int, ...], task: str, form: str | None
    ) -> None:
        self.student, self.shape, self.task = student, shape, task
        self.form = output_form(student, form)
        known = _trees(student) if type(student) is Trees else _net(student)
        if task == "classification" and self.form not in ("logits", "probabilities"):
            known = None
        self.raw: Function
        self.max_rows, self.raw = known or (0, np.copy)
        origin = getattr(student, "origin", None)
        self.origin = None if origin is None else origin.cpu().numpy()
        modules = [] if known is None else list(student.modules())
        self.parts = [part for module in modules for part in _parts(module)]
        self.hooks = [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]

    def current(self, student: nn.Module) -> bool:
        r"""Whether this is the student, and all its parts are where they were."""
        return student is self.student and all(
            (address is None or value.data_ptr() == address) and owner.get(name) is value
            for owner, name, value, address in self.parts
        )

    def __call__(self, X: object) -> np.ndarray | None:
        r"""The student's outputs at rows; None where torch has to compute them."""
        if type(X) is Tensor and X.dtype is torch.float32 and X.device.type == "cpu":
            X = X.detach().numpy()
        if (
            type(X) is not np.ndarray
            or X.dtype not in TYPES
            or X.shape[1:] != self.shape
            or not 0 < len(X) <= self.max_rows
            or any(self.hooks)
            or not np.abs(X).max() <= LARGEST
        ):
            return None
        with np.errstate(all="ignore"):  # as torch does
            x: np.ndarray = X if self.origin is None else X - self.origin  # in float64
            y = self.raw(x.astype(np.float32).reshape(len(x), -1)).astype(np.float64)
            if self.task == "classification":
                if self.form != "logits":
                    return np.maximum(y, TINY)
                e = np.exp(y - y.max(1, keepdims=True))
                return e / e.sum(1, keepdims=True)
            if self.task == "multilabel" and self.form != "probabilities":
                return 1 / (1 + np.exp(-y))
        return y

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyFastPath, (self.student, self.shape, self.task, self.form)


def _parts(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
    r"""What must be where it was: tensors with their addresses, and modules, with their owners."""
    for owner in (module._parameters, module._buffers, module._modules):
        for name, part in owner.items():
            yield owner, name, part, part.data_ptr() if isinstance(part, Tensor) else None


def _net(student: nn.Module) -> tuple[int, Function] | None:
    r"""Rows that a net with its scaling takes at most, and its function from (n, D) to (n, K)."""
    net: Any = student
    ends: list[Any] = [None] * 4
    if type(student) is Preprocessed:
        net = student.network
        ends = [student.shift, student.scale, student.out_shift, student.out_scale]
    if type(net) is not MLP or getattr(student, "encoder", None) is not None:
        return None
    names = (*net.hidden, net.output)
    if not LAYERS.keys() >= set(names) or any(type(layer) is not nn.Linear for layer in net.layers):
        return None
    tensors = [*ends, *(t for layer in net.layers for t in (layer.weight, layer.bias))]
    if not all(t is None or _plain(t) for t in tensors):
        return None
    arrays: list[Any] = [None if t is None else t.detach().numpy() for t in tensors]
    shift, scale, out_shift, out_scale, *rest = arrays
    if shift is not None:
        shift, scale = shift.reshape(-1), scale.reshape(-1)
    weights, activations = [weight.T for weight in rest[::2]], [LAYERS[name] for name in names]
    layers = list(zip(weights, rest[1::2], activations, strict=True))

    def raw(x: np.ndarray) -> np.ndarray:
        if shift is not None:
            x = (x - shift) * scale
        for weight, bias, activation in layers:
            x = x @ weight
            if bias is not None:
                x += bias
            x = activation(x)
        return x if out_shift is None else x * out_scale + out_shift

    return ROWS, raw


def _trees(student: Trees) -> tuple[int, Function] | None:
    r"""Rows that trees take at most, and their function from (n, D) to (n, K)."""
    names = ("roots", "feature", "threshold", "left", "value", "base")
    parts = [getattr(student, name).detach() for name in names]
    if not all(t.device.type == "cpu" for t in parts) or not all(map(_plain, parts[4:])):
        return None
    roots, feature, threshold, left, value, base = (t.numpy() for t in parts)
    labels = student.kind == "labels"

    def leaf(row: list[float], node: int) -> int:
        while True:
            # columns come twice, since numbers that are missing may go either way
            below = left.item(node) + (row[feature.item(node)] > threshold.item(node))
            if below == node:
                return node
            node = below

    def raw(x: np.ndarray) -> np.ndarray:
        first = roots.tolist()
        leaves = [[leaf(row, root) for root in first] for row in np.hstack([x, x]).tolist()]
        y = base + value[leaves].sum(1)
        if not labels:
            return y
        p = y.clip(SURE, 1 - SURE)
        return np.log(p) - np.log(1 - p)

    return STEPS // max(1, student.depth * len(roots)), raw


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32
