r"""Families that torch lacks: ordinal, zero-inflated and censored outcomes."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import UserObject
from limbeck.arrays import random
from limbeck.distributions.base import ABSENT, Distribution, Generator
from limbeck.distributions.discrete import Categorical


def ordinal(eta: UserObject[Tensor], cutpoints: UserObject[Tensor]) -> Categorical:
    r"""Ordered classes 0 … K−1 by cumulative logits: P(Y ≤ k) = σ(cutpoints[k] − eta).

    Arguments:
        eta: The linear predictor, (n,).
        cutpoints: Ascending numbers (K − 1,).

    >>> ordinal(torch.zeros(1), torch.tensor([-1.0, 1.0])).mean
    tensor([[0.2689, 0.4621, 0.2689]])
    """
    z = cutpoints - eta.unsqueeze(-1)
    low, high = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    # log(σ(b) − σ(a)) = log σ(b) + log σ(−a) + log(1 − e^(a − b))
    gap = (z[..., :-1] - z[..., 1:]).clamp_max(-torch.finfo(z.dtype).eps)
    between = low[..., 1:] + high[..., :-1] + torch.log(-torch.expm1(gap))
    return Categorical(logits=torch.cat([low[..., :1], between, high[..., -1:]], -1))


class DerivedFamily(Distribution):
    r"""The common base of families that change another one, `components`, of the same shape."""

    __slots__ = ()
    components: Any
    discrete = property(lambda self: self.components.discrete)


class ZeroInflated(
    DerivedFamily, namedtuple("Zeros", "zero components", defaults=(ABSENT, ABSENT))
):
    r"""Zero with probability `zero`, and otherwise counts or numbers of another distribution.

    >>> from limbeck.distributions import Poisson
    >>> ZeroInflated(torch.tensor(0.5), Poisson(rate=torch.tensor(2.0))).mean
    tensor(1.)
    """

    __slots__ = ()
    trailing = (0, 0)
    mean = property(lambda self: (1 - self.zero) * self.components.mean)

    @property
    def variance(self) -> Tensor:
        inner = self.components
        return (1 - self.zero) * (inner.variance + self.zero * inner.mean.square())

    def _log_prob(self, y: Tensor) -> Tensor:
        inner = torch.log1p(-self.zero) + self.components.log_prob(y)
        both = torch.logaddexp(self.zero.log().expand_as(inner), inner)
        if not self.discrete:  # a density beside a probability: they do not add up
            both = self.zero.log().expand_as(inner)
        return torch.where(y == 0, both, inner)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        y = self.components.expand(self.batch_shape).sample(size, generator)
        chance = random(torch.rand, tuple(y.shape), self.zero, generator)
        return torch.where(chance < self.zero, 0.0, y.to(self.zero.dtype))

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        inner = (1 - self.zero) * self.components.tail(y, upper)
        return inner + torch.where((y < 0) if upper else (y >= 0), self.zero, 0.0)


class Censored(
    DerivedFamily, namedtuple("Limits", "components low high", defaults=(ABSENT, ABSENT, ABSENT))
):
    r"""Numbers of another distribution, known only to be at the limits where they are beyond.

    At `low` and at `high` the probability of all values beyond counts; −∞ and ∞ are no limits.

    >>> from limbeck.distributions import Normal
    >>> tobit = Censored(Normal(torch.tensor(0.0), torch.tensor(1.0)), 0.0, math.inf)
    >>> tobit.log_prob(torch.tensor(0.0)).exp()
    tensor(0.5000)
    """

    __slots__ = ()
    trailing = (0, 0, 0)
    mean = property(lambda self: self._fixed_samples().mean(0))
    variance = property(lambda self: self._fixed_samples().var(0))

    def _log_prob(self, y: Tensor) -> Tensor:
        low, high = (torch.as_tensor(end).to(y) for end in (self.low, self.high))
        inside = torch.where((y > low) & (y < high), y, self.components.mean)
        inner = self.components.log_prob(inside)
        tiny = torch.finfo(y.dtype).tiny
        for limit, upper in ((low, False), (high, True)):
            at = torch.where(limit.isfinite(), limit, 0.0)
            mass = self.components.tail(at, upper).clamp_min(tiny).log()
            inner = torch.where(y == limit, mass, inner)
        return torch.where((y < low) | (y > high), -math.inf, inner)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        y = self.components.expand(self.batch_shape).sample(size, generator)
        low, high = (torch.as_tensor(end).to(y) for end in (self.low, self.high))
        return torch.minimum(torch.maximum(y, low), high)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        inner = self.components.tail(y, upper)
        low, high = (torch.as_tensor(end).to(inner) for end in (self.low, self.high))
        inner = torch.where(y < low, float(upper), inner)
        return torch.where(y >= high, float(not upper), inner)
