r"""The optimal bridge between samples of a target and of a proposal: its equation and its error."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from limbeck.samplers.diagnostics import effective_size

__all__ = ["Bridge", "fit_bridge"]

TOLERANCE = 1e-10
ITERATIONS = 200
ROUNDS = 20


class Bridge(NamedTuple):
    r"""The optimal bridge between samples of a target and of a proposal.

    With s₁ + s₂ = 1, f₁ = p/(s₁p + s₂q) at samples of q and f₂ = q/(s₁p + s₂q) at samples of p
    have the same mean, the overlap, which is 1 for p = q and 0 for densities apart.

    Attributes:
        log_z: The estimate of log Z.
        std_error: Its standard error, from the relative mean square error of both means.
        degrees: Degrees of freedom of the error.
        f_proposal: f₁, (n,).
        f_target: f₂, (chains, draws).
        share: s₁, the share of the target's samples, in effective ones.
        overlap: The mean of f₁ and of f₂.
        ess: The effective size of the f₂ series.
        iterations: Iterations until r changed by less than 1e-10 of itself.
        converged: Whether it did.
    """

    log_z: float
    std_error: float
    degrees: float
    f_proposal: Tensor
    f_target: Tensor
    share: float
    overlap: float
    ess: float
    iterations: int
    converged: bool

    def tilt(self, log_ratio: Tensor) -> Tensor:
        r"""s₁f₁ at any events: the probability that they came from the target."""
        return torch.sigmoid(
            log_ratio.double() - self.log_z + math.log(self.share / (1 - self.share))
        )


def fit_bridge(target: Tensor, proposal: Tensor) -> Bridge:
    r"""The bridge of log ratios log p̃ − log q at samples of the target and of the proposal.

    The equation for r = Z is mean f₁ = mean f₂, whose left side falls and right side rises with r.
    The share s₁ is ESS₁/(ESS₁ + n), with the effective size of the f₂ series itself.

    Arguments:
        target: (chains, draws) at samples of the target; +∞ where the proposal has no mass.
        proposal: (n,) at samples of the proposal; −∞ where the target has no mass.

    >>> round(fit_bridge(torch.full((4, 1), 3.0), torch.full((4,), 3.0)).log_z, 9)
    3.0
    """
    target, proposal = target.double().cpu(), proposal.double().cpu()
    n, total, size = len(proposal), 0, float(target.numel())
    for _ in range(ROUNDS):
        share = size / (size + n)
        log_z, iterations, converged = _solve(target.flatten(), proposal, share)
        total += iterations
        if not math.isfinite(log_z):  # nothing in common at all
            none = (torch.zeros_like(proposal), torch.zeros_like(target))
            return Bridge(log_z, math.inf, math.inf, *none, share, 0.0, size, total, converged)
        tilt = math.log(share / (1 - share))
        f_proposal = torch.sigmoid(proposal - log_z + tilt) / share
        f_target = torch.sigmoid(-(target - log_z + tilt)) / (1 - share)
        before, size = size, effective_size(f_target)
        if abs(size - before) <= 0.01 * before:
            break
    parts = (_relative_variance(f_proposal) / n, _relative_variance(f_target) / size)
    variance = sum(parts)
    freedom = sum(v**2 / (m - 1) for v, m in zip(parts, (n, size), strict=True) if m > 1)
    return Bridge(
        log_z,
        math.sqrt(variance),
        variance**2 / freedom if freedom and variance < math.inf else math.inf,
        f_proposal,
        f_target,
        share,
        float(f_target.mean()),
        size,
        total,
        converged,
    )


def _relative_variance(f: Tensor) -> float:
    if f.numel() < 2:
        return math.inf
    mean = float(f.mean())
    return float(f.var()) / mean**2 if mean > 0 else math.inf


def _solve(target: Tensor, proposal: Tensor, share: float) -> tuple[float, int, bool]:
    r"""The root of log mean f₁ − log mean f₂ in log r: Newton's steps, kept within a bracket."""
    tilt = math.log(share / (1 - share))
    shift = math.log(target.numel() / proposal.numel()) - tilt

    def gap(log_r: float) -> tuple[float, float]:
        one, two = proposal - log_r + tilt, target - log_r + tilt
        f1, f2 = F.logsigmoid(one), F.logsigmoid(-two)
        value = float(f1.logsumexp(0) - f2.logsumexp(0)) + shift
        slope = torch.softmax(f1, 0) @ torch.sigmoid(-one) + torch.softmax(f2, 0) @ torch.sigmoid(
            two
        )
        return value, -float(slope)

    seen = torch.cat([target, proposal])
    seen = seen[seen.isfinite()]
    if len(seen) == 0 or (target == math.inf).all():
        return math.inf, 0, False
    low, high = float(seen.min()) - abs(tilt) - 1, float(seen.max()) + abs(tilt) + 1
    width = high - low
    while gap(low)[0] < 0:
        low -= (width := 2 * width)
    while gap(high)[0] > 0:
        high += (width := 2 * width)
    log_r = float(seen.median())
    for iteration in range(1, ITERATIONS + 1):
        value, slope = gap(log_r)
        if abs(value) < 1e-15:  # also where the equation holds all along an interval
            return log_r, iteration, True
        low, high = (log_r, high) if value > 0 else (low, log_r)
        after = log_r - value / slope if slope else math.nan
        if not low <= after <= high:
            after = (low + high) / 2
        change, log_r = abs(after - log_r), after
        if change < max(TOLERANCE, 1e-14 * abs(log_r)):
            return log_r, iteration, True
    return log_r, ITERATIONS, False
