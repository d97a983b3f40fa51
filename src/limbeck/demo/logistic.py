r"""A posterior to condense: logistic regression on 24 points, as in the source text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.samplers.slice import Slice

__all__ = [
    "GRID",
    "NEAR",
    "PRIOR_VARIANCE",
    "SIDE",
    "Errors",
    "MonteCarlo",
    "errors",
    "log_posterior",
    "points",
    "sampler",
]

PRIOR_VARIANCE = 100.0

CENTRE, EACH = 4.0, 12
r"""Points of a class, about (±4, 0)."""

SIDE = torch.linspace(-8, 8, 65, dtype=torch.float64)
GRID = torch.cartesian_prod(SIDE, SIDE)
r"""Where predictions are compared: [−8, 8]² in steps of ¼."""

NEAR = GRID.norm(dim=1) <= 2
r"""Which of these places are near the origin."""


class Errors(NamedTuple):
    r"""|t − f|: its mean and maximum on the grid, and its mean near the origin."""

    mean: float
    highest: float
    near: float


class MonteCarlo(nn.Module):
    r"""The average over draws (S, 2): the probability (n,) of the label 1."""

    output_form = "probabilities"
    draws: Tensor

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.register_buffer("draws", draws)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.draws.T).sigmoid().mean(1)


def points(seed: int) -> tuple[Tensor, Tensor]:
    r"""24 points (24, 2) and their labels (24,): 12 of N((−4, 0), I), 12 of N((4, 0), I)."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(2).repeat_interleave(EACH)
    x = torch.randn(2 * EACH, 2, generator=generator, dtype=torch.float64)
    x[:, 0] += CENTRE * (2 * label - 1)
    return x, label


def log_posterior(x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    r"""log p(w | points) up to a constant, (n,), of weights w (n, 2)."""
    signed = (2 * y - 1)[:, None] * x

    def log_density(w: Tensor) -> Tensor:
        return F.logsigmoid(w @ signed.T).sum(1) - w.square().sum(1) / (2 * PRIOR_VARIANCE)

    return log_density


def sampler(x: Tensor, y: Tensor, chains: int, burn_in: int, seed: int) -> Slice:
    r"""Chains of the posterior that start at 0."""
    start = torch.zeros(chains, x.shape[1], dtype=x.dtype)
    return Slice(log_posterior(x, y), start, seed=seed).burn_in(burn_in)


def errors(truth: Tensor, found: Tensor) -> Errors:
    r"""How far predictions on the grid are from the truth."""
    apart = (truth - found).abs()
    return Errors(float(apart.mean()), float(apart.max()), float(apart[NEAR].mean()))
