r"""Families of `torch.distributions`; ordinal, zero-inflated and censored outcomes."""

from __future__ import annotations

import math
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from limbeck.arguments import UserObject, checked_arguments
from limbeck.arrays import leaves, random
from limbeck.distributions.base import (
    ABSENT,
    Distribution,
    Events,
    Generator,
    Mixture,
    Shape,
    as_events,
    as_shape,
)
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.gaussians import MultivariateNormal, Normal
from limbeck.errors import ArgumentError

SAMPLES = 2000  # for means and tails that a family has no formula for
Numbers = dict[str, np.ndarray]
EQUAL = ("probs", "logits")  # parameters that stand for each other
OWN: dict[type, Callable[[Any], Distribution]] = {  # limbeck's own classes of the same families
    td.Normal: lambda d: Normal(d.loc, d.scale),
    td.Poisson: lambda d: Poisson(rate=d.rate),
    td.MultivariateNormal: lambda d: MultivariateNormal(d.loc, d.scale_tril),
    td.Bernoulli: lambda d: Bernoulli(**_either(d)),
    td.Categorical: lambda d: Categorical(**_either(d)),
}


def _either(distribution: Any) -> dict[str, Tensor]:
    name = "logits" if "logits" in vars(distribution) else "probs"
    return {name: getattr(distribution, name)}


class _ThreadDefault(threading.local):
    r"""Whether torch validates by default: its own setting, unless a block of the thread differs.

    It takes the place of the attribute that torch's classes read.
    """

    def __init__(self, setting: bool) -> None:
        self.setting, self.active = setting, list[bool]()

    def __get__(self, instance: object, owner: object = None) -> bool:
        return self.active[-1] if self.active else self.setting


@contextmanager
def validation(active: bool) -> Iterator[None]:
    r"""Within the block torch validates parameters and values of distributions, or does not.

    It cannot inside of `vmap`; and zuko switches it off for all when it is imported.
    """
    default: Any = vars(td.Distribution)["_validate_args"]
    if not isinstance(default, _ThreadDefault):  # also after `set_default_validate_args`
        default = _ThreadDefault(default)
        td.Distribution._validate_args = default
    default.active.append(active)
    try:
        yield
    finally:
        default.active.pop()


def adapt(value: Any, argument: str = "predict") -> Any:
    r"""A `torch.distributions` object as a distribution of limbeck's; anything else as it is."""
    if isinstance(value, Mixture | _Around) and isinstance(value.components, td.Distribution):
        wrapped: Any = value
        return wrapped._replace(components=adapt(value.components, argument))
    if not isinstance(value, td.Distribution):
        return value
    kind: Any = type(value)
    if kind in OWN:
        return OWN[kind](value)
    if kind is td.MixtureSameFamily:
        mixed: Any = value
        weights = _either(mixed.mixture_distribution)
        parts = adapt(mixed.component_distribution, argument)
        return Mixture(weights.get("probs", ABSENT), parts, weights.get("logits", ABSENT))
    steps = 0
    while isinstance(value, td.Independent):
        steps, value = steps + value.reinterpreted_batch_ndims, value.base_dist
    if len(value.event_shape) + steps > 1:
        received = f"a {kind.__name__} of events of {len(value.event_shape) + steps} dimensions"
        raise ArgumentError(argument, received, "numbers, or vectors, as outcomes")
    parameters = _parameters(value, argument)
    dims = tuple(v.ndim - len(value.batch_shape) if v.ndim else 0 for v in parameters.values())
    base_kind: Any = type(value)
    family = _family(base_kind, tuple(parameters), dims, len(value.event_shape), steps)
    return family(*parameters.values())


def _parameters(value: Any, argument: str) -> dict[str, Tensor]:
    r"""The arguments from which a distribution can be made again, as tensors."""
    constraints = getattr(type(value), "arg_constraints", {})
    names = [name for name in constraints if name not in EQUAL]
    if set(EQUAL) & set(constraints):
        names += _either(value)
    if {"covariance_matrix", "scale_tril"} <= set(names):
        names = [name for name in names if name not in ("covariance_matrix", "precision_matrix")]
    parameters: dict[str, Any] = {name: getattr(value, name, None) for name in names}
    if not names or not all(isinstance(each, Tensor) for each in parameters.values()):
        received = f"a {type(value).__name__} whose parameters are not tensors named in its class"
        expected = "a distribution that its arg_constraints describe; or limbeck's own families"
        raise ArgumentError(argument, received, expected)
    return parameters


@cache
def _family(
    kind: type, names: tuple[str, ...], dims: tuple[int, ...], event: int, steps: int
) -> type[Any]:
    r"""A class of named tuples for a class of torch, whose last batch axes may be an event."""
    fields = namedtuple("Parameters", names, defaults=(ABSENT,) * len(names))  # type: ignore[misc]
    about = {
        "__slots__": (), "__doc__": kind.__doc__, "kind": kind, "names": names, "steps": steps,
        "trailing": tuple(d + steps for d in dims), "event": event + steps,
        "mean_dims": event + steps,
    }  # fmt: skip
    return type(kind.__name__, (TorchFamily, fields), about)


class TorchFamily(Distribution):
    r"""The base of families of torch: named tuples that make the torch object when it is needed."""

    __slots__ = ()
    kind: Any  # the class of `torch.distributions`
    names: tuple[str, ...]
    steps: int  # batch axes of the torch object that belong to an event

    @property
    def torch(self) -> Any:
        r"""The `torch.distributions` object."""
        values: Any = self
        made = self.kind(**dict(zip(self.names, values, strict=True)), validate_args=False)
        return td.Independent(made, self.steps, validate_args=False) if self.steps else made

    @property
    def discrete(self) -> bool:
        with validation(False):
            return bool(self.torch.support.is_discrete)

    @property
    def mean(self) -> Tensor:
        return self._moment("mean")

    @property
    def variance(self) -> Tensor:
        return self._moment("variance")

    def _moment(self, name: str) -> Tensor:
        try:
            return getattr(self.torch, name)
        except NotImplementedError:
            samples = self._fixed_samples()
            return samples.mean(0) if name == "mean" else samples.var(0)

    def log_prob(self, y: UserObject[Events]) -> Tensor:
        made, like = self.torch, leaves(self)[0]
        y = as_events(y, like, self)
        logs: Tensor = made.log_prob(y)
        try:
            inside = made.support.check(y)
        except NotImplementedError:  # a family that does not tell
            return logs
        return torch.where(inside, logs, -math.inf)

    @checked_arguments
    def sample(self, shape: UserObject[Shape] = (), generator: Generator = None) -> Tensor:
        if generator is None:
            return self.torch.sample(as_shape(shape))
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.torch.sample(as_shape(shape))

    def _fixed_samples(self) -> Tensor:
        samples: Tensor = self.sample((SAMPLES,), torch.Generator().manual_seed(0))
        return samples.sort(0).values

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        if self.event:
            return super().tail(y, upper)
        if self.kind in SCIPY:
            from scipy import stats

            parameters: Any = self
            at, *rest = (v.detach().double().cpu().numpy() for v in (y, *parameters))
            known = SCIPY[self.kind](stats, dict(zip(self.names, rest, strict=True)))
            below = torch.as_tensor(np.asarray(known.cdf(at))).to(y)
        else:
            try:
                below = self.torch.cdf(y)
            except NotImplementedError:
                samples = self._fixed_samples()
                more = [1] * (y.ndim - samples.ndim + 1)
                samples = samples.reshape(SAMPLES, *more, *samples.shape[1:])
                below = (samples <= y).to(samples.dtype).mean(0)
        if not self.discrete and (support := getattr(self.torch, "support", None)) is not None:
            below = torch.where(support.check(y), below, (y > self.mean).to(below.dtype))
        return 1 - below if upper else below


def _success(p: Numbers) -> np.ndarray:
    return p["probs"] if "probs" in p else 1 / (1 + np.exp(-p["logits"]))


# families whose cumulative distribution torch lacks, by `scipy.stats`
SCIPY: dict[Any, Callable[[Any, Numbers], Any]] = {
    td.StudentT: lambda stats, p: stats.t(p["df"], p["loc"], p["scale"]),
    td.Beta: lambda stats, p: stats.beta(p["concentration1"], p["concentration0"]),
    td.NegativeBinomial: lambda stats, p: stats.nbinom(p["total_count"], 1 - _success(p)),
    td.Binomial: lambda stats, p: stats.binom(p["total_count"], _success(p)),
    td.Geometric: lambda stats, p: stats.geom(_success(p), loc=-1),
}


def ordinal(eta: UserObject[Tensor], cutpoints: UserObject[Tensor]) -> Categorical:
    r"""Ordered classes 0 … K−1 by cumulative logits: P(Y ≤ k) = σ(cutpoints[k] − eta).

    Arguments:
        eta: The linear predictor, (n,).
        cutpoints: Ascending numbers (K − 1,).

    >>> ordinal(torch.zeros(1), torch.tensor([-1.0, 1.0])).mean
    tensor([[0.2689, 0.4621, 0.2689]])
    """
    z = cutpoints - eta.unsqueeze(-1)
    low, high = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    # log(σ(b) − σ(a)) = log σ(b) + log σ(−a) + log(1 − e^(a − b))
    gap = (z[..., :-1] - z[..., 1:]).clamp_max(-torch.finfo(z.dtype).eps)
    between = low[..., 1:] + high[..., :-1] + torch.log(-torch.expm1(gap))
    return Categorical(logits=torch.cat([low[..., :1], between, high[..., -1:]], -1))


class _Around(Distribution):
    r"""The common base of families that change another one, `components`, of the same shape."""

    __slots__ = ()
    components: Any
    event = 0
    discrete = property(lambda self: self.components.discrete)

    def expand(self, shape: UserObject[tuple[int, ...]]) -> Any:
        parts: Any = self
        return type(self)(*(part.expand(shape) for part in parts))


class ZeroInflated(_Around, namedtuple("Zeros", "zero components", defaults=(ABSENT, ABSENT))):
    r"""Zero with probability `zero`, and otherwise counts or numbers of another distribution.

    >>> ZeroInflated(torch.tensor(0.5), Poisson(rate=torch.tensor(2.0))).mean
    tensor(1.)
    """

    __slots__ = ()
    trailing = (0, 0)
    mean = property(lambda self: (1 - self.zero) * self.components.mean)

    @property
    def variance(self) -> Tensor:
        inner = self.components
        return (1 - self.zero) * (inner.variance + self.zero * inner.mean.square())

    def log_prob(self, y: UserObject[Events]) -> Tensor:
        y = as_events(y, self.zero, self)
        inner = torch.log1p(-self.zero) + self.components.log_prob(y)
        both = torch.logaddexp(self.zero.log().expand_as(inner), inner)
        if not self.discrete:  # a density beside a probability: they do not add up
            both = self.zero.log().expand_as(inner)
        return torch.where(y == 0, both, inner)

    @checked_arguments
    def sample(self, shape: UserObject[Shape] = (), generator: Generator = None) -> Tensor:
        y = self.components.expand(self.batch_shape).sample(shape, generator)
        chance = random(torch.rand, tuple(y.shape), self.zero, generator)
        return torch.where(chance < self.zero, 0.0, y.to(self.zero.dtype))

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        inner = (1 - self.zero) * self.components.tail(y, upper)
        return inner + torch.where((y < 0) if upper else (y >= 0), self.zero, 0.0)


class Censored(
    _Around, namedtuple("Limits", "components low high", defaults=(ABSENT, ABSENT, ABSENT))
):
    r"""Numbers of another distribution, known only to be at the limits where they are beyond.

    At `low` and at `high` the probability of all values beyond counts; −∞ and ∞ are no limits.

    >>> tobit = Censored(Normal(torch.tensor(0.0), torch.tensor(1.0)), 0.0, math.inf)
    >>> tobit.log_prob(torch.tensor(0.0)).exp()
    tensor(0.5000)
    """

    __slots__ = ()
    trailing = (0, 0, 0)
    mean = property(lambda self: self._samples().mean(0))
    variance = property(lambda self: self._samples().var(0))

    def _samples(self) -> Tensor:
        return self.sample((SAMPLES,), torch.Generator().manual_seed(0))

    def log_prob(self, y: UserObject[Events]) -> Tensor:
        like = leaves(self.components)[0]
        y = as_events(y, like, self)
        low, high = (torch.as_tensor(end).to(like) for end in (self.low, self.high))
        inside = torch.where((y > low) & (y < high), y, self.components.mean)
        inner = self.components.log_prob(inside)
        tiny = torch.finfo(like.dtype).tiny
        for limit, upper in ((low, False), (high, True)):
            at = torch.where(limit.isfinite(), limit, 0.0)
            mass = self.components.tail(at, upper).clamp_min(tiny).log()
            inner = torch.where(y == limit, mass, inner)
        return torch.where((y < low) | (y > high), -math.inf, inner)

    @checked_arguments
    def sample(self, shape: UserObject[Shape] = (), generator: Generator = None) -> Tensor:
        y = self.components.expand(self.batch_shape).sample(shape, generator)
        low, high = (torch.as_tensor(end).to(y) for end in (self.low, self.high))
        return torch.minimum(torch.maximum(y, low), high)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        inner = self.components.tail(y, upper)
        low, high = (torch.as_tensor(end).to(inner) for end in (self.low, self.high))
        inner = torch.where(y < low, float(upper), inner)
        return torch.where(y >= high, float(not upper), inner)
