r"""Densities, and predictive distributions by their means, as lines of NumPy."""

from __future__ import annotations

from typing import Any

import torch

from limbeck.condensation.models import MLPRegression, Regression
from limbeck.condensation.predict_function import Means
from limbeck.condensation.sample_bag import SampleBag
from limbeck.errors import LimbeckError
from limbeck.export.numpy_layers import FLAT, class_probabilities
from limbeck.export.numpy_predictor import KINDS, Script
from limbeck.export.onnx_file import whitened
from limbeck.models.mixture import GaussianMixture
from limbeck.models.nade import NADE

__all__ = ["DENSITIES"]

MEANS = {
    "linear": "z",
    "logistic": "sigmoid(z)",
    "probit": "normal_cdf(z)",
    "poisson": "np.exp(z)",
    "softmax": "softmax(z)",
}
r"""The mean of y at z, by family of regressions."""


def _mixture(script: Script, module: GaussianMixture, prefix: str) -> None:
    names = ("inverse", "means", "constant")
    inverse, means, constant = (
        script.array(prefix + name, value)
        for name, value in zip(names, whitened(module), strict=True)
    )
    script.add(FLAT)
    script.add(f"z = (h - {means}[:, None]) @ {inverse}.transpose(0, 2, 1)  # (K, n, D)")
    script.add(f"h = np.logaddexp.reduce({constant}[:, None] - (z**2).sum(2) / 2, 0)")


def _nade(script: Script, module: NADE, prefix: str) -> None:
    support: Any = module.support
    if support.count != 2:
        raise LimbeckError("export: a NADE of more than two states has no NumPy form; save it")
    parts = ("w", "c", "u", "b", "order")
    w, c, u, b, order = (script.array(prefix + name, getattr(module, name)) for name in parts)
    centre = module.mean if module.mean is not None else torch.zeros_like(module.b)
    mean = script.array(f"{prefix}mean", centre)
    script.add(f"h = (h.reshape(len(h), -1)[:, {order}] - {support.first}) / {support.step}")
    script.add("if not np.isin(h, (0, 1)).all():")
    script.add(f'    raise ValueError("x: expected {support.described}")')
    script.add(f"a, total = np.repeat({c}[None], len(h), 0), np.zeros(len(h))")
    script.add("for i in range(h.shape[1]):  # p(x_i = 1 | x_<i) = sigmoid(z)")
    script.add(f"    z = sigmoid(a) @ {u}[i] + {b}[i]")
    script.add("    total += h[:, i] * z - np.logaddexp(0, z)")
    script.add(f"    a += (h[:, i, None] - {mean}[i]) * {w}[i]")
    script.add("h = total")


def _means(script: Script, module: Means, prefix: str) -> None:
    script.module(module.student, prefix)
    head = module.head
    if isinstance(module.student, SampleBag):  # which gives means itself
        return
    if head.classes:
        class_probabilities(script, head.form)
        if head.kind == "Bernoulli":
            script.add("h = h[:, 1]")
        return
    script.add(FLAT)
    if head.kind == "Poisson":
        script.add("h = np.exp(h[:, 0])")
    elif head.kind == "Normal":
        script.add("if h.shape[1] > 2:  # a mixture: logits, means, log scales")
        script.add("    h = (softmax(np.split(h, 3, 1)[0]) * np.split(h, 3, 1)[1]).sum(1)[:, None]")
        script.add("h = h[:, 0]")
    else:
        raise LimbeckError(f"export: means of {head.kind} have no NumPy form")


def _bag(script: Script, module: SampleBag, prefix: str) -> None:
    model = module.predict
    mix = script.array(f"{prefix}mix", module.weights.double())
    if isinstance(model, Regression):
        _regressions(script, module, model, prefix)
    elif isinstance(model, MLPRegression):
        _networks(script, module, model, prefix)
    else:
        raise LimbeckError(
            "export: a SampleBag of the user's own function has no NumPy form; expected the "
            "models of limbeck.condensation.models, or .onnx and .pt2"
        )
    script.add(f"h = np.tensordot({mix}, h, 1)  # the average over components")


def _regressions(script: Script, bag: SampleBag, model: Regression, prefix: str) -> None:
    flat, features = bag._flat.detach(), script.features
    weights, biases = [], []
    for row in flat:
        draw: Any = bag.structure.unflatten(row)
        cut = model._named(draw) if isinstance(draw, dict) else model._cut(draw, features)
        weights.append(cut[0].reshape(features, -1))
        biases.append(torch.as_tensor(cut[1]).to(row).expand(weights[-1].shape[1]))
    weight = script.array(f"{prefix}weights", torch.stack(weights))  # (components, D, K)
    bias = script.array(f"{prefix}bias", torch.stack(biases))
    script.add(FLAT)
    script.add(f"z = h @ {weight} + {bias}[:, None]  # (components, n, outputs)")
    if model.family != "softmax":
        script.add("z = z[:, :, 0]")
    script.add(f"h = {MEANS[model.family]}")


def _networks(script: Script, bag: SampleBag, model: MLPRegression, prefix: str) -> None:
    draws: Any = bag.structure.unflatten(bag._flat.detach())
    if not isinstance(draws, dict):
        draws = model.structure.unflatten(draws[:, : model.structure.dim])
    net = model._net
    script.add("z = h.reshape(len(h), -1)")
    for number, kind in enumerate((*net.hidden, net.output)):
        weight = script.array(f"{prefix}{number}.weight", draws[f"layers.{number}.weight"])
        line = f"z @ {weight}.transpose(0, 2, 1)"
        if f"layers.{number}.bias" in draws:
            bias = script.array(f"{prefix}{number}.bias", draws[f"layers.{number}.bias"])
            line += f" + {bias}[:, None]"
        script.add(f"z = {KINDS[kind].format(line)}")
    if net.sizes[-1] > 1:
        script.add("h = softmax(z)")
    else:
        script.add("h = z[:, :, 0]" if model.scale is not None else "h = sigmoid(z[:, :, 0])")


DENSITIES: dict[type, Any] = {
    GaussianMixture: _mixture,
    NADE: _nade,
    Means: _means,
    SampleBag: _bag,
}
r"""By type of module, what writes its lines."""
