r"""Finite mixtures of distributions, and with them averages over draws."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.distributions.base import (
    ABSENT,
    Distribution,
    Shape,
    as_events,
    as_shape,
    end_of,
    given,
    mapped,
)
from limbeck.distributions.discrete import Categorical

__all__ = ["Mixture"]


class _Parts(NamedTuple):
    weights: Tensor = ABSENT
    components: Any = ABSENT
    logits: Tensor = ABSENT


class Mixture(Distribution, _Parts):
    r"""Σ_k π_k p_k, by `weights=`, with the sum 1, or `logits=`, (..., K).

    The components are one distribution with the batch shape (..., K).

    >>> from limbeck.distributions.continuous import Normal
    >>> loc, scale = torch.tensor([-1.0, 1.0]), torch.tensor([1.0, 2.0])
    >>> Mixture(torch.tensor([0.5, 0.5]), Normal(loc, scale)).variance
    tensor(3.5000)
    """

    __slots__ = ()
    trailing = (1, 1, 1)
    either = ("weights", "logits")

    @property
    def event(self) -> int:
        return self.components.event

    @property
    def mean_dims(self) -> int:
        return self.components.mean_dims

    @property
    def discrete(self) -> bool:
        return self.components.discrete

    @property
    def batch_shape(self) -> torch.Size:
        return self._shape[:-1]

    @property
    def _shape(self) -> torch.Size:
        own = self.logits if given(self.logits) else self.weights
        return torch.broadcast_shapes(own.shape, self.components.batch_shape)

    def expand(self, shape: tuple[int, ...]) -> Mixture:
        whole = (*shape, self._shape[-1])
        components = self.components.expand(whole)
        if given(self.logits):
            return Mixture(components=components, logits=self.logits.expand(whole))
        return Mixture(self.weights.expand(whole), components)

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights, normalised, (..., K)."""
        return Categorical(self.weights, self.logits).log_probabilities

    @property
    def mean(self) -> Tensor:
        return self._over(self.components.mean)

    @property
    def variance(self) -> Tensor:
        apart = self.components.mean - self.mean.unsqueeze(-1 - self.mean_dims)
        return self._over(self.components.variance + apart.square())

    def _over(self, values: Tensor) -> Tensor:
        r"""The mean over components of values (..., K), or (..., K, D)."""
        p = Categorical(self.weights, self.logits).mean
        p = p.reshape(*p.shape, *[1] * self.mean_dims)
        return (p * values).sum(-1 - self.mean_dims)

    def log_prob(self, y: Any) -> Tensor:
        logs = self.log_weights
        of_each = self.components.log_prob(as_events(y, logs).unsqueeze(-1 - self.event))
        return (logs + of_each).logsumexp(-1)

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        size, whole = as_shape(shape), self.expand(self.batch_shape)
        which = Categorical(whole.weights, whole.logits).sample(size, generator)

        def chosen(value: Tensor, dims: int) -> Tensor:
            index = which.reshape(*which.shape, *[1] * (dims + 1))
            value = value.reshape(*[1] * len(size), *value.shape)
            return value.take_along_dim(index, -1 - dims).squeeze(-1 - dims)

        return mapped(whole.components, chosen).sample((), generator)

    def cdf(self, y: Any) -> Tensor:
        return self.tail(as_events(y, self.log_weights), False)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        of_each = self.components.tail(y.unsqueeze(-1), upper)
        return (Categorical(self.weights, self.logits).mean * of_each).sum(-1)

    def end(self, mass: float, upper: bool) -> Tensor:
        ends = self.components.end(mass, upper).expand(self._shape)
        low = ends.amin(-1) - 1 if self.discrete else ends.amin(-1)
        return end_of(self.tail, mass, upper, low, ends.amax(-1), self.discrete)

    def mixed(self, log_weights: Tensor) -> Any:
        inner = self.components.mixed(self.log_weights)
        if not isinstance(inner, Mixture):  # a mixture of classes has classes itself
            return inner.mixed(log_weights)
        whole = self.expand(self.batch_shape)
        logits = (whole.log_weights + log_weights.unsqueeze(-1)).flatten(-2)

        def flat(value: Tensor, dims: int) -> Tensor:
            return value.flatten(value.ndim - dims - 2, value.ndim - dims - 1)

        return Mixture(components=mapped(whole.components, flat), logits=logits)
