r"""Layers and tables as lines of NumPy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from torch import nn

from limbeck.compression.training import Answering
from limbeck.errors import LimbeckError
from limbeck.export.numpy_predictor import Script
from limbeck.models.ensemble import Ensemble
from limbeck.models.mlp import MLP, BatchedMLP
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import SURE, Trees
from limbeck.tables.columns import Category, Number

__all__ = ["LAYERS", "READER", "TABLES", "beginning", "class_probabilities", "described"]

FLAT = "h = h.reshape(len(h), -1)"


def class_probabilities(script: Script, form: str) -> None:
    r"""From a classifier's outputs in a form to probabilities (n, K), of at least two classes."""
    script.add(FLAT)
    if form == "logits":
        script.add("h = softmax(np.hstack([0 * h, h]) if h.shape[1] == 1 else h)")
        return
    if form == "log_probabilities":
        script.add("h = np.exp(h)")
    script.add("h = np.hstack([1 - h, h]) if h.shape[1] == 1 else h")


def _answering(script: Script, module: Answering, prefix: str) -> None:
    script.module(module.student, prefix)
    if module.task == "classification":
        class_probabilities(script, module.form)
        return
    script.add(FLAT)
    if module.task == "multilabel" and module.form != "probabilities":
        script.add("h = sigmoid(h)")


def _mlp(script: Script, module: MLP, prefix: str) -> None:
    script.add(FLAT)
    for number, (layer, kind) in enumerate(
        zip(module.layers, (*module.hidden, module.output), strict=True)
    ):
        _linear(script, layer, f"{prefix}{number}.", kind)


def _linear(script: Script, layer: Any, prefix: str, kind: str = "linear") -> None:
    weight = script.array(f"{prefix}weight", layer.weight)
    bias = None if layer.bias is None else script.array(f"{prefix}bias", layer.bias)
    script.dense(weight, bias, kind)


def _preprocessed(script: Script, module: Preprocessed, prefix: str) -> None:
    if module.origin is not None:
        script.add(f"h = h - {script.array(f'{prefix}origin', module.origin)}")
    if module.encoder is not None:
        script.module(module.encoder, f"{prefix}encoder.")
    if module.shift is not None and module.scale is not None:
        shift = script.array(f"{prefix}shift", module.shift)
        scale = script.array(f"{prefix}scale", module.scale)
        script.add(f"h = np.where({scale} == 0, 0, (h - {shift}) * {scale})")
    script.module(module.network, prefix)
    if module.out_shift is not None and module.out_scale is not None:
        scale = script.array(f"{prefix}out_scale", module.out_scale)
        script.add(f"h = h * {scale} + {script.array(f'{prefix}out_shift', module.out_shift)}")


def _ensemble(script: Script, module: Ensemble, prefix: str) -> None:
    given, sums = f"x{len(script.lines)}", f"y{len(script.lines)}"
    kinds = module.kinds * len(module) if len(module.kinds) == 1 else module.kinds
    weights = [1 / len(module)] * len(module)
    if module.weights is not None:
        weights = module.weights.double().tolist()
    script.add(f"{given}, {sums} = h, 0")
    for number, (member, kind) in enumerate(zip(module, kinds, strict=True)):
        if not isinstance(member, nn.Module):
            raise LimbeckError("export: a function in an Ensemble has no NumPy form")
        script.add(f"h = {given}")
        script.module(member, f"{prefix}{number}.")
        if kind == "logits":
            script.add("h = sigmoid(h) if h.ndim == 1 or h.shape[-1] == 1 else softmax(h)")
        elif kind == "log_probabilities":
            script.add("h = np.exp(h)")
        script.add(f"{sums} = {sums} + {weights[number]!r} * h")
    script.add(f"h = {sums}")


def _batched(script: Script, module: BatchedMLP, prefix: str) -> None:
    found = [module.member(number) for number in range(module.members)]
    script.add("x, members = h, []")
    for number, member in enumerate(found):
        script.add("h = x")
        script.module(member, f"{prefix}{number}.")
        script.add("members.append(h)")
    script.add("h = np.stack(members, 1)")


def _trees(script: Script, module: Trees, prefix: str) -> None:
    names = ("roots", "left", "feature", "threshold", "value", "base")
    roots, left, feature, threshold, value, base = (
        script.array(prefix + name, getattr(module, name)) for name in names
    )
    script.add("h = h.reshape(len(h), -1).astype(np.float32)  # as thresholds are")
    script.add("gone = np.isnan(h)")
    script.add("h = np.hstack([np.where(gone, -np.inf, h), np.where(gone, np.inf, h)])")
    script.add(f"node = np.repeat({roots}[None], len(h), 0)  # (n, trees), one level deeper a turn")
    script.add(f"for _ in range({module.depth}):")
    script.add(f"    right = np.take_along_axis(h, {feature}[node], 1) > {threshold}[node]")
    script.add(f"    node = {left}[node] + right")
    script.add(f"h = {base} + {value}[node].sum(1)")
    if module.kind == "labels":
        script.add(f"h = np.clip(h, {SURE}, 1 - {SURE})")
        script.add("h = np.log(h) - np.log(1 - h)")


def _sequential(script: Script, module: nn.Sequential, prefix: str) -> None:
    for number, layer in enumerate(module):
        script.module(layer, f"{prefix}{number}.")


def _nothing(script: Script, module: nn.Module, prefix: str) -> None:
    pass


def _flatten(script: Script, module: nn.Flatten, prefix: str) -> None:
    if module.start_dim != 1 or module.end_dim != -1:
        raise LimbeckError("export: this nn.Flatten has no NumPy form; one of all but rows has")
    script.add(FLAT)


def _last_axis(script: Script, module: Any, prefix: str) -> None:
    if module.dim not in (-1, 1):
        raise LimbeckError("export: a softmax over another axis than the last has no NumPy form")
    script.add(f"h = {'softmax' if isinstance(module, nn.Softmax) else 'log_softmax'}(h)")


def _normalised(script: Script, module: nn.BatchNorm1d, prefix: str) -> None:
    if module.running_mean is None or module.running_var is None:
        raise LimbeckError("export: batch normalisation without running means has no NumPy form")
    scale = (module.running_var.double() + module.eps).rsqrt()
    scale = scale if module.weight is None else scale * module.weight.double()
    shift = -module.running_mean.double() * scale
    shift = shift if module.bias is None else shift + module.bias.double()
    multiplied = script.array(f"{prefix}scale", scale)
    script.add(f"h = h * {multiplied} + {script.array(f'{prefix}shift', shift)}")


def _simple(line: str) -> Any:
    return lambda script, module, prefix: script.add(line)


LAYERS: dict[type, Any] = {
    Answering: _answering,
    MLP: _mlp,
    BatchedMLP: _batched,
    Preprocessed: _preprocessed,
    Ensemble: _ensemble,
    Trees: _trees,
    nn.Linear: _linear,
    nn.Sequential: _sequential,
    nn.Identity: _nothing,
    nn.Dropout: _nothing,
    nn.Flatten: _flatten,
    nn.BatchNorm1d: _normalised,
    nn.ReLU: _simple("h = relu(h)"),
    nn.Tanh: _simple("h = np.tanh(h)"),
    nn.Sigmoid: _simple("h = sigmoid(h)"),
    nn.Softmax: _last_axis,
    nn.LogSoftmax: _last_axis,
}
r"""By type of module, what writes its lines."""


READER = '''
def read(given, column):
    """The numbers or codes of one column, and which are missing."""
    if "categories" in column:
        codes = {value: code for code, value in enumerate(column["categories"])}
        text, found = isinstance(column["categories"][0], str), []
        for value in np.asarray(given, object).tolist():
            gone = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
            if not gone and isinstance(value, str) != text:
                raise ValueError(f"{column['name']}: got {value!r}, of another kind than before")
            if gone and not column["gaps"]:
                raise ValueError(f"{column['name']}: got a missing value; the data had none")
            found.append(len(codes) + 1 if gone else codes.get(value, len(codes)))
        return np.array(found, int), None
    if column["date"]:
        dates = np.asarray(given, "datetime64[us]")  # in UTC
        value = np.where(np.isnat(dates), np.nan, dates.astype("int64") / 1e6)
    else:
        value = [np.nan if v is None or type(v).__name__ == "NAType" else v for v in given]
        if any(isinstance(v, str) for v in value):
            raise ValueError(f"{column['name']}: expected numbers")
        value = np.array(value, float)
    gone = np.isnan(value)
    if np.isinf(value).any() or (gone.any() and not column["mask"]):
        raise ValueError(f"{column['name']}: expected finite numbers, as the data had")
    return np.where(gone, column["fill"], value - column["origin"]).astype(np.float32), gone
'''
r"""What scripts of tables define."""


def described(table: Any) -> list[dict[str, Any]]:
    r"""What a script must know of the columns that vary."""
    found = []
    for column in table.varying:
        own = {"name": column.name, "key": column.key}
        if isinstance(column, Category):
            own |= {"categories": list(column.categories), "gaps": bool(column.missing)}
        else:
            assert isinstance(column, Number)
            own |= {"date": column.kind == "date", "mask": column.mask}
            own |= {"fill": column.fill, "origin": column.origin}
        found.append(own)
    return found


def beginning(script: Script, table: Any) -> None:
    r"""The lines from columns by name to the table's tensors."""
    script.array("columns", np.array(json.dumps(described(table))))
    script.add("h = {}")
    script.add('for column in json.loads(str(W["columns"])):')
    script.add('    h[column["key"]], gone = read(frame[column["name"]], column)')
    script.add('    if column.get("mask"):')
    script.add('        h[column["mask"]] = gone')


def _encoder(script: Script, module: TableEncoder, prefix: str) -> None:
    exact = ".astype(np.float32)" if script.single else ""
    script.add("f = []")
    if module.numbers:
        keys, count = [each.key for each in module.numbers], len(module.masks)
        mean, scale, fill = (
            script.array(prefix + name, getattr(module, name)) + exact
            for name in ("mean", "scale", "fill")
        )
        script.add(f"v = np.stack([h[key] for key in {keys!r}], 1)")
        if count:
            script.add(f"gone = np.stack([h[key] for key in {module.masks!r}], 1)")
            filled = f"np.where(gone, {fill}[:{count}], v[:, :{count}])"
            script.add(f"v = np.hstack([{filled}, v[:, {count}:]])")
        script.add(f"f.append((v - {mean}) / {scale})")
        if count:
            script.add("f.append(gone)")
    if module.indicated:
        keys = [each.key for each in module.indicated]
        which, slots = (
            script.array(prefix + name, getattr(module, name)) for name in ("which", "slots")
        )
        script.add(f"v = np.stack([h[key] for key in {keys!r}], 1)")
        script.add(f"f.append(v[:, {which}] == {slots})")
    for number, (key, layer) in enumerate(zip(module.embedded, module.embeddings, strict=True)):
        weight: Any = layer.weight
        script.add(f"f.append({script.array(f'{prefix}{number}.embedding', weight)}[h[{key!r}]])")
    script.add("h = np.hstack(f)")


TABLES: dict[type, Any] = {TableEncoder: _encoder}
r"""By type of module, what writes its lines."""
