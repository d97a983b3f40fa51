r"""Have chains forgotten where they began? Tests of their draws, as z-scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limbeck.samplers.diagnostics import effective_size

__all__ = ["MIN_CHAINS", "SIGNIFICANT", "difference", "drift", "memory"]

SIGNIFICANT = 3.7
r"""A z-score that chance gives in 1 of 5,000 tests."""

MIN_CHAINS = 20
r"""Chains below which only their own series can say something."""

FEW_WEIGHTS = 10


def difference(one: Tensor, other: Tensor) -> float:
    r"""The difference between the means of two groups of chains (chains, draws), over its error."""
    one, other = one.double(), other.double()  # rounding of single precision is not a difference
    gap, variance = float(one.mean() - other.mean()), 0.0
    for group in (one, other):
        if group.numel() < 2:
            return 0.0
        variance += float(group.var()) / effective_size(group)
    return _over(gap, math.sqrt(variance), max(float(one.abs().max()), float(other.abs().max())))


def drift(before: Tensor, after: Tensor) -> float:
    r"""The mean change of chains (chains,) between two times, over its error."""
    if len(before) < MIN_CHAINS:
        return 0.0
    change = after.double() - before.double()
    error = float(change.std()) / math.sqrt(len(change))
    return _over(float(change.mean()), error, float(after.abs().max()))


def memory(log_weights: Tensor, now: Tensor) -> float:
    r"""Whether chains (chains,) would be elsewhere now, had they begun at draws of the target.

    Chains that begin at samples of q, weighted by p/q of where they began, stand for chains that
    begin at p, and these stay at p. So the weighted mean less the plain mean is what is left of the
    start. It is given over its error were all forgotten; with less than ten weights that count,
    nothing can be said.
    """
    if len(now) < MIN_CHAINS or not log_weights.isfinite().any():
        return 0.0
    now = now.double()  # rounding of single precision is not a difference
    share = torch.softmax(log_weights.double(), 0)
    if float(1 / share.square().sum()) < FEW_WEIGHTS:
        return 0.0
    left = float(share @ now - now.mean())
    error = float((share - 1 / len(now)).norm() * now.std())
    return _over(left, error, float(now.abs().max()))


def _over(gap: float, error: float, scale: float) -> float:
    if abs(gap) <= 1e-12 * scale:  # what rounding makes of nothing
        return 0.0
    return gap / error if error else math.copysign(math.inf, gap)
