r"""Logistic regression with Gaussian weights: EP, and predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.special import log_ndtr

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, shown

METHODS = ("quadrature", "mackay")
NARROW = 2.0  # the variance up to which Gauss–Hermite quadrature is the better of two rules


def predict(
    mean: object, covariance: object, x: object, method: str = "quadrature", nodes: int = 32
) -> Tensor:
    r"""The probabilities ∫ σ(xᵀw) N(w; mean, covariance) dw of logistic regression, (n,).

    "quadrature" is right to nine digits with 32 nodes, for any variance. "mackay" is the closed
    form σ(m / √(1 + πv/8)) of MacKay (1992), with errors of up to 0.02.

    Arguments:
        mean: The posterior's mean (dim,).
        covariance: Its covariance (dim, dim).
        x: Inputs (n, dim), with a column of ones if the model has a bias.
        method: "quadrature" or "mackay". Default: "quadrature".
        nodes: The number of nodes of Gauss–Hermite quadrature. Default: 32.

    >>> predict([1.0, 0.0], [[4.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [2.0, 0.0]]).numpy().round(4)
    array([0.5   , 0.6762])
    """
    arg.choice("method", method, METHODS)
    nodes = arg.integer("nodes", nodes, "a whole number from 2 to 200", least=2)
    if nodes > 200:
        raise ArgumentError("nodes", nodes, "a whole number from 2 to 200")
    m, s, rows = finite("mean", mean), finite("covariance", covariance), finite("x", x)
    dim = m.numel()
    for name, tensor, shape in ("mean", m, (dim,)), ("covariance", s, (dim, dim)):
        if tensor.shape != shape:
            raise ArgumentError(name, f"shape {tuple(tensor.shape)}", f"shape {shape}")
    if rows.dim() != 2 or rows.shape[1] != dim:
        raise ArgumentError("x", f"shape {tuple(rows.shape)}", f"shape (n, {dim})")
    centre, variance = rows @ m, ((rows @ s) * rows).sum(1)
    if (variance < -1e-9 * (rows.square() @ s.diagonal().abs())).any():
        raise ArgumentError("covariance", "a negative variance at some x", "a covariance")
    variance = variance.clamp_min(0)
    if method == "mackay":
        return mackay_mean(centre, variance)
    size = 2**15  # rows that are predicted at once: memory stays small for any number
    blocks = zip(centre.split(size), variance.split(size), strict=True)
    return torch.cat([sigmoid_mean(*block, nodes) for block in blocks])


def mackay_mean(mean: Tensor, variance: Tensor) -> Tensor:
    r"""MacKay's approximation σ(m / √(1 + πv/8)) of the mean of σ(a) under N(m, v)."""
    return (mean / (1 + math.pi / 8 * variance).sqrt()).sigmoid()


def sigmoid_mean(mean: Tensor, variance: Tensor, nodes: int = 32) -> Tensor:
    r"""The mean of σ(a) under N(m, v), (n,), which is P(a > l) of a logistic variable l.

    The narrower of the two is summed over, the other integrated: Gauss–Hermite quadrature of σ(a),
    or the trapezoidal rule, with four times as many nodes, of the density of l times P(a > l).
    """

    def narrow(m: Tensor, v: Tensor) -> Tensor:
        z, weight = _hermite(nodes).to(m)
        return (m[:, None] + v.sqrt()[:, None] * z).sigmoid() @ weight

    def wide(m: Tensor, v: Tensor) -> Tensor:
        at, weight = _logistic(nodes).to(m)
        return (1 + torch.erf((m[:, None] - at) / (2 * v).sqrt()[:, None]) @ weight) / 2

    return _by_width(narrow, wide, mean, variance)


def log_moments(mean: Tensor, variance: Tensor, nodes: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    r"""log Z, Z the mean of σ(a) under N(m, v); its slope in m; and minus its curvature: (n,) each.

    Where Z is tiny, σ(a) = eᵃσ(−a) gives log Z(m, v) = m + v/2 + log Z(−m − v, v), which is not.
    The Gaussian tilted by σ(a) has the mean m + v·slope and the variance v − v²·bend.
    """

    def narrow(m: Tensor, v: Tensor) -> Tensor:
        z, weight = _hermite(nodes).to(m)
        a = m[:, None] + v.sqrt()[:, None] * z
        log = F.logsigmoid(a) + weight.log()
        tilted, rest = log.softmax(1), (-a).sigmoid()
        slope = (tilted * rest).sum(1)
        curvature = (tilted * rest * (2 * rest - 1)).sum(1)  # of Z, over Z
        return torch.stack([log.logsumexp(1), slope, slope.square() - curvature])

    def wide(m: Tensor, v: Tensor) -> Tensor:
        at, weight = _logistic(nodes).to(m)
        u = (m[:, None] - at) / v.sqrt()[:, None]
        log_above = log_ndtr(u)
        log = log_above + weight.log()
        tilted = log.softmax(1)
        ratio = (-u.square() / 2 - log_above).exp() / math.sqrt(2 * math.pi)  # φ(u) / Φ(u)
        slope = (tilted * ratio).sum(1) / v.sqrt()
        curvature = -(tilted * ratio * u).sum(1) / v
        return torch.stack([log.logsumexp(1), slope, slope.square() - curvature])

    tail = mean < -variance / 2
    centre = torch.where(tail, -mean - variance, mean)
    log_z, slope, bend = _by_width(narrow, wide, centre, variance)
    log_z = torch.where(tail, log_z + mean + variance / 2, log_z)
    return log_z, torch.where(tail, 1 - slope, slope), bend.clamp_min(0)


def finite(argument: str, value: object) -> Tensor:
    r"""An argument's numbers in double precision, all of them finite."""
    try:
        value = value.to_numpy() if hasattr(value, "to_numpy") else value
        x = torch.as_tensor(value).detach().to(torch.float64)
        finite = bool(x.isfinite().all())
    except Exception:  # of whatever the value is; of a tensor without data or with few operations
        raise ArgumentError(argument, shown(value), "numbers") from None
    if not finite:
        raise ArgumentError(argument, "NaN or infinite numbers", "finite numbers")
    return x


Rule = Callable[[Tensor, Tensor], Tensor]  # of means and variances (n,)


def _by_width(narrow: Rule, wide: Rule, mean: Tensor, variance: Tensor) -> Tensor:
    r"""The rule for narrow Gaussians or the one for wide ones, for each of (n,); both (…, n)."""
    small = variance <= NARROW
    values = narrow(mean[small], variance[small])
    result = mean.new_empty(values.shape[:-1] + mean.shape)
    result[..., small] = values
    result[..., ~small] = wide(mean[~small], variance[~small])
    return result


@cache
def _hermite(nodes: int) -> Tensor:
    at, weight = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.tensor(np.stack([at, weight / weight.sum()]))


@cache
def _logistic(nodes: int) -> Tensor:
    at = np.linspace(-40.0, 40.0, 4 * nodes + 1)  # the density is negligible beyond
    weight = 1 / np.cosh(at / 2) ** 2
    return torch.tensor(np.stack([at, weight / weight.sum()]))


class Gaussian(NamedTuple):
    r"""A Gaussian approximation of a posterior.

    Attributes:
        mean: The mean (dim,).
        covariance: The covariance (dim, dim).
        log_evidence: The logarithm of the approximate probability of the labels.
        iterations: The number of rounds over all sites.
        converged: Whether the last round changed nothing beyond the tolerance.
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: float
    iterations: int
    converged: bool


@arg.checked_arguments
def ep_logistic(
    X: arg.UserObject[object],
    y: arg.UserObject[object],
    prior_mean: arg.UserObject[object] = None,
    prior_covariance: arg.UserObject[object] = None,
    *,
    moments: Annotated[str, arg.Choice(*METHODS)] = "mackay",
    iterations: arg.Count = 500,
    tolerance: arg.Positive = 1e-8,
    damping: arg.Share = 0.5,
) -> Gaussian:
    r"""A Gaussian posterior of the weights of logistic regression, by EP (Minka 2001).

    Each likelihood σ(±xᵀw) is replaced by a Gaussian site in a = xᵀw, such that exchanging the site
    for the likelihood does not change the mean and the variance of a. If many sites agree, as with
    separable data, EP's variances are too small.

    Arguments:
        X: Inputs (n, dim), with a column of ones if the model has a bias.
        y: Labels (n,), 0 or 1.
        prior_mean: The mean (dim,) of the weights' Gaussian prior. Default: zero.
        prior_covariance: Its covariance (dim, dim), or a number times the identity. Default: 1.
        moments: How one-dimensional integrals are computed: "mackay" by MacKay's approximation, as
            in the source text, or "quadrature", which is exact. Default: "mackay".
        iterations: The largest number of rounds over all sites. Default: 500.
        tolerance: The change of the marginals, in standard deviations, to stop at. Default: 1e-8.
        damping: The step of a site towards its new value, above 0 and at most 1; it is reduced if
            rounds begin to diverge. Default: 0.5.

    >>> posterior = ep_logistic([[1.0], [2.0], [-1.0]], [1, 1, 0], prior_covariance=4.0)
    >>> posterior.converged, round(float(posterior.mean), 3)
    (True, 1.979)
    """
    x, labels = finite("X", X), finite("y", y)
    if x.dim() != 2 or x.numel() == 0:
        raise ArgumentError("X", f"shape {tuple(x.shape)}", "inputs (n, dim), one or more")
    if labels.shape != x.shape[:1] or not ((labels == 0) | (labels == 1)).all():
        received = f"shape {tuple(labels.shape)} with values such as {labels.unique()[:3].tolist()}"
        raise ArgumentError("y", received, f"labels 0 or 1 of shape ({len(x)},)")
    sign = 2 * labels - 1
    centre, covariance = _prior(prior_mean, prior_covariance, x.shape[1])
    precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    shift = precision @ centre
    tilted = _mackay if moments == "mackay" else log_moments
    tau, nu = torch.zeros(2, len(x), dtype=x.dtype)  # of sites exp(νa − τa²/2), one an input

    def posterior() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""Mean and covariance of the prior times all sites; means and variances (n,) of each a."""
        root = torch.linalg.cholesky(precision + (x * tau[:, None]).T @ x)
        covariance = torch.cholesky_inverse(root)
        mean = covariance @ (shift + x.T @ nu)
        return mean, covariance, x @ mean, ((x @ covariance) * x).sum(1)

    mean, covariance, m, v = posterior()
    done, change = 0, math.inf
    while done < iterations and change > tolerance:
        done += 1
        factor = 1 - tau * v  # above zero, since all τ are not below it
        cavity_m, cavity_v = (m - v * nu) / factor, v / factor  # without the site of the input
        _, slope, bend = tilted(sign * cavity_m, cavity_v)
        rest = 1 - bend * cavity_v  # of the variance, once the likelihood is in
        tau = torch.lerp(tau, bend / rest, damping)
        nu = torch.lerp(nu, (sign * slope + bend * cavity_m) / rest, damping)
        last_m, last_scale = m, v.sqrt()
        mean, covariance, m, v = posterior()
        moved = torch.maximum((m - last_m).abs(), (v.sqrt() - last_scale).abs())
        step = float((moved / last_scale.clamp_min(1e-300)).max())  # standard deviations
        last, change = change, step / damping
        damping *= 0.8 if change > last else 1  # where rounds begin to diverge
    if change > tolerance:
        warnings.warn(
            f"EP has not converged: the marginals still change by {change:.1g} standard deviations "
            f"after {done} iterations; more of them or a smaller damping may help",
            stacklevel=2,
        )
    # The evidence is the integral of the prior times all sites, each scaled to the integral of its
    # tilted. With Φ = ½ log |S| + ½ mᵀS⁻¹m, a site's scale is log_z + Φ(cavity) − Φ(marginal),
    # written so that a variance of zero is no harm.
    factor = 1 - tau * v
    log_z = tilted(sign * (m - v * nu) / factor, v / factor)[0]
    squares = tau * m.square() - 2 * m * nu + v * nu.square()
    scales = log_z - factor.log() / 2 + squares / factor / 2
    volume = torch.linalg.slogdet(precision @ covariance).logabsdet
    shifts = mean @ (shift + x.T @ nu) - centre @ shift
    log_evidence = float(scales.sum() + (volume + shifts) / 2)
    return Gaussian(mean, covariance, log_evidence, done, change <= tolerance)


def _mackay(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""What `log_moments` gives, of MacKay's approximation σ(κm) of the mean of σ(a)."""
    kappa = (1 + math.pi / 8 * v).rsqrt()
    z = kappa * m
    miss = (-z).sigmoid()
    return F.logsigmoid(z), kappa * miss, kappa.square() * z.sigmoid() * miss


def _prior(mean: object, covariance: object, dim: int) -> tuple[Tensor, Tensor]:
    m = finite("prior_mean", torch.zeros(dim) if mean is None else mean)
    s = finite("prior_covariance", 1.0 if covariance is None else covariance)
    s = s * torch.eye(dim, dtype=s.dtype) if s.dim() == 0 else s
    if m.shape != (dim,):
        raise ArgumentError("prior_mean", f"shape {tuple(m.shape)}", f"shape ({dim},)")
    expected = f"a symmetric, positive definite ({dim}, {dim}), or a number above zero"
    if s.shape != (dim, dim):
        raise ArgumentError("prior_covariance", f"shape {tuple(s.shape)}", expected)
    if not torch.allclose(s, s.T, rtol=1e-8, atol=0) or torch.linalg.cholesky_ex(s).info:
        raise ArgumentError("prior_covariance", "a matrix that is not", expected)
    return m, s
