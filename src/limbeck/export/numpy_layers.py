r"""Modules as lines of NumPy: layers, trees, densities, and predictive distributions."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.compression.training import Answering
from limbeck.condensation.models import MLPRegression, Regression
from limbeck.condensation.predict_function import Means
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import LimbeckError
from limbeck.export.torch_files import whitened
from limbeck.models.ensemble import Ensemble
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mlp import MLP
from limbeck.models.nade import NADE
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.tree import SURE, Trees

FUNCTIONS = {  # of z, that scripts define where they use them
    "relu": "np.maximum(z, 0)",
    "sigmoid": "np.exp(-np.logaddexp(0, -z))",
    "log_softmax": "z - np.logaddexp.reduce(z, axis=-1, keepdims=True)",
    "softmax": "np.exp(z - np.logaddexp.reduce(z, axis=-1, keepdims=True))",
    "normal_cdf": "np.vectorize(math.erfc)(-z / 2**0.5) / 2",
}

KINDS = {  # the layer kinds of `MLP` and the means of regressions, as expressions
    "linear": "{}", "relu": "relu({})", "tanh": "np.tanh({})", "logistic": "sigmoid({})",
    "probit": "normal_cdf({})", "poisson": "np.exp({})", "softmax": "softmax({})",
    "log_softmax": "log_softmax({})",
}  # fmt: skip


class Script:
    r"""The body of a function: each line changes `h`, which begins as the input.

    `features` counts the numbers in a row; with `single` they have 32 bits, as trees compare them.
    """

    def __init__(self, name: str, features: int = 0, single: bool = False) -> None:
        self.name, self.features, self.single = name, features, single
        self.numbers, self.codes = list[str](), list[str]()  # keys of a table's columns, in order
        self.lines: list[str] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, *lines: str) -> None:
        r"""Add lines."""
        self.lines += lines

    def array(self, name: str, value: Tensor | np.ndarray[Any, Any]) -> str:
        r"""Store an array; the expression for it."""
        self.arrays[name] = value.numpy(force=True) if isinstance(value, Tensor) else value
        return f'W["{name}"]'

    def attributes(self, module: nn.Module, prefix: str, *names: str) -> list[str]:
        r"""Store tensors of a module; the expressions for them."""
        return [self.array(prefix + name, getattr(module, name)) for name in names]


FLAT = "h = h.reshape(len(h), -1)"
SIMPLE: dict[type[nn.Module], list[str]] = {
    nn.Identity: [], nn.Dropout: [], nn.Flatten: [FLAT], nn.ReLU: ["h = relu(h)"],
    nn.Tanh: ["h = np.tanh(h)"], nn.Sigmoid: ["h = sigmoid(h)"], nn.Softmax: ["h = softmax(h)"],
    nn.LogSoftmax: ["h = log_softmax(h)"],
}  # fmt: skip


@singledispatch
def write(module: nn.Module, script: Script, prefix: str) -> None:
    r"""Add the lines of a module to a script; the names of its arrays begin with a prefix."""
    lines = next((line for kind, line in SIMPLE.items() if isinstance(module, kind)), None)
    if lines is None:
        raise LimbeckError(
            f"export: {type(module).__name__} in {script.name} has no NumPy form; expected MLP, "
            "Preprocessed, Trees, Ensemble, GaussianMixture, a NADE of two states, a SampleBag of "
            "a ready-made model, simple torch layers; .onnx and .pt2 take other modules"
        )
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
        raise LimbeckError("export: this nn.Flatten has no NumPy form; one of all but rows has")
    if isinstance(module, nn.Softmax | nn.LogSoftmax) and module.dim not in (-1, 1):
        raise LimbeckError("export: a softmax over another axis than the last has no NumPy form")
    script.add(*lines)


def class_probabilities(script: Script, form: str) -> None:
    r"""From a classifier's outputs in a form to probabilities (n, K), of at least two classes."""
    both = "h = np.hstack([1 - h, h]) if h.shape[1] == 1 else h"
    logits = "h = softmax(np.hstack([0 * h, h]) if h.shape[1] == 1 else h)"
    lines = {"logits": [logits], "log_probabilities": ["h = np.exp(h)", both]}
    script.add(FLAT, *lines.get(form, [both]))


@write.register
def _answering(module: Answering, script: Script, prefix: str) -> None:
    write(module.student, script, prefix)
    if module.task == "classification":
        class_probabilities(script, module.form)
    else:
        labels = module.task == "multilabel" and module.form != "probabilities"
        script.add(FLAT, *(["h = sigmoid(h)"] if labels else []))


@write.register
def _mlp(module: MLP, script: Script, prefix: str) -> None:
    script.add(FLAT)
    kinds, layers = (*module.hidden, module.output), cast("list[nn.Linear]", module.layers)
    for number, (layer, kind) in enumerate(zip(layers, kinds, strict=True)):
        _linear(layer, script, f"{prefix}{number}.", kind)


@write.register
def _linear(module: nn.Linear, script: Script, prefix: str, kind: str = "linear") -> None:
    weight = script.array(f"{prefix}weight", module.weight)
    bias = "" if module.bias is None else f" + {script.array(f'{prefix}bias', module.bias)}"
    script.add(f"h = {KINDS[kind].format(f'h @ {weight}.T{bias}')}")


@write.register
def _preprocessed(module: Preprocessed, script: Script, prefix: str) -> None:
    if module.origin is not None:
        script.add(f"h = h - {script.array(f'{prefix}origin', module.origin)}")
    if module.encoder is not None:
        write(module.encoder, script, f"{prefix}encoder.")
    if module.shift is not None and module.scale is not None:
        shift, scale = script.attributes(module, prefix, "shift", "scale")
        script.add(f"h = np.where({scale} == 0, 0, (h - {shift}) * {scale})")
    write(module.network, script, prefix)
    if module.out_shift is not None and module.out_scale is not None:
        scale, shift = script.attributes(module, prefix, "out_scale", "out_shift")
        script.add(f"h = h * {scale} + {shift}")


@write.register
def _ensemble(module: Ensemble, script: Script, prefix: str) -> None:
    inputs, sums = f"x{len(script.lines)}", f"y{len(script.lines)}"
    kinds = module.kinds * len(module) if len(module.kinds) == 1 else module.kinds
    equal = [1 / len(module)] * len(module)
    weights = equal if module.weights is None else module.weights.double().tolist()
    logits = "h = sigmoid(h) if h.ndim == 1 or h.shape[-1] == 1 else softmax(h)"
    to_probabilities = {"logits": [logits], "log_probabilities": ["h = np.exp(h)"]}
    script.add(f"{inputs}, {sums} = h, 0")
    for number, (member, kind, weight) in enumerate(zip(module, kinds, weights, strict=True)):
        if not isinstance(member, nn.Module):
            raise LimbeckError("export: a function in an Ensemble has no NumPy form")
        script.add(f"h = {inputs}")
        write(member, script, f"{prefix}{number}.")
        script.add(*to_probabilities.get(kind, ()), f"{sums} = {sums} + {weight!r} * h")
    script.add(f"h = {sums}")


@write.register
def _trees(module: Trees, script: Script, prefix: str) -> None:
    roots, left, feature, threshold, value, base = script.attributes(
        module, prefix, "roots", "left", "feature", "threshold", "value", "base"
    )
    script.add(
        "h = h.reshape(len(h), -1).astype(np.float32)  # as thresholds are",
        "gone = np.isnan(h)",
        "h = np.hstack([np.where(gone, -np.inf, h), np.where(gone, np.inf, h)])",
        f"node = np.repeat({roots}[None], len(h), 0)  # (n, trees), one level deeper a turn",
        f"for _ in range({module.depth}):",
        f"    right = np.take_along_axis(h, {feature}[node], 1) > {threshold}[node]",
        f"    node = {left}[node] + right",
        f"h = {base} + {value}[node].sum(1)",
    )
    if module.kind == "labels":
        script.add(f"h = np.clip(h, {SURE}, 1 - {SURE})", "h = np.log(h) - np.log(1 - h)")


@write.register
def _sequential(module: nn.Sequential, script: Script, prefix: str) -> None:
    for number, layer in enumerate(module):
        write(layer, script, f"{prefix}{number}.")


@write.register
def _batch_norm(module: nn.BatchNorm1d, script: Script, prefix: str) -> None:
    if module.running_mean is None or module.running_var is None:
        raise LimbeckError("export: batch normalisation without running means has no NumPy form")
    scale = (module.running_var.double() + module.eps).rsqrt()
    scale = scale if module.weight is None else scale * module.weight.double()
    shift = -module.running_mean.double() * scale
    shift = shift if module.bias is None else shift + module.bias.double()
    factor = script.array(f"{prefix}scale", scale)
    script.add(f"h = h * {factor} + {script.array(f'{prefix}shift', shift)}")


@write.register
def _mixture(module: GaussianMixture, script: Script, prefix: str) -> None:
    names = (f"{prefix}{name}" for name in ("inverse", "means", "constant"))
    inverse, means, constant = map(script.array, names, whitened(module))
    script.add(
        FLAT,
        f"z = (h - {means}[:, None]) @ {inverse}.transpose(0, 2, 1)  # (K, n, D)",
        f"h = np.logaddexp.reduce({constant}[:, None] - (z**2).sum(2) / 2, 0)",
    )


@write.register
def _nade(module: NADE, script: Script, prefix: str) -> None:
    support: Any = module.support
    if support.count != 2:
        raise LimbeckError("export: a NADE of more than two states has no NumPy form; save it")
    w, c, u, b, order = script.attributes(module, prefix, "w", "c", "u", "b", "order")
    centre = module.mean if module.mean is not None else torch.zeros_like(module.b)
    mean = script.array(f"{prefix}mean", centre)
    script.add(
        f"h = (h.reshape(len(h), -1)[:, {order}] - {support.first}) / {support.step}",
        "if not np.isin(h, (0, 1)).all():",
        f"    raise ValueError({f'x: expected {support.description}'!r})",
        f"a, total = np.repeat({c}[None], len(h), 0), np.zeros(len(h))",
        "for i in range(h.shape[1]):  # p(x_i = 1 | x_<i) = sigmoid(z)",
        f"    z = sigmoid(a) @ {u}[i] + {b}[i]",
        "    total += h[:, i] * z - np.logaddexp(0, z)",
        f"    a += (h[:, i, None] - {mean}[i]) * {w}[i]",
        "h = total",
    )


@write.register
def _means(module: Means, script: Script, prefix: str) -> None:
    write(module.student, script, prefix)
    head = module.head
    if isinstance(module.student, SampleBag):  # which gives means itself
        return
    if head.classes:
        class_probabilities(script, head.form)
        if head.kind == "Bernoulli":
            script.add("h = h[:, 1]")
    elif head.kind == "Poisson":
        script.add(FLAT, "h = np.exp(h[:, 0])")
    elif head.kind == "Normal":
        script.add(
            FLAT,
            "if h.shape[1] > 2:  # a mixture: logits, means, log scales",
            "    h = (softmax(np.split(h, 3, 1)[0]) * np.split(h, 3, 1)[1]).sum(1)[:, None]",
            "h = h[:, 0]",
        )
    else:
        raise LimbeckError(f"export: means of {head.kind} have no NumPy form")


@write.register
def _bag(module: SampleBag, script: Script, prefix: str) -> None:
    mix = script.array(f"{prefix}mix", module.weights.double())
    layers: list[tuple[Tensor, Tensor | None, str]]
    draws: Any = module._draws
    if isinstance(model := module.predict, Regression):

        def slopes(draw: Any) -> tuple[Tensor, Tensor]:  # (D, K) and (K,)
            weight, bias, _ = model.parts(draw, script.features)
            weight = weight.reshape(script.features, -1)
            return weight, torch.as_tensor(bias).to(weight).expand(weight.shape[1])

        layers = [(*torch.vmap(slopes)(draws), "linear")]
        end = KINDS[model.family]
        end = end if model.family == "softmax" else end.replace("{}", "{}[:, :, 0]")
    elif isinstance(model, MLPRegression):
        net, structure = model._net, model.structure
        if not isinstance(draws, dict):
            draws = structure.unflatten(draws[:, : structure.dim])
        names = [f"layers.{number}" for number in range(len(net.sizes) - 1)]
        tensors = [(draws[f"{name}.weight"].mT, draws.get(f"{name}.bias")) for name in names]
        kinds = (*net.hidden, net.output)
        layers = [(*pair, kind) for pair, kind in zip(tensors, kinds, strict=True)]
        one_output = "{}[:, :, 0]" if model.scale is not None else "sigmoid({}[:, :, 0])"
        end = "softmax({})" if net.sizes[-1] > 1 else one_output
    else:
        expected = "the models of limbeck.condensation.models, or .onnx and .pt2"
        received = "a SampleBag of the user's own function has no NumPy form"
        raise LimbeckError(f"export: {received}; expected {expected}")
    script.add("z = h.reshape(len(h), -1)")
    for number, (weight, bias, kind) in enumerate(layers):  # (components, n, outputs)
        line = f"z @ {script.array(f'{prefix}{number}.weight', weight)}"
        if bias is not None:
            line += f" + {script.array(f'{prefix}{number}.bias', bias)}[:, None]"
        script.add(f"z = {KINDS[kind].format(line)}")
    script.add(f"h = {end.format('z')}")
    script.add(f"h = np.tensordot({mix}, h, 1)  # the average over components")
