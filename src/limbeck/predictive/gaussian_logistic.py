r"""The mean of a logistic sigmoid under a Gaussian: what a Gaussian posterior predicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.special import log_ndtr

from limbeck.core.checks import whole_number
from limbeck.errors import ArgumentError

__all__ = ["METHODS", "finite", "log_moments", "mackay_mean", "predict", "sigmoid_mean"]

METHODS = ("quadrature", "mackay")

NARROW = 2.0
r"""The variance up to which Gauss–Hermite quadrature is the better of two rules."""

REACH = 40.0
r"""Where the density of the logistic distribution is taken to end, on both sides."""

AT_ONCE = 2**15
r"""Rows that are predicted at once: memory stays small for any number."""


def predict(
    mean: Any, covariance: Any, x: Any, method: str = "quadrature", nodes: int = 32
) -> Tensor:
    r"""The probabilities ∫ σ(xᵀw) N(w; mean, covariance) dw of logistic regression.

    The integral has one dimension, since a = xᵀw is Gaussian. "quadrature" is right to nine
    digits with 32 nodes, whatever the variance (see `sigmoid_mean`). "mackay" is the closed form
    σ(m / √(1 + πv/8)) of MacKay (1992), which errs by up to 0.02.

    Arguments:
        mean: The posterior's mean (dim,).
        covariance: Its covariance (dim, dim).
        x: Inputs (n, dim), with a column of ones if the model has a bias.
        method: "quadrature" or "mackay".
        nodes: How many nodes Gauss–Hermite quadrature has.

    Returns:
        The probability (n,) of the label 1 at each input.

    >>> predict([1.0, 0.0], [[4.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [2.0, 0.0]]).numpy().round(4)
    array([0.5   , 0.6762])
    """
    if method not in METHODS:
        raise ArgumentError.unknown("method", method, METHODS)
    nodes = whole_number("nodes", nodes, "a whole number from 2 to 200", least=2)
    if nodes > 200:
        raise ArgumentError("nodes", nodes, "a whole number from 2 to 200")
    m, s, x = finite("mean", mean), finite("covariance", covariance), finite("x", x)
    dim = m.numel()
    for name, tensor, shape in ("mean", m, (dim,)), ("covariance", s, (dim, dim)):
        if tensor.shape != shape:
            raise ArgumentError(name, f"shape {tuple(tensor.shape)}", f"shape {shape}")
    if x.dim() != 2 or x.shape[1] != dim:
        raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {dim})")
    centre, variance = x @ m, ((x @ s) * x).sum(1)
    if (variance < -1e-9 * (x.square() @ s.diagonal().abs())).any():
        raise ArgumentError("covariance", "a negative variance at some x", "a covariance")
    variance = variance.clamp_min(0)
    if method == "mackay":
        return mackay_mean(centre, variance)
    blocks = zip(centre.split(AT_ONCE), variance.split(AT_ONCE), strict=True)
    return torch.cat([sigmoid_mean(*block, nodes) for block in blocks])


def mackay_mean(mean: Tensor, variance: Tensor) -> Tensor:
    r"""MacKay's approximation σ(m / √(1 + πv/8)) of the mean of σ(a) under N(m, v)."""
    return (mean / (1 + math.pi / 8 * variance).sqrt()).sigmoid()


def sigmoid_mean(mean: Tensor, variance: Tensor, nodes: int = 32) -> Tensor:
    r"""The mean of σ(a) under N(m, v), (n,), by quadrature.

    It is the probability that a exceeds a logistic variable l. The narrower of the two is summed
    over and the other one is integrated exactly: for narrow Gaussians Gauss–Hermite quadrature
    of σ(a), for wide ones, to which σ is a step between two nodes, the trapezoidal rule (with
    four times as many nodes) of the density of l times P(a > l).
    """

    def narrow(m: Tensor, v: Tensor) -> Tensor:
        z, weight = _nodes(_hermite, nodes, m)
        return (m[:, None] + v.sqrt()[:, None] * z).sigmoid() @ weight

    def wide(m: Tensor, v: Tensor) -> Tensor:
        at, weight = _nodes(_logistic, nodes, m)
        return (1 + torch.erf((m[:, None] - at) / (2 * v).sqrt()[:, None]) @ weight) / 2

    return _by_width(narrow, wide, mean, variance)


def log_moments(mean: Tensor, variance: Tensor, nodes: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    r"""log Z, Z the mean of σ(a) under N(m, v); its slope in m; and minus its curvature: (n,) each.

    They have small relative errors in the tails too: where Z is tiny, σ(a) = eᵃσ(−a) gives
    log Z(m, v) = m + v/2 + log Z(−m − v, v), which is not. The mean of the Gaussian tilted by σ(a)
    is m + v·slope, its variance v − v²·(minus the curvature).
    """

    def narrow(m: Tensor, v: Tensor) -> Tensor:
        z, weight = _nodes(_hermite, nodes, m)
        a = m[:, None] + v.sqrt()[:, None] * z
        log = F.logsigmoid(a) + weight.log()
        tilted, rest = log.softmax(1), (-a).sigmoid()
        slope = (tilted * rest).sum(1)
        curvature = (tilted * rest * (2 * rest - 1)).sum(1)  # of Z, over Z
        return torch.stack([log.logsumexp(1), slope, slope.square() - curvature])

    def wide(m: Tensor, v: Tensor) -> Tensor:
        at, weight = _nodes(_logistic, nodes, m)
        u = (m[:, None] - at) / v.sqrt()[:, None]
        log_above = log_ndtr(u)
        log = log_above + weight.log()
        tilted = log.softmax(1)
        ratio = (-u.square() / 2 - log_above).exp() / math.sqrt(2 * math.pi)  # φ(u) / Φ(u)
        slope = (tilted * ratio).sum(1) / v.sqrt()
        curvature = -(tilted * ratio * u).sum(1) / v
        return torch.stack([log.logsumexp(1), slope, slope.square() - curvature])

    tail = mean < -variance / 2
    log_z, slope, bend = _by_width(
        narrow, wide, torch.where(tail, -mean - variance, mean), variance
    )
    log_z = torch.where(tail, log_z + mean + variance / 2, log_z)
    return log_z, torch.where(tail, 1 - slope, slope), bend.clamp_min(0)


def finite(argument: str, value: Any) -> Tensor:
    r"""An argument's numbers in double precision, all of them finite."""
    try:
        x = torch.as_tensor(value).detach().double()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(argument, repr(value), "numbers") from None
    if not x.isfinite().all():
        raise ArgumentError(argument, "NaN or infinite numbers", "finite numbers")
    return x


Rule = Callable[[Tensor, Tensor], Tensor]


def _by_width(narrow: Rule, wide: Rule, mean: Tensor, variance: Tensor) -> Tensor:
    r"""The rule for narrow Gaussians or the one for wide ones, for each of (n,); both (…, n)."""
    small = variance <= NARROW
    found = narrow(mean[small], variance[small])
    result = mean.new_empty(found.shape[:-1] + mean.shape)
    result[..., small] = found
    result[..., ~small] = wide(mean[~small], variance[~small])
    return result


def _nodes(rule: Callable[[int], tuple[Any, Any]], nodes: int, like: Tensor) -> list[Tensor]:
    return [torch.as_tensor(each).to(like) for each in rule(nodes)]


@cache
def _hermite(nodes: int) -> tuple[Any, Any]:
    at, weight = np.polynomial.hermite_e.hermegauss(nodes)
    return at, weight / weight.sum()


@cache
def _logistic(nodes: int) -> tuple[Any, Any]:
    at = np.linspace(-REACH, REACH, 4 * nodes + 1)
    weight = 1 / np.cosh(at / 2) ** 2
    return at, weight / weight.sum()
