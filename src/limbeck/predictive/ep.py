r"""Expectation propagation for Bayesian logistic regression, whose posterior is a Gaussian."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.core.checks import number, whole_number
from limbeck.errors import ArgumentError
from limbeck.predictive.gaussian_logistic import METHODS, finite, log_moments

__all__ = ["Gaussian", "ep_logistic"]

CALMER = 0.8
r"""What damping is multiplied by when the sites get further from where they want to be."""


class Gaussian(NamedTuple):
    r"""A Gaussian approximation of a posterior, and how it was found.

    Arguments:
        mean: (dim,).
        covariance: (dim, dim).
        log_evidence: The logarithm of the approximate probability of the labels.
        iterations: Rounds that were made over all sites.
        converged: Whether the last one changed nothing beyond the tolerance.
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: float
    iterations: int
    converged: bool


class Sites(NamedTuple):
    r"""The prior, the inputs, and Gaussian sites exp(νa − τa²/2) in a = xᵀw, one an input."""

    prior: tuple[Tensor, Tensor]  # precision (dim, dim), and precision times mean (dim,)
    x: Tensor  # (n, dim)
    tau: Tensor  # (n,)
    nu: Tensor  # (n,)

    def posterior(self) -> tuple[Tensor, Tensor]:
        r"""Mean (dim,) and covariance (dim, dim) of the prior times all sites."""
        precision, shift = self.prior
        root = torch.linalg.cholesky(precision + (self.x * self.tau[:, None]).T @ self.x)
        covariance = torch.cholesky_inverse(root)
        return covariance @ (shift + self.x.T @ self.nu), covariance

    def marginals(self) -> tuple[Tensor, Tensor]:
        r"""Means and variances (n,) of each a."""
        mean, covariance = self.posterior()
        return self.x @ mean, ((self.x @ covariance) * self.x).sum(1)


def ep_logistic(
    X: Any,
    y: Any,
    prior_mean: Any = None,
    prior_covariance: Any = None,
    *,
    moments: str = "mackay",
    iterations: int = 500,
    tolerance: float = 1e-8,
    damping: float = 0.5,
) -> Gaussian:
    r"""A Gaussian posterior of the weights of logistic regression, by EP (Minka 2001).

    Each likelihood σ(±xᵀw) is replaced by a Gaussian site in a = xᵀw, such that putting the
    likelihood back in place of its site leaves the mean and the variance of a as they are. All
    sites are renewed at once, with damping. Where many sites say the same, as those of separable
    data do, the fixed point itself is too sure: EP's variances are then too small.

    Arguments:
        X: Inputs (n, dim), with a column of ones if the model has a bias.
        y: Labels (n,), 0 or 1.
        prior_mean: The mean (dim,) of the weights' Gaussian prior; None is zero.
        prior_covariance: Its covariance (dim, dim), or a number times the identity; None is 1.
        moments: How the one-dimensional integrals are done: "mackay" by MacKay's approximation,
            as in the source text, or "quadrature", which is exact.
        iterations: Rounds over all sites, at most.
        tolerance: The change of the marginals of a, in units of their standard deviations, below
            which the sites are taken to have converged.
        damping: How far a site goes to its new value in a round, above 0 and up to 1; less once
            rounds begin to diverge.

    >>> posterior = ep_logistic([[1.0], [2.0], [-1.0]], [1, 1, 0], prior_covariance=4.0)
    >>> posterior.converged, round(float(posterior.mean), 3)
    (True, 1.979)
    """
    if moments not in METHODS:
        raise ArgumentError.unknown("moments", moments, METHODS)
    iterations = whole_number("iterations", iterations, "a whole number from 1", least=1)
    tolerance = number("tolerance", tolerance, "a number above zero", lambda t: t > 0)
    damping = number("damping", damping, "a number above 0 and up to 1", lambda d: 0 < d <= 1)
    x, sign = _data(X, y)
    mean, covariance = _prior(prior_mean, prior_covariance, x.shape[1])
    precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    tilted = _mackay if moments == "mackay" else log_moments
    sites = Sites((precision, precision @ mean), x, torch.zeros_like(sign), torch.zeros_like(sign))
    now = sites.marginals()
    done, change = 0, math.inf
    while done < iterations and change > tolerance:
        done += 1
        m, v = _cavities(sites, *now)
        _, slope, bend = tilted(sign * m, v)
        rest = 1 - bend * v  # of the variance, once the likelihood is in
        sites = sites._replace(
            tau=torch.lerp(sites.tau, bend / rest, damping),
            nu=torch.lerp(sites.nu, (sign * slope + bend * m) / rest, damping),
        )
        before, now = now, sites.marginals()
        last, change = change, _change(*before, *now) / damping
        damping *= CALMER if change > last else 1
    if change > tolerance:
        warnings.warn(
            f"EP has not converged: the marginals still change by {change:.1g} standard deviations "
            f"after {done} iterations; more of them or a smaller damping may help",
            stacklevel=2,
        )
    m, v = _cavities(sites, *now)
    log_evidence = _log_evidence(sites, mean, *now, tilted(sign * m, v)[0])
    return Gaussian(*sites.posterior(), log_evidence, done, change <= tolerance)


def _cavities(sites: Sites, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    r"""Means and variances (n,) of each a without its own site, from those with it."""
    left = 1 - sites.tau * v  # above zero, since all τ are not below it
    return (m - v * sites.nu) / left, v / left


def _log_evidence(sites: Sites, prior_mean: Tensor, m: Tensor, v: Tensor, log_z: Tensor) -> float:
    r"""The integral of the prior times all sites, each scaled to the integral log_z of its tilted.

    A Gaussian's log normaliser is Φ = ½ log |S| + ½ mᵀS⁻¹m. A site's scale is log_z and Φ of its
    cavity less that of its marginal, written so that a variance of zero is no harm.
    """
    (precision, shift), x, tau, nu = sites
    left = 1 - tau * v
    scales = log_z - left.log() / 2 + (tau * m.square() - 2 * m * nu + v * nu.square()) / left / 2
    mean, covariance = sites.posterior()
    volume = torch.linalg.slogdet(precision @ covariance).logabsdet
    squares = mean @ (shift + x.T @ nu) - prior_mean @ shift
    return float(scales.sum() + (volume + squares) / 2)


def _change(m: Tensor, v: Tensor, new_m: Tensor, new_v: Tensor) -> float:
    r"""How far means and standard deviations (n,) went, in standard deviations."""
    scale = v.sqrt()
    moved = torch.maximum((new_m - m).abs(), (new_v.sqrt() - scale).abs())
    return float((moved / scale.clamp_min(1e-300)).max())


def _mackay(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""What `log_moments` gives, of MacKay's approximation σ(κm) of the mean of σ(a)."""
    kappa = (1 + math.pi / 8 * v).rsqrt()
    z = kappa * m
    miss = (-z).sigmoid()
    return F.logsigmoid(z), kappa * miss, kappa.square() * z.sigmoid() * miss


def _data(X: Any, y: Any) -> tuple[Tensor, Tensor]:
    x, labels = finite("X", X), finite("y", y)
    if x.dim() != 2 or x.numel() == 0:
        raise ArgumentError("X", f"shape {tuple(x.shape)}", "inputs (n, dim), one or more")
    if labels.shape != x.shape[:1] or not ((labels == 0) | (labels == 1)).all():
        received = f"shape {tuple(labels.shape)} with values such as {labels.unique()[:3].tolist()}"
        raise ArgumentError("y", received, f"labels 0 or 1 of shape ({len(x)},)")
    return x, 2 * labels - 1


def _prior(mean: Any, covariance: Any, dim: int) -> tuple[Tensor, Tensor]:
    m = finite("prior_mean", torch.zeros(dim) if mean is None else mean)
    s = finite("prior_covariance", 1.0 if covariance is None else covariance)
    s = s * torch.eye(dim, dtype=s.dtype) if s.dim() == 0 else s
    if m.shape != (dim,):
        raise ArgumentError("prior_mean", f"shape {tuple(m.shape)}", f"shape ({dim},)")
    accepted = f"a symmetric, positive definite ({dim}, {dim}), or a number above zero"
    if s.shape != (dim, dim):
        raise ArgumentError("prior_covariance", f"shape {tuple(s.shape)}", accepted)
    symmetric = torch.allclose(s, s.T, rtol=1e-8, atol=0)
    if not symmetric or torch.linalg.cholesky_ex(s).info:
        raise ArgumentError("prior_covariance", "a matrix that is not", accepted)
    return m, s
