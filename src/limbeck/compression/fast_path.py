r"""Predictions of a few rows in NumPy, without the overhead of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.compression.rows import RowFormat, TableFormat
from limbeck.compression.students import output_form
from limbeck.models.mlp import MLP
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import SURE, Trees
from limbeck.tables.table import Matrices

ROWS = 32  # rows up to which students are evaluated in NumPy
LARGEST = 1e30  # up to which nothing overflows; greater numbers, and NaN, are for others' checks
TINY = float(np.finfo(np.float32).tiny)  # in place of a probability of 0, which has no logarithm
TYPES = (np.dtype(np.float32), np.dtype(np.float64))

Function = Callable[[np.ndarray], np.ndarray]
# activations of `limbeck.models.MLP` in NumPy
LAYERS: dict[str, Function] = {
    "linear": lambda z: z,
    "relu": lambda z: np.maximum(z, 0, out=z),
    "tanh": np.tanh,
}


class NumpyFastPath:
    r"""Predictions (n, K) of limbeck's students for a few rows, in NumPy on the CPU."""

    def __init__(
        self, student: nn.Module, row_format: RowFormat, task: str, form: str | None
    ) -> None:
        self.student, self.row_format, self.task = student, row_format, task
        self.form = output_form(student, form)
        self.features: Callable[[Any], np.ndarray | None] | None = self._rows
        trees, encoder = student, getattr(student, "encoder", None)
        columns = encoder.columns if isinstance(encoder, TableEncoder) else 0
        if isinstance(row_format, TableFormat):
            table, trees = row_format.table, getattr(student, "network", student)
            numbers = [column.key for column in table.numbers]
            codes = [column.key for column in table.varying if column.key not in numbers]
            self.features = _encoded_rows(encoder, table.few_rows, numbers, codes)
        elif columns:
            self.features = _encoded_rows(encoder, self._matrices, [*map(str, range(columns))], [])
        usual = task != "classification" or self.form in ("logits", "probabilities")
        usual &= (encoder is not None and not columns) == isinstance(row_format, TableFormat)
        self.raw = (_trees(trees) if type(trees) is Trees else _net(student)) if usual else None
        origin = getattr(student, "origin", None)
        self.origin = None if origin is None else origin.cpu().numpy()
        modules = [] if self.raw is None else list(student.modules())
        # what must be where it was: tensors with their addresses, and modules, with their owners
        owners = [o for m in modules for o in (m._parameters, m._buffers, m._modules)]
        self.parts: list[tuple[dict[str, Any], str, Any, int | None]] = [
            (owner, name, part, part.data_ptr() if isinstance(part, Tensor) else None)
            for owner in owners
            for name, part in owner.items()
        ]
        self.hooks = [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]

    def current(self, student: nn.Module) -> bool:
        r"""Whether this is the same student, with all parts at the same addresses."""
        return student is self.student and all(
            (address is None or value.data_ptr() == address) and owner.get(name) is value
            for owner, name, value, address in self.parts
        )

    def __call__(self, X: object) -> np.ndarray | None:
        r"""The student's outputs at rows; None where torch has to compute them."""
        if any(self.hooks) or self.raw is None or self.features is None:
            return None
        with np.errstate(all="ignore"):  # as torch does
            if (x := self.features(X)) is None or len(x) > ROWS:
                return None
            y = self.raw(x).astype(np.float64)
            if self.task == "classification":
                if self.form != "logits":
                    return np.maximum(y, TINY)
                e = np.exp(y - y.max(1, keepdims=True))
                return e / e.sum(1, keepdims=True)
            if self.task == "multilabel" and self.form != "probabilities":
                return 1 / (1 + np.exp(-y))
        return y

    def _rows(self, X: Any) -> np.ndarray | None:
        r"""Rows of numbers (n, D), in float32."""
        if type(X) is Tensor and X.layout == torch.strided and X.dtype is torch.float32:
            X = X.detach().numpy() if X.device.type == "cpu" else X
        if (
            type(X) is not np.ndarray
            or X.dtype not in TYPES
            or X.shape[1:] != self.row_format.shape  # type: ignore[union-attr]
            or not 0 < len(X) <= ROWS
            or not np.abs(X).max() <= LARGEST
        ):
            return None
        x: np.ndarray = X if self.origin is None else X - self.origin  # in float64
        return x.astype(np.float32).reshape(len(x), -1)

    def _matrices(self, X: Any) -> Matrices | None:
        return None if (x := self._rows(X)) is None else Matrices(x, x[:, :0], x[:, :0])

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyFastPath, (self.student, self.row_format, self.task, self.form)


def indicators(encoder: TableEncoder, codes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    r"""Of each indicator, the place of its column among those of codes, and the code."""
    own = np.array([codes.index(category.key) for category in encoder.indicated], int)
    return own[encoder.which.numpy(force=True)], encoder.slots.numpy(force=True)


def _encoded_rows(
    encoder: object, read: Callable[[Any], Matrices | None], numbers: list[str], codes: list[str]
) -> Callable[[Any], np.ndarray | None] | None:
    r"""From rows to features (n, width); None of other encoders than limbeck's own."""
    if type(encoder) is not TableEncoder:
        return None
    layers: Any = encoder.embeddings
    weights: list[Tensor] = [layer.weight.detach() for layer in layers]
    names = ("mean", "scale", "low", "high", "lower", "distance")
    tensors = [getattr(encoder, name) for name in names]
    if not all(map(_plain, (*tensors, *weights))):
        return None
    mean, scale, low, high, lower, distance = (t.numpy() for t in tensors)  # the same memory
    order = np.array([numbers.index(number.key) for number in encoder.numbers], int)
    masked, between = order[: len(encoder.masks)], order[encoder.source.numpy()]
    indicated, slots = indicators(encoder, codes)
    places = [codes.index(key) for key in encoder.embedded]
    embedded = [(k, weight.numpy()) for k, weight in zip(places, weights, strict=True)]

    def features(X: Any) -> np.ndarray | None:
        if (rows := read(X)) is None:
            return None
        x = rows.numbers.astype(np.float32, copy=False)
        parts = [np.clip((x[:, order] - mean) / scale, low, high)]
        if len(between):
            parts.append(np.clip((x[:, between] - lower) / distance, 0, 1))
        parts += [rows.missing[:, masked], rows.codes[:, indicated] == slots]
        parts += [weight[rows.codes[:, k]] for k, weight in embedded]
        return np.concatenate(parts, 1, dtype=np.float32)

    return features


def _net(student: nn.Module) -> Function | None:
    r"""The function of a net with its scaling, from (n, D) to (n, K)."""
    net: Any = student.network if type(student) is Preprocessed else student
    if type(net) is not MLP:
        return None
    names = (*net.hidden, net.output)
    if not LAYERS.keys() >= set(names) or any(type(layer) is not nn.Linear for layer in net.layers):
        return None
    ends = [getattr(student, name, None) for name in ("shift", "scale", "out_shift", "out_scale")]
    tensors: list[Any] = [*ends, *(t for layer in net.layers for t in (layer.weight, layer.bias))]
    if not all(t is None or _plain(t) for t in tensors):
        return None
    arrays: list[Any] = [None if t is None else t.detach().numpy() for t in tensors]
    shift, scale, out_shift, out_scale, *rest = arrays
    if shift is not None:
        shift, scale = shift.reshape(-1), scale.reshape(-1)
    layers = list(zip(rest[::2], rest[1::2], [LAYERS[name] for name in names], strict=True))

    def raw(x: np.ndarray) -> np.ndarray:
        if shift is not None:
            x = (x - shift) * scale
        for weight, bias, activation in layers:
            x = x @ weight.T
            if bias is not None:
                x += bias
            x = activation(x)
        return x if out_shift is None else x * out_scale + out_shift

    return raw


def _trees(student: Trees) -> Function | None:
    r"""The function of trees, from (n, D) to (n, K)."""
    names = ("roots", "feature", "threshold", "left", "value", "base")
    parts = [getattr(student, name).detach() for name in names]
    if not all(t.device.type == "cpu" for t in parts) or not all(map(_plain, parts[4:])):
        return None
    roots, feature, threshold, left, value, base = (t.numpy() for t in parts)

    def raw(x: np.ndarray) -> np.ndarray:
        # columns come twice, since numbers that are missing may go either way
        columns, node = np.hstack([x, x]), np.tile(roots, (len(x), 1))
        row = np.arange(len(x))[:, None]
        for _ in range(student.depth):
            node = left[node] + (columns[row, feature[node]] > threshold[node])
        y = base + value[node].sum(1)
        if student.kind != "labels":
            return y
        p = y.clip(SURE, 1 - SURE)
        return np.log(p) - np.log(1 - p)

    return raw


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32
