r"""Predictive distributions, and their averages over draws."""

from __future__ import annotations

from limbeck.distributions.base import Distribution, Mixture, average, broadcast, weighted_average
from limbeck.distributions.conversion import as_distribution, check
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.families import Censored, ZeroInflated, ordinal
from limbeck.distributions.gaussians import MultivariateNormal, Normal

__all__ = [
    "Bernoulli", "Categorical", "Censored", "Distribution", "Mixture", "MultivariateNormal",
    "Normal", "Poisson", "ZeroInflated", "as_distribution", "average", "broadcast", "check",
    "ordinal", "weighted_average",
]  # fmt: skip
