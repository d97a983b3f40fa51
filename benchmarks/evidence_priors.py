r"""Priors of posteriors of `evidence_models.py`, as nested sampling takes them: maps of a cube."""

from __future__ import annotations

import math
from collections.abc import Callable

import evidence_models
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import softplus
from torch.special import ndtr, ndtri

Function = Callable[[Tensor], Tensor]
BOXES = {  # the banana's leaves out less than 1e-8 of it
    "shells, d = 5": ([-6.0] * 5, [6.0] * 5),
    "banana, d = 4": ([-18.0, -105.0, -6.0, -6.0], [18.0, 10.0, 6.0, 6.0]),
}
PROBLEMS = (*BOXES, "eight schools", "mixture model")


def schools(z: Tensor) -> Tensor:
    r"""μ ~ N(0, 5²), τ ~ half-Cauchy(5) and θ ~ N(μ, τ²) of normal variables."""
    mu, tau = 5 * z[:, :1], 5 * (math.pi / 2 * ndtr(z[:, 1:2])).tan()
    return torch.cat([mu, tau, mu + tau * z[:, 2:]], 1)


def prior_of(name: str) -> tuple[int, Function, Function]:
    r"""Dimension, map from the unit cube, and log likelihood of what it returns."""
    log_density = evidence_models.OTHERS[name]().log_density
    if name == "eight schools":
        y, s = evidence_models.SCHOOLS
        return 10, lambda q: schools(ndtri(q)), lambda x: Normal(x[:, 2:], s).log_prob(y).sum(1)
    if name == "mixture model":

        def log_likelihood(x: Tensor) -> Tensor:
            log_prior = Normal(0.0, 3.0).log_prob(x[:, :2]).sum(1)
            return log_density(x) - log_prior + softplus(x[:, 2]) + softplus(-x[:, 2])

        return 3, lambda q: torch.cat([3 * ndtri(q[:, :2]), q[:, 2:].logit()], 1), log_likelihood
    low, high = (torch.tensor(side) for side in BOXES[name])
    volume = float((high - low).log().sum())
    return len(low), lambda q: low + (high - low) * q, lambda x: log_density(x) + volume
