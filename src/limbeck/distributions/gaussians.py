r"""Normal distributions; mixtures of Gaussians as functions of tensors: densities, statistics, EM.

A mixture has K components over D variables; scales and covariances are matrices (..., K, D, D), or
vectors (..., K, D) of independent variables. Leading dimensions are several mixtures at once.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.arrays import random
from limbeck.distributions.base import ABSENT, Distribution, Generator

KINDS = ("full", "diagonal", "spherical")  # of covariances
TINY = 1e-30  # the weight up to which a component has no statistics


class Moments(NamedTuple):
    r"""A mixture by its weights (..., K), means (..., K, D) and covariances."""

    weights: Tensor
    means: Tensor
    covariances: Tensor


class Statistics(NamedTuple):
    r"""Sums of z, z·x and z·xxᵀ (or z·x², element by element) with responsibilities z."""

    counts: Tensor
    sums: Tensor
    squares: Tensor


def has_matrices(kind: str, dim: int) -> bool:
    r"""Whether covariances are kept as matrices; of one variable they never are."""
    return kind == "full" and dim > 1


def log_normal(differences: Tensor, scale: Tensor, matrices: bool) -> Tensor:
    r"""Log densities (..., n) of Gaussians at differences x − m (..., D, n).

    The scale is triangular factors of the covariances (..., D, D), or deviations (..., D).
    """
    if matrices:
        z = torch.linalg.solve_triangular(scale, differences, upper=False)
        deviations = scale.diagonal(dim1=-2, dim2=-1)
    else:
        z, deviations = differences / scale.unsqueeze(-1), scale
    constant = deviations.log().sum(-1) + differences.shape[-2] * math.log(2 * math.pi) / 2
    return -(z.square().sum(-2) / 2) - constant.unsqueeze(-1)


def log_joint(x: Tensor, logs: Tensor, means: Tensor, scale: Tensor, matrices: bool) -> Tensor:
    r"""log π_k N(x; m_k, S_k), (..., K, n), of x (n, D)."""
    differences = x.mT - means.unsqueeze(-1)  # (..., K, D, n)
    return logs.unsqueeze(-1) + log_normal(differences, scale, matrices)


def factor(covariances: Tensor, matrices: bool) -> Tensor:
    r"""Scales of covariances: lower triangular factors (NaN if there are none), or deviations."""
    return torch.linalg.cholesky_ex(covariances)[0] if matrices else covariances.sqrt()


def expectations(
    x: Tensor, weight: Tensor | None, moments: Moments, matrices: bool
) -> tuple[Tensor, Statistics]:
    r"""The E step: log densities (..., n) of x (n, D), and statistics summed over x."""
    scale = factor(moments.covariances, matrices)
    joint = log_joint(x, moments.weights.clamp_min(TINY).log(), moments.means, scale, matrices)
    log_density = joint.logsumexp(-2)
    z = (joint - log_density.unsqueeze(-2)).exp()  # responsibilities (..., K, n)
    if weight is not None:
        z = z * weight
    squares = (z.unsqueeze(-1) * x).mT @ x if matrices else z @ x.square()
    return log_density, Statistics(z.sum(-1), z @ x, squares)


def expected_statistics(moments: Moments, matrices: bool) -> Statistics:
    r"""The statistics of one event on average: their M step gives the moments back."""
    weights, means, covariances = moments
    columns = weights.unsqueeze(-1)
    share = columns.unsqueeze(-1) if matrices else columns
    squares = share * (covariances + _squares(means, matrices))
    return Statistics(weights, columns * means, squares)


def _squares(means: Tensor, matrices: bool) -> Tensor:
    return means.unsqueeze(-1) * means.unsqueeze(-2) if matrices else means.square()


def maximised(statistics: Statistics, before: Moments, kind: str, least: Tensor) -> Moments:
    r"""The M step, with variances from `least` on; without weight a component stays as `before`."""
    counts = statistics.counts
    share = counts.clamp_min(TINY).unsqueeze(-1)
    means = statistics.sums / share
    matrices = has_matrices(kind, means.shape[-1])
    covariances = statistics.squares / (share.unsqueeze(-1) if matrices else share)
    covariances = covariances - _squares(means, matrices)
    if kind == "spherical":
        covariances = covariances.mean(-1, keepdim=True).expand_as(covariances)
    if matrices:  # no variance below the least, in any direction
        units = (least.unsqueeze(-1) * least).sqrt()
        scaled = covariances / units
        values, vectors = torch.linalg.eigh((scaled + scaled.mT) / 2)
        raised = (vectors * (values.clamp_min(1) - values).unsqueeze(-2)) @ vectors.mT
        covariances = (scaled + raised) * units
    else:
        covariances = torch.maximum(covariances, least)
    known = counts > TINY
    total = counts.sum(-1, keepdim=True)
    weights = torch.where(total > TINY, counts / total.clamp_min(TINY), before.weights)
    means = torch.where(known.unsqueeze(-1), means, before.means)
    known = known.reshape(*known.shape, *[1] * (covariances.ndim - known.ndim))
    return Moments(weights, means, torch.where(known, covariances, before.covariances))


def least_variances(variance: Tensor, floor: float, kind: str) -> Tensor:
    r"""The least variances (D,) of components: a part of the variances (D,) of all events."""
    return floor * (variance.mean().expand_as(variance) if kind == "spherical" else variance)


class Normal(Distribution, namedtuple("Scalars", "loc scale", defaults=(ABSENT, ABSENT))):
    r"""N(loc, scale²), of real numbers.

    >>> Normal(torch.tensor(1.0), torch.tensor(2.0)).interval(0.95)
    (tensor(-2.9199), tensor(4.9199))
    """

    __slots__ = ()
    trailing = (0, 0)
    mean = property(lambda self: self.loc.expand(self.batch_shape))
    variance = property(lambda self: self.scale.square().expand(self.batch_shape))

    def _log_prob(self, y: Tensor) -> Tensor:
        apart = y - self.loc
        # as a vector of one variable: (..., 1, 1), with scales (..., 1)
        return log_normal(apart[..., None, None], self.scale[..., None], False)[..., 0]

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        size = (*size, *self.batch_shape)
        return self.loc + self.scale * random(torch.randn, size, self.loc, generator)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        z = (y - self.loc) / self.scale
        # `ndtr` has no digits of small tails in float32
        return torch.special.erfc((z if upper else -z) / math.sqrt(2)) / 2

    def end(self, mass: float, upper: bool) -> Tensor:
        wide = self.scale * torch.special.ndtri(self.loc.new_tensor(mass))
        return self.loc - wide if upper else self.loc + wide


class MultivariateNormal(
    Distribution, namedtuple("Vectors", "loc scale_tril", defaults=(ABSENT, ABSENT))
):
    r"""N(loc, LLᵀ), of vectors, with loc (..., D) and L = scale_tril (..., D, D), triangular.

    >>> MultivariateNormal(torch.zeros(2), torch.eye(2)).log_prob([0.0, 0.0])
    tensor(-1.8379)
    """

    __slots__ = ()
    trailing = (1, 2)
    event = mean_dims = 1

    mean = property(lambda self: self.loc.expand(*self.batch_shape, -1))

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(-1).expand(*self.batch_shape, -1)

    @property
    def covariance(self) -> Tensor:
        r"""The covariance (..., D, D)."""
        return (self.scale_tril @ self.scale_tril.mT).expand(*self.batch_shape, -1, -1)

    def _log_prob(self, y: Tensor) -> Tensor:
        return log_normal((y - self.loc).unsqueeze(-1), self.scale_tril, True).squeeze(-1)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        size = (*size, *self.batch_shape, self.loc.shape[-1])
        z = random(torch.randn, size, self.loc, generator)
        return self.loc + (self.scale_tril @ z.unsqueeze(-1)).squeeze(-1)
