r"""Chapter 2's measures: a classifier at each test example, and what is kept of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck.arrays import full_precision
from limbeck.models.nade import NADE

__all__ = [
    "Curve",
    "Examples",
    "against",
    "examples",
    "marks",
    "mean_and_error",
    "measured",
    "shown",
]

SHOWN = 16
r"""NADE's samples kept among the results."""


class Examples(NamedTuple):
    r"""How a net does at each test example, (n,): whether it is right, in %, and log f_y."""

    accuracy: Tensor
    log_prob: Tensor


@torch.no_grad()
def examples(model: nn.Module, x: Tensor, y: Tensor) -> Examples:
    r"""A classifier's figures at each of x (n, ...) with labels y (n,), in double precision."""
    net: Any = model
    with full_precision():
        logs = torch.cat([net.log_probabilities(part).double() for part in x.split(2000)])
    return Examples(100.0 * (logs.argmax(1) == y).double(), logs.gather(1, y.unsqueeze(1))[:, 0])


def measured(found: Examples) -> dict[str, list[float]]:
    r"""The mean of each figure over the examples, with its standard error."""
    return {name: mean_and_error(values) for name, values in found._asdict().items()}


def against(found: Examples, other: Examples) -> dict[str, list[float]]:
    r"""The same of the differences from another net, example by example."""
    return measured(Examples(*(one - two for one, two in zip(found, other, strict=True))))


def mean_and_error(values: Tensor) -> list[float]:
    r"""The mean over examples (n,), and its standard error."""
    spread = values.std().item() if len(values) > 1 else 0.0
    return [round(values.mean().item(), 5), round(spread / len(values) ** 0.5, 5)]


def marks(steps: int, count: int = 30) -> list[int]:
    r"""Steps at which a learning curve is measured: evenly in their logarithm, up to the last.

    >>> marks(1000, 4)
    [10, 32, 100, 316, 1000]
    """
    first = min(10, steps)
    return sorted({round(first * (steps / first) ** (i / count)) for i in range(count + 1)})


class Curve:
    r"""Figures on test examples along a training, against the number of samples seen.

    Arguments:
        x: Test inputs (n, ...).
        y: Their labels (n,).
        steps: The steps at which to look.
        batch_size: Samples a step.
    """

    def __init__(self, x: Tensor, y: Tensor, steps: list[int], batch_size: int) -> None:
        self.x, self.y, self.steps, self.batch_size = x, y, frozenset(steps), batch_size
        self.points: list[tuple[int, float, float]] = []

    def record(self, step: int, net: nn.Module) -> None:
        r"""Measure the net after a step, if that is one to look at."""
        if step in self.steps:
            now = examples(net, self.x, self.y)
            accuracy, log_prob = now.accuracy.mean().item(), now.log_prob.mean().item()
            self.points.append((step * self.batch_size, round(accuracy, 3), round(log_prob, 4)))

    def to_dict(self) -> dict[str, list[float]]:
        r"""Lists by name, for JSON; empty if nothing was measured."""
        if not self.points:
            return {}
        names = ("samples", *Examples._fields)
        return {
            name: list(each)
            for name, each in zip(names, zip(*self.points, strict=True), strict=True)
        }


def shown(nade: NADE) -> dict[str, list[str]]:
    r"""A few samples of a NADE and the probabilities met, a hexadecimal digit a pixel."""
    found = {}
    for name, draw in (("bits", nade.sample), ("probabilities", nade.sample_probabilities)):
        drawn = draw(SHOWN, torch.Generator(nade.order.device).manual_seed(0))
        rows = (15 * drawn).round().int().tolist()
        found[name] = ["".join(f"{value:x}" for value in row) for row in rows]
    return found
