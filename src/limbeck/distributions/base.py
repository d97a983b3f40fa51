r"""Batches of distributions as named tuples of their parameters, and finite mixtures of them."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import InnerFraction, UserObject, checked_arguments, integer
from limbeck.arrays import leaves
from limbeck.errors import ArgumentError, LimbeckError, shown

ABSENT: Any = ()  # a parameter that was not given
Shape = int | tuple[int, ...]  # the number of samples of each distribution
Generator = torch.Generator | None  # None is torch's global one
Events = Tensor | np.ndarray | float | Sequence[Any]  # as users write them


class Distribution:
    r"""A batch of distributions, as a plain named tuple of their parameters.

    `torch.vmap`, `torch.func` and the compiler support it. An omitted parameter is the empty tuple.
    Parameters are broadcast to one batch shape.
    """

    __slots__ = ()
    trailing: ClassVar[tuple[int, ...]]  # dimensions of each parameter within one distribution
    either: ClassVar[tuple[str, ...]] = ()  # parameters of which exactly one is given
    event: Any = 0  # the number of dimensions of an event
    mean_dims: Any = 0  # the number of dimensions of the mean
    discrete: Any = False  # whether events are whole numbers
    mean: Any  # the mean of an event
    variance: Any  # the variance of an event
    _log_prob: Any  # (y) gives log probabilities at a tensor of events
    _sample: Any  # (size, generator) gives events (*size, ...)

    @property
    def batch_shape(self) -> torch.Size:
        r"""The shape of the batch, to which all parameters are broadcast."""
        parameters: Any = self
        shapes = []
        for value, dims in zip(parameters, self.trailing, strict=True):
            if given(value):
                inner = isinstance(value, Distribution)
                shape = value.batch_shape if inner else getattr(value, "shape", ())
                shapes.append(shape[: len(shape) - dims])
        longer = [shape for shape in shapes if len(shape)] or shapes
        return longer[0] if len(longer) == 1 else torch.broadcast_shapes(*shapes)

    def expand(self, shape: UserObject[tuple[int, ...]]) -> Self:
        r"""The distribution broadcast to this batch shape, without copies."""
        return map_parameters(self, lambda v, dims: v.expand((*shape, *v.shape[v.ndim - dims :])))

    def log_prob(self, y: UserObject[Events]) -> Tensor:
        r"""The log density, or log probability, at y; −∞ at impossible values."""
        return self._log_prob(as_events(y, leaves(self)[0], self))

    @checked_arguments
    def sample(self, shape: UserObject[Shape] = (), generator: Generator = None) -> Tensor:
        r"""Independent events (*shape, ...); by default one of each distribution."""
        sizes = shape if isinstance(shape, list | tuple) else (shape,)
        expected = "a whole number from 0, or a tuple of such"
        size = tuple(integer("shape", size, expected, least=0) for size in sizes)
        return self._sample(size, generator)

    def _fixed_samples(self) -> Tensor:
        r"""Samples for means and tails that a family has no formula for, (2000, ...)."""
        return self.sample(2000, torch.Generator().manual_seed(0))

    def cdf(self, y: UserObject[Events]) -> Tensor:
        r"""P(Y ≤ y)."""
        return self.tail(as_events(y, self.mean, self), False)

    @checked_arguments
    def interval(self, level: InnerFraction = 0.95) -> tuple[Tensor, Tensor]:
        r"""The central interval: at most ½(1 − level) of the probability is beyond either end."""
        mass = (1 - level) / 2
        return self.end(mass, False), self.end(mass, True)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        r"""P(Y ≤ y), or P(Y > y)."""
        name = type(self).__name__
        raise LimbeckError(f"{name} is of vectors, which have no order: take quantiles of samples")

    @torch.no_grad()
    def end(self, mass: float, upper: bool) -> Tensor:
        r"""The end of a central interval with this probability beyond it, by bisection."""

        def past_end(y: Tensor) -> Tensor:
            beyond = self.tail(y, upper)
            return beyond <= mass if upper else beyond >= mass

        like = leaves(self)[0]
        high = like.new_ones(self.batch_shape)
        low = -high
        for _ in range(120):  # wider, until the end is between
            below, above = past_end(low), ~past_end(high)
            if not bool((below | above).any()):
                break
            low, high = torch.where(below, 2 * low, low), torch.where(above, 2 * high, high)
        for _ in range(200):  # enough for all digits of a float64 number
            middle = low + (high - low) / 2
            middle = middle.floor() if self.discrete else middle
            between = (middle > low) & (middle < high)
            if not bool(between.any()):
                break
            past = past_end(middle)
            low = torch.where(between & ~past, middle, low)
            high = torch.where(between & past, middle, high)
        return high

    def mix(self, log_weights: Tensor) -> Distribution:
        r"""The mixture over the last batch dimension, with log weights (..., K)."""
        return Mixture(components=self, logits=log_weights)


D = TypeVar("D", bound=Distribution)


def given(value: object) -> bool:
    r"""Whether a parameter was given."""
    return not isinstance(value, tuple) or isinstance(value, Distribution)


def map_parameters(distribution: D, function: Callable[[Any, int], Any], more: int = 0) -> D:
    r"""A function of each parameter and of the number of its dimensions within one distribution."""
    parameters: Any = distribution
    results = []
    for value, dims in zip(parameters, distribution.trailing, strict=True):
        if isinstance(value, Distribution):
            results.append(map_parameters(value, function, more + dims))
        else:
            results.append(function(value, more + dims) if given(value) else ABSENT)
    return type(distribution)(*results)


def with_tensors(distribution: D, like: Tensor | None = None) -> D:
    r"""The same with numbers, lists and arrays as tensors."""
    values: list[Any] = []
    map_parameters(distribution, lambda value, dims: values.append(value))
    floating = [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    if len(floating) == len(values):
        return distribution
    if like is None:
        like = floating[0] if floating else torch.empty(0)

    def as_tensor(value: Tensor | np.ndarray | float, dims: int) -> Tensor:
        if isinstance(value, Tensor):
            return value if value.is_floating_point() else value.to(like.dtype)
        return torch.tensor(value, dtype=like.dtype, device=like.device)

    return map_parameters(distribution, as_tensor)


def broadcast(distribution: D) -> D:
    r"""The same with all parameters as tensors of the whole batch shape, as `torch.vmap` needs."""
    whole = with_tensors(distribution)
    return whole if len(leaves(whole)) == 1 else whole.expand(whole.batch_shape)


def as_events(y: Events, like: Tensor, of: Distribution) -> Tensor:
    r"""Events of a distribution as a tensor of its parameters' type."""
    if not isinstance(y, Tensor):
        try:
            y = torch.as_tensor(y, device=like.device)
        except Exception:  # of whatever y is
            raise ArgumentError("y", shown(y), "numbers") from None
    if y.is_complex() or y.is_meta or y.layout != torch.strided:
        raise ArgumentError("y", f"a tensor of {y.dtype}, {y.layout}, on {y.device}", "numbers")
    if readable(y):
        shape = (*of.batch_shape, *(of.mean.shape[-1:] if of.event else ()))
        pairs = zip(reversed(y.shape), reversed(shape), strict=False)
        if any(one != two and 1 not in (one, two) for one, two in pairs):
            expected = f"a shape that goes with {shape}"
            raise ArgumentError("y", f"shape {tuple(y.shape)}", expected)
    return y.to(like.device).to(like.dtype)


def readable(tensor: Tensor) -> bool:
    r"""Whether values can be read: on a CPU, without derivatives, maps and compilers."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not torch.jit.is_tracing()
    )


def class_probabilities(probs: Tensor, logits: Tensor) -> Tensor:
    r"""Probabilities (..., K) of classes, from whichever is given."""
    return logits.softmax(-1) if given(logits) else probs


def class_log_probabilities(probs: Tensor, logits: Tensor) -> Tensor:
    r"""Log probabilities (..., K) of classes, normalised, from whichever is given."""
    if given(logits):
        return logits.log_softmax(-1)
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def draw_classes(p: Tensor, shape: tuple[int, ...], generator: Generator = None) -> Tensor:
    r"""Independent classes (*shape, ...), as integers, of probabilities p (..., K)."""
    count = math.prod(shape)
    if not count or not p.numel():
        return torch.zeros((*shape, *p.shape[:-1]), dtype=torch.long, device=p.device)
    source = p.device if generator is None else generator.device
    flat = p.reshape(-1, p.shape[-1]).to(source, torch.float64)
    classes = torch.multinomial(flat, count, replacement=True, generator=generator)
    return classes.mT.reshape((*shape, *p.shape[:-1])).to(p.device)


_Parts = namedtuple("_Parts", "weights components logits", defaults=(ABSENT, ABSENT, ABSENT))


class Mixture(Distribution, _Parts):
    r"""Σ_k π_k p_k, by `weights=`, with the sum 1, or `logits=`, (..., K).

    The components are one distribution with the batch shape (..., K).

    >>> from limbeck.distributions.gaussians import Normal
    >>> Mixture(torch.tensor([0.5, 0.5]), Normal(torch.tensor([-1.0, 1.0]), torch.ones(2))).variance
    tensor(2.)
    """

    __slots__ = ()
    trailing = (1, 1, 1)
    either = ("weights", "logits")
    event = property(lambda self: self.components.event)
    mean_dims = property(lambda self: self.components.mean_dims)
    discrete = property(lambda self: self.components.discrete)

    mean = property(lambda self: self._over(self.components.mean))

    def expand(self, shape: UserObject[tuple[int, ...]]) -> Mixture:
        parts: Any = self
        weights = self.logits if given(self.logits) else self.weights
        count = torch.broadcast_shapes(weights.shape, self.components.batch_shape)[-1]
        whole = (*shape, count)
        return Mixture(*(part.expand(whole) if given(part) else ABSENT for part in parts))

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights, normalised, (..., K)."""
        return class_log_probabilities(self.weights, self.logits)

    @property
    def variance(self) -> Tensor:
        apart = self.components.mean - self.mean.unsqueeze(-1 - self.mean_dims)
        return self._over(self.components.variance + apart.square())

    def _over(self, values: Tensor) -> Tensor:
        r"""The mean over components of values (..., K), or (..., K, D)."""
        p = class_probabilities(self.weights, self.logits)
        return (p.reshape(*p.shape, *[1] * self.mean_dims) * values).sum(-1 - self.mean_dims)

    def _log_prob(self, y: Tensor) -> Tensor:
        densities = self.components.log_prob(y.unsqueeze(-1 - self.event))
        return (self.log_weights + densities).logsumexp(-1)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        whole = self.expand(self.batch_shape)
        component = draw_classes(class_probabilities(whole.weights, whole.logits), size, generator)

        def select(value: Tensor, dims: int) -> Tensor:
            index = component.reshape(*component.shape, *[1] * (dims + 1))
            value = value.reshape(*[1] * len(size), *value.shape)
            return value.take_along_dim(index, -1 - dims).squeeze(-1 - dims)

        return map_parameters(whole.components, select).sample((), generator)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        tails = self.components.tail(y.unsqueeze(-1), upper)
        return (class_probabilities(self.weights, self.logits) * tails).sum(-1)

    def mix(self, log_weights: Tensor) -> Distribution:
        inner = self.components.mix(self.log_weights)
        if not isinstance(inner, Mixture):  # a mixture of classes is one of the same kind
            return inner.mix(log_weights)
        whole = self.expand(self.batch_shape)
        logits = (whole.log_weights + log_weights.unsqueeze(-1)).flatten(-2)
        components = map_parameters(
            whole.components, lambda v, dims: v.flatten(-dims - 2, -dims - 1)
        )
        return Mixture(components=components, logits=logits)


def average(stacked: Any) -> Any:
    r"""The mixture of predictions with the draws first, (S, ...), and equal weights."""
    whole = stacked if len(leaves(stacked)) == 1 else torch.vmap(broadcast)(stacked)
    draws, like = whole.batch_shape[0], leaves(whole)[0]
    return weighted_average(whole, like.new_full((draws,), -math.log(draws)))


def weighted_average(whole: Any, log_weights: Tensor) -> Any:
    r"""`average` of a distribution that is broadcast, with normalised log weights (S,)."""
    last = map_parameters(whole, lambda value, dims: value.movedim(0, value.ndim - 1 - dims))
    return last.mix(log_weights)
