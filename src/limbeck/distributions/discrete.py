r"""Distributions of discrete outcomes: yes or no, classes, counts."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

from limbeck import outputs as forms
from limbeck.arrays import random
from limbeck.distributions import base
from limbeck.distributions.base import ABSENT, Distribution, Generator, given


class _Classes(Distribution, namedtuple("Classes", "probs logits", defaults=(ABSENT, ABSENT))):
    r"""The common base of Bernoulli and Categorical."""

    __slots__ = ()
    either = ("probs", "logits")
    discrete = True
    log_probabilities: Any  # of all outcomes, (..., K)

    def _log_prob(self, y: Tensor) -> Tensor:
        logs = self.log_probabilities
        shape, last = torch.broadcast_shapes(y.shape, logs.shape[:-1]), logs.shape[-1] - 1
        code = y.nan_to_num(-1.0).clamp(0, last).long()  # NaN is none of them
        chosen = logs.expand(*shape, -1).gather(-1, code.expand(shape).unsqueeze(-1)).squeeze(-1)
        return torch.where(y == code, chosen, -math.inf)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        p = self.log_probabilities.exp()
        below = torch.arange(p.shape[-1], device=p.device) <= y.unsqueeze(-1)
        return torch.where(below ^ upper, p, 0.0).sum(-1)


class Bernoulli(_Classes):
    r"""Outcomes 0 and 1, by `probs=`, the probability of 1, or `logits=`, its log odds.

    >>> Bernoulli(logits=torch.tensor([0.0, 100.0])).mean
    tensor([0.5000, 1.0000])
    """

    __slots__ = ()
    trailing = (0, 0)

    @property
    def log_probabilities(self) -> Tensor:
        r"""[log(1 − p), log p], (..., 2)."""
        y, form = (self.logits, "logits") if given(self.logits) else (self.probs, "probabilities")
        return forms.log_probabilities(y.reshape(-1, 1), form).reshape(*y.shape, 2)

    mean = property(lambda self: self.logits.sigmoid() if given(self.logits) else self.probs)

    @property
    def variance(self) -> Tensor:
        return self.mean * ((-self.logits).sigmoid() if given(self.logits) else 1 - self.probs)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        p = self.mean
        return (random(torch.rand, (*size, *p.shape), p, generator) < p).to(p.dtype)

    def mix(self, log_weights: Tensor) -> Bernoulli:
        if not given(self.logits):
            return Bernoulli(probs=(log_weights.exp() * self.probs).sum(-1))
        weights = log_weights.exp()
        if weights.ndim == 1 and base.readable(self.logits):
            return Bernoulli(logits=log_odds(self.logits, weights))
        one, zero = log_means(self.logits, weights)
        return Bernoulli(logits=one - zero)


class Categorical(_Classes):
    r"""Classes 0 … K−1, by `probs=` or `logits=`, (..., K). Its mean is the probabilities.

    Intervals and the cumulative distribution take the classes in their order.
    """

    __slots__ = ()
    trailing = (1, 1)
    mean_dims = 1

    @property
    def log_probabilities(self) -> Tensor:
        r"""Log probabilities (..., K)."""
        return base.class_log_probabilities(self.probs, self.logits)

    mean = property(lambda self: base.class_probabilities(self.probs, self.logits))
    variance = property(lambda self: self.mean * (1 - self.mean))  # of indicators of the classes

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        return base.draw_classes(self.mean, size, generator)

    def mix(self, log_weights: Tensor) -> Categorical:
        if not given(self.logits):
            return Categorical(probs=(log_weights.exp().unsqueeze(-1) * self.probs).sum(-2))
        across = self.logits.movedim(-1, 0)  # (classes, ..., K): short last ones are slow
        if log_weights.ndim == 1 and base.readable(across):
            p = across.softmax(0) @ log_weights.exp()
            if p.numel() and p.min().item() > visible_mean(p.dtype):
                return Categorical(logits=p.log_().movedim(0, -1))
        both = across.log_softmax(0) + log_weights
        return Categorical(logits=both.logsumexp(-1).movedim(0, -1))


class Poisson(Distribution, namedtuple("Rates", "rate log_rate", defaults=(ABSENT, ABSENT))):
    r"""Counts 0, 1, 2 …, by `rate=` or `log_rate=`.

    >>> Poisson(rate=torch.tensor(4.0)).interval(0.9)
    (tensor(1.), tensor(8.))
    """

    __slots__ = ()
    trailing = (0, 0)
    either = ("rate", "log_rate")
    discrete = True

    mean = property(lambda self: self.log_rate.exp() if given(self.log_rate) else self.rate)
    variance = mean

    def _log_prob(self, y: Tensor) -> Tensor:
        rate = self.mean
        known = (y >= 0) & (y == y.floor())
        y = torch.where(known, y, 0.0)
        times = y * self.log_rate if given(self.log_rate) else torch.xlogy(y, rate)
        return torch.where(known, times - rate - torch.lgamma(y + 1), -math.inf)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        rate = self.mean
        source = rate.device if generator is None else generator.device
        rates = rate.expand((*size, *rate.shape)).to(source)
        return torch.poisson(rates, generator=generator).to(rate.device)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        rate, known = self.mean, y >= 0
        number = torch.where(known, y.floor() + 1, 1.0)
        function = torch.special.gammainc if upper else torch.special.gammaincc
        return torch.where(known, function(number, rate), float(upper))


def log_means(logits: Tensor, weights: Tensor) -> Tensor:
    r"""log Σ_k w_k σ(z_k) and log Σ_k w_k σ(−z_k) of logits z (..., K), (2, ...)."""
    # σ(z) = eˢ e^(z − s) σ(−z); with s = max z, where that is below 0, nothing underflows, and it
    # is much faster than `logsumexp`: small terms never become slow denormal numbers
    z = torch.stack([logits, -logits])
    shift = z.detach().amax(-1, keepdim=True).clamp_max(0.0)
    p = z.sigmoid()
    low = (z - shift).clamp(-80.0, 0.0).exp() * p.flip(0)
    terms = torch.where(shift < 0, low, p)
    total = terms @ weights if weights.ndim == 1 else (terms * weights).sum(-1)
    return total.log() + shift.squeeze(-1)


def log_odds(logits: Tensor, weights: Tensor) -> Tensor:
    r"""The log odds of Σ_k w_k σ(z_k), of logits (..., K): faster, but without derivatives."""
    far, least = -math.log(torch.finfo(logits.dtype).tiny) - 1, visible_mean(logits.dtype)
    odds = logits.clamp(-far, far).exp_()
    no = (odds + 1).reciprocal_()
    zero, one = no @ weights, odds.mul_(no) @ weights
    lower = torch.minimum(one, zero)
    odds = one.div_(zero).log_()
    if odds.numel() and lower.min().item() < least:
        small = lower < least
        high, low = log_means(logits[small], weights)
        odds[small] = high - low
    return odds


def visible_mean(dtype: torch.dtype) -> float:
    r"""The least mean to which probabilities as small as `tiny` make no difference."""
    kind = torch.finfo(dtype)
    return 3 * kind.tiny / kind.eps
