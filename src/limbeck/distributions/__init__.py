r"""Predictive distributions, and their averages over draws."""

from __future__ import annotations

from limbeck.distributions.base import Distribution, Mixture, average, broadcast, weighted_average
from limbeck.distributions.checking import as_distribution, check
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.gaussians import MultivariateNormal, Normal

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Mixture",
    "MultivariateNormal",
    "Normal",
    "Poisson",
    "as_distribution",
    "average",
    "broadcast",
    "check",
    "weighted_average",
]  # fmt: skip
