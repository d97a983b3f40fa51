r"""Few rows in NumPy: what a small student says of them takes less time than asking torch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.models.mlp import MLP
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.tree import SURE, Trees

__all__ = ["NumpyFastPath"]

ROWS = 32  # rows up to which a net is evaluated here
STEPS = 1000  # steps down trees, over all rows and trees, up to which they are walked here
# numbers up to which nothing overflows; greater ones, and NaN, are left to others' checks
LARGEST = 1e30
# what a probability of 0 is read as, so that it has a logarithm
TINY = float(np.finfo(np.float32).tiny)
TYPES = (np.dtype(np.float32), np.dtype(np.float64))

# kinds of layers that are known here, as in `limbeck.models.MLP`
LAYERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda z: z,
    "relu": lambda z: np.maximum(z, 0, out=z),
    "tanh": np.tanh,
}


class Held(NamedTuple):
    r"""A part of a module that must be where it was: a tensor with its address, or a module."""

    holder: dict[str, Any]
    name: str
    part: Any
    address: int | None


class NumpyFastPath:
    r"""A student on a few rows, (n, K) in float64: probabilities, or values.

    It computes on the student's own memory, so that a student that is trained on stays in step;
    `current` tells when parts were replaced or moved. Only limbeck's own students of float32 on the
    CPU are known, nets with their scaling and trees, and none that have hooks.
    """

    def __init__(
        self, student: nn.Module, shape: tuple[int, ...], task: str, form: str | None
    ) -> None:
        self.student, self.shape = student, shape
        self.form = form or getattr(student, "output_form", None) or "logits"
        self.task = task
        made = _trees(student) if type(student) is Trees else _net(student)
        if task == "classification" and self.form not in ("logits", "probabilities"):
            made = None
        self.most, self.raw = made or (0, _nothing)
        origin = getattr(student, "origin", None)
        self.origin = None if origin is None else origin.cpu().numpy()
        parts = [] if made is None else list(student.modules())
        self.held = list(_held(parts))
        self.hooks = [
            hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]

    def current(self, student: nn.Module) -> bool:
        r"""Whether this is the student, and all its parts are where they were."""
        return student is self.student and all(
            (each.address is None or each.part.data_ptr() == each.address)
            and each.holder.get(each.name) is each.part
            for each in self.held
        )

    def __call__(self, X: object) -> np.ndarray | None:
        r"""What the student says of rows; None where it is better asked in torch."""
        if type(X) is Tensor and X.dtype is torch.float32 and X.device.type == "cpu":
            X = X.detach().numpy()
        if (
            type(X) is not np.ndarray
            or X.dtype not in TYPES
            or X.shape[1:] != self.shape
            or not 0 < len(X) <= self.most
            or any(self.hooks)
            or not np.abs(X).max() <= LARGEST
        ):
            return None
        with np.errstate(all="ignore"):  # as torch does
            if self.origin is not None:
                X = X - self.origin  # in float64
            y = self.raw(X.astype(np.float32).reshape(len(X), -1)).astype(np.float64)
            if self.task == "classification":
                return _softmax(y) if self.form == "logits" else np.maximum(y, TINY)
            if self.task == "multilabel" and self.form != "probabilities":
                return 1 / (1 + np.exp(-y))
        return y

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyFastPath, (
            self.student,
            self.shape,
            self.task,
            self.form,
        )


Made = tuple[int, Callable[[np.ndarray], np.ndarray]]


def _nothing(x: np.ndarray) -> np.ndarray:
    raise AssertionError  # no rows are few enough


def _held(parts: list[nn.Module]) -> Iterator[Held]:
    for part in parts:
        for holder in (part._parameters, part._buffers):
            for name, tensor in holder.items():
                yield Held(holder, name, tensor, None if tensor is None else tensor.data_ptr())
        for name, child in part._modules.items():
            yield Held(part._modules, name, child, None)


def _net(student: nn.Module) -> Made | None:
    r"""A net with its scaling, from rows (n, D) of float32 to outputs (n, K)."""
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
    layers = [
        (weight.T, bias, LAYERS[name])
        for weight, bias, name in zip(rest[::2], rest[1::2], names, strict=True)
    ]

    def raw(x: np.ndarray) -> np.ndarray:
        if shift is not None:
            x = (x - shift) * scale
        for weight, bias, kind in layers:
            x = x @ weight
            if bias is not None:
                x += bias
            x = kind(x)
        return x if out_shift is None else x * out_scale + out_shift

    return ROWS, raw


def _trees(student: Trees) -> Made | None:
    r"""Trees, from rows (n, D) of float32 to outputs (n, K)."""
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
        found = [[leaf(row, root) for root in first] for row in np.hstack([x, x]).tolist()]
        y = base + value[found].sum(1)
        if not labels:
            return y
        p = y.clip(SURE, 1 - SURE)
        return np.log(p) - np.log(1 - p)

    return STEPS // max(1, student.depth * len(roots)), raw


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def _softmax(y: np.ndarray) -> np.ndarray:
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)
