r"""Distributions of real numbers and vectors: the normal ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.distributions.base import ABSENT, Distribution, Shape, as_events, as_shape, random
from limbeck.distributions.gaussians import log_normal

__all__ = ["MultivariateNormal", "Normal"]


class _LocationScale(NamedTuple):
    loc: Tensor = ABSENT
    scale: Tensor = ABSENT


class Normal(Distribution, _LocationScale):
    r"""N(loc, scale²), of real numbers.

    >>> Normal(torch.tensor(1.0), torch.tensor(2.0)).interval(0.95)
    (tensor(-2.9199), tensor(4.9199))
    """

    __slots__ = ()
    trailing = (0, 0)

    @property
    def mean(self) -> Tensor:
        return self.loc.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        return self.scale.square().expand(self.batch_shape)

    def log_prob(self, y: Any) -> Tensor:
        apart = as_events(y, self.loc) - self.loc
        # as a vector of one variable: (..., 1, 1), with scales (..., 1)
        return log_normal(apart[..., None, None], self.scale[..., None], False)[..., 0]

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Independent numbers (*shape, ...)."""
        size = (*as_shape(shape), *self.batch_shape)
        return self.loc + self.scale * random(torch.randn, size, self.loc, generator)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        z = (y - self.loc) / self.scale
        return torch.special.ndtr(-z if upper else z)

    def end(self, mass: float, upper: bool) -> Tensor:
        wide = self.scale * torch.special.ndtri(self.loc.new_tensor(mass))
        return self.loc - wide if upper else self.loc + wide


class _Triangular(NamedTuple):
    loc: Tensor = ABSENT
    scale_tril: Tensor = ABSENT


class MultivariateNormal(Distribution, _Triangular):
    r"""N(loc, LLᵀ), of vectors, with loc (..., D) and L = scale_tril (..., D, D), triangular.

    >>> MultivariateNormal(torch.zeros(2), torch.eye(2)).log_prob([0.0, 0.0])
    tensor(-1.8379)
    """

    __slots__ = ()
    trailing = (1, 2)

    @property
    def event(self) -> int:
        return 1

    @property
    def mean(self) -> Tensor:
        r"""The mean (..., D)."""
        return self.loc.expand(*self.batch_shape, -1)

    @property
    def variance(self) -> Tensor:
        r"""The variance of each variable, (..., D)."""
        return self.scale_tril.square().sum(-1).expand(*self.batch_shape, -1)

    @property
    def covariance(self) -> Tensor:
        r"""The covariance (..., D, D)."""
        return (self.scale_tril @ self.scale_tril.mT).expand(*self.batch_shape, -1, -1)

    def log_prob(self, y: Any) -> Tensor:
        apart = as_events(y, self.loc) - self.loc
        return log_normal(apart.unsqueeze(-1), self.scale_tril, True).squeeze(-1)

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Independent vectors (*shape, ..., D)."""
        size = (*as_shape(shape), *self.batch_shape, self.loc.shape[-1])
        z = random(torch.randn, size, self.loc, generator)
        return self.loc + (self.scale_tril @ z.unsqueeze(-1)).squeeze(-1)
