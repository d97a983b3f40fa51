r"""A net or trees with their preprocessing, as arrays that C and ONNX are written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.compression.fast_path import indicators
from limbeck.compression.training import Answering
from limbeck.models.mlp import MLP
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees
from limbeck.tables.columns import Category
from limbeck.tables.table import Table

Array: TypeAlias = np.ndarray[Any, Any]


class NumberFeatures(NamedTuple):
    r"""Features (n, F) of numbers: `(x[:, which] - shift) / scale`, from `low` to `high`."""

    which: Array
    shift: Array
    scale: Array
    low: Array
    high: Array

    @property
    def clips(self) -> bool:
        r"""Whether some feature has a bound."""
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())


class Layer(NamedTuple):
    r"""A layer of a net, in float64."""

    weight: Array  # (inputs, outputs)
    bias: Array
    kind: str  # as of `limbeck.models.MLP`
    tables: list[Array]  # what the categories of a first layer add, by code: (K + 2, outputs)


@dataclass(frozen=True)
class Parts:
    r"""A net or trees, and all that comes before and behind."""

    network: MLP | Trees
    encoder: TableEncoder | None
    features: NumberFeatures | None  # of an encoder's numbers, or of an array's; None: as they are
    knots: int  # how many of them, the last ones, are between knots
    origin: Array | None  # subtracted from an array in float64
    out_scale: Array
    out_shift: Array
    task: str | None  # None: the outputs stay as they are
    form: str

    @property
    def layers(self) -> list[Layer]:
        r"""The layers of a net, with biases, and with two outputs for two classes of logits."""
        net, layers = cast("MLP", self.network), list[Layer]()
        linear = cast("list[nn.Linear]", net.layers)
        for layer, kind in zip(linear, (*net.hidden, net.output), strict=True):
            weight = _numbers(layer.weight).T
            bias = np.zeros(weight.shape[1]) if layer.bias is None else _numbers(layer.bias)
            if kind == "linear" and layer is linear[-1]:  # it takes the scale of the outputs too
                weight, bias = weight * self.out_scale, bias * self.out_scale + self.out_shift
                if self.task == "classification" and self.form == "logits" and len(bias) == 1:
                    weight, bias = np.pad(weight, ((0, 0), (1, 0))), np.pad(bias, (1, 0))
            layers.append(Layer(weight, bias, kind, []))
        first, features = layers[0].weight, self.features
        if features is not None and self.encoder is not None:
            at = len(features.which) + len(self.encoder.masks)
            layers[0] = layers[0]._replace(weight=first[:at], tables=self._tables(first, at))
        elif features is not None and len(first) > len(features.which):  # columns are ignored
            layers[0] = layers[0]._replace(weight=first[features.which])
        return layers

    @property
    def scales_outputs(self) -> bool:
        r"""Whether outputs have to be scaled: a last layer that is linear does it itself."""
        net = self.network if isinstance(self.network, MLP) else None
        scaled = bool((self.out_scale != 1).any() or self.out_shift.any())
        return scaled and (net is None or net.output != "linear")

    @property
    def outputs(self) -> int:
        r"""The number of outputs, before a second one is added for two classes."""
        network = self.network
        return network.value.shape[1] if isinstance(network, Trees) else self.layers[-1].bias.size

    @property
    def both(self) -> bool:
        r"""Whether the only output is that of the second of two classes."""
        return self.task == "classification" and self.outputs == 1

    @property
    def answer(self) -> str:
        r"""The kind of layer that makes answers of outputs."""
        if self.task == "multilabel" and self.form != "probabilities":
            return "logistic"
        kinds = {"logits": "logistic" if self.both else "softmax", "log_probabilities": "exp"}
        return kinds.get(self.form, "linear") if self.task == "classification" else "linear"

    def _tables(self, weight: Array, at: int) -> list[Array]:
        r"""What categories add to the first layer, whose rows from `at` on are theirs."""
        assert self.encoder is not None
        categories = self.encoder.categories
        keys = [category.key for category in categories]
        tables = [np.zeros((category.size + 2, weight.shape[1])) for category in categories]
        place, slots = indicators(self.encoder, keys)
        for k, code in zip(place, slots, strict=True):
            tables[k][code] = weight[at]
            at += 1
        for key, embedding in self.embeddings:
            tables[keys.index(key)] = embedding @ weight[at : at + embedding.shape[1]]
            at += embedding.shape[1]
        return tables

    @property
    def embeddings(self) -> list[tuple[str, Array]]:
        r"""The keys of embedded categories, and their embeddings (K + 2, width) by code."""
        encoder = cast("TableEncoder", self.encoder)
        weights = [_numbers(cast("Tensor", layer.weight)) for layer in encoder.embeddings]
        return list(zip(encoder.embedded, weights, strict=True))


def _numbers(tensor: Tensor) -> Array:
    return tensor.numpy(force=True).astype(float)


def parts_of(module: nn.Module) -> Parts | None:
    r"""The parts of a student; None of other modules than nets and trees of limbeck's own."""
    student: Any = module.student if isinstance(module, Answering) else module
    prepared = type(student) is Preprocessed
    network, encoder = (student.network, student.encoder) if prepared else (student, None)
    names = ("origin", "shift", "scale", "out_shift", "out_scale")
    buffers = (getattr(student, name) if prepared else None for name in names)
    arrays: Any = (None if b is None else _numbers(b).ravel() for b in buffers)
    origin, shift, scale, out_shift, out_scale = arrays
    known = type(network) in (MLP, Trees) and (encoder is None or type(encoder) is TableEncoder)
    trees = type(network) is Trees
    if not known or (shift is not None and (encoder is not None or trees)):
        return None
    features, knots = None, 0
    if encoder is not None:
        features, knots = number_features(encoder), len(encoder.source)
        if encoder.columns:  # of an array: its features are all that there is
            place, encoder = encoder.place.numpy(force=True), None
            features = features._replace(which=place[features.which])
    if shift is not None:  # a column of scale 0 is ignored
        which = np.flatnonzero(scale)
        free = np.full(len(which), np.inf)
        features = NumberFeatures(which, shift[which], 1 / scale[which], -free, free)
    out_scale = np.ones(1) if out_scale is None else out_scale
    out_shift = np.zeros(1) if out_shift is None else out_shift
    form: Any = (module.task, module.form) if type(module) is Answering else (None, "")
    return Parts(network, encoder, features, knots, origin, out_scale, out_shift, *form)


def number_features(encoder: TableEncoder) -> NumberFeatures:
    r"""The features of an encoder's numbers: standardised, and between knots."""
    order = torch.arange(len(encoder.mean), device=encoder.mean.device)
    between = torch.ones_like(encoder.lower)
    parts = (
        (order, encoder.source), (encoder.mean, encoder.lower), (encoder.scale, encoder.distance),
        (encoder.low, 0 * between), (encoder.high, between),
    )  # fmt: skip
    return NumberFeatures(*(torch.cat(pair).numpy(force=True) for pair in parts))


def categories_of(table: Table) -> list[Category]:
    r"""The columns of codes, in the order of encoded inputs; numbers are `table.numbers`."""
    return [column for column in table.varying if isinstance(column, Category)]


def is_wide(table: Table) -> bool:
    r"""Whether the numbers of a table have to be given in float64, as dates and large numbers."""
    return any(column.origin or column.kind == "date" for column in table.numbers)


def encoded_inputs(table: Table, batch: Mapping[str, Tensor]) -> dict[str, Array]:
    r"""Encoded inputs of a table's tensors: numbers (n, N), NaN where missing, and codes (n, C)."""
    numbers = [column.values(batch) + column.origin for column in table.numbers]
    codes = [batch[column.key].numpy(force=True) for column in categories_of(table)]
    wide = np.float64 if is_wide(table) else np.float32
    arrays = {"numbers": (numbers, wide), "codes": (codes, np.int64)}
    return {name: np.stack(own, 1).astype(kind) for name, (own, kind) in arrays.items() if own}


def encoded_columns(table: Table) -> list[tuple[str, str]]:
    r"""What each of the encoded inputs is: its place, and the column with its values."""
    rows = []
    for k, number in enumerate(table.numbers):
        unit = "date, in seconds since 1970 in UTC" if number.kind == "date" else number.kind
        gaps = "NaN if missing" if number.mask else "never missing"
        rows.append((f"numbers[{k}]", f"{number.name!r}: {unit}; {gaps}"))
    for k, column in enumerate(categories_of(table)):
        values = [*map(repr, column.categories), "any other", *["missing"] * bool(column.missing)]
        listed = ", ".join(f"{code} is {value}" for code, value in enumerate(values))
        rows.append((f"codes[{k}]", f"{column.name!r}: {listed}"))
    return rows
