r"""The mixture's predictive density without chains: the posterior of its three means on a grid."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reproduction.chapter3_mixtures import GRID, PRIOR_VARIANCE, VARIANCES

__all__ = ["exact_log_density", "marginals", "span"]

SPANS = ((20, 56.0, 0.5), (50, 24.0, 0.25), (200, 10.0, 0.125), (1000, 6.0, 0.08))
r"""For up to so many observations: how far the grid of a mean goes, and its step.

A mean without observations of its own is spread as by the prior, which gets the less probable the
more observations there are. A posterior's deviations are above twice the step, for which sums are
integrals to many digits.
"""

TOGETHER = 20
r"""Observations whose likelihoods are multiplied before the logarithm is taken."""


def span(count: int) -> tuple[float, float]:
    r"""How far the grid goes for so many observations, and its step."""
    for most, reach, step in SPANS:
        if count <= most:
            return reach, step
    return SPANS[-1][1], SPANS[-1][2] * math.sqrt(SPANS[-1][0] / count)


def marginals(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""The posterior of each mean given observations x (n,): places (m,), probabilities (3, m)."""
    reach, step = span(len(x))
    at = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    scaled = [
        torch.exp(-(x[:, None] - at).square() / (2 * variance)) / math.sqrt(variance)
        for variance in VARIANCES
    ]  # likelihoods (n, m) of each component
    prior = -at.square() / (2 * PRIOR_VARIANCE)
    found, top = at.new_zeros(3, len(at)), -math.inf
    for place in range(len(at)):  # of the first mean; the other two are a matrix
        log = prior[place] + prior[:, None] + prior
        for start in range(0, len(x), TOGETHER):
            some = slice(start, start + TOGETHER)
            product: Tensor | float = 1.0
            for one, two, three in zip(*(each[some] for each in scaled), strict=True):
                product = (one[place] + two[:, None] + three).mul_(product)
            assert isinstance(product, Tensor)
            log += product.log_()
        highest = float(log.max())
        if highest > top:
            found *= math.exp(top - highest)
            top = highest
        p = (log - top).exp_()
        found[0, place] += p.sum()
        found[1] += p.sum(1)
        found[2] += p.sum(0)
    return at, found / found.sum(1, keepdim=True)


def exact_log_density(x: Tensor, at: Tensor = GRID) -> Tensor:
    r"""log p(x | D) (points,) given observations, right to many digits."""
    places, probabilities = marginals(x)
    total = torch.zeros_like(at)
    for p, variance in zip(probabilities, VARIANCES, strict=True):
        z = (at - places[:, None]).square_().mul_(-0.5 / variance).exp_()
        total += p @ z / math.sqrt(2 * math.pi * variance)
    return (total / len(VARIANCES)).log()
