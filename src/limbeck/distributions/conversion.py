r"""Distributions that a user's function returns: torch's are adapted, and all are checked."""

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
from torch.distributions import constraints

from limbeck.distributions import base
from limbeck.distributions.base import ABSENT, Distribution, Generator, Mixture, given
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.families import Censored, DerivedFamily
from limbeck.distributions.gaussians import MultivariateNormal, Normal
from limbeck.errors import ArgumentError
from limbeck.outputs import TOLERANCE

CONSTRAINTS: dict[str, tuple[Any, str]] = {  # of limbeck's own parameters by name
    "zero": (constraints.unit_interval, "probabilities, between 0 and 1"),
    "scale": (constraints.positive, "numbers above zero"),
    "rate": (constraints.nonnegative, "numbers from zero"),
    "scale_tril": (constraints.lower_cholesky, "a lower triangular Cholesky factor"),
}
ACCEPTED = "a distribution of limbeck's or of torch.distributions"
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
    if isinstance(value, Mixture | DerivedFamily) and isinstance(value.components, td.Distribution):
        wrapped: Any = value
        return wrapped._replace(components=adapt(value.components, argument))
    if not isinstance(value, td.Distribution):
        return value
    kind: Any = type(value)
    if kind in OWN:
        return OWN[kind](value)
    if type(value) is td.MixtureSameFamily:
        weights = _either(value.mixture_distribution)
        parts = adapt(value.component_distribution, argument)
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

    mean = property(lambda self: self._moment("mean"))
    variance = property(lambda self: self._moment("variance"))

    def _moment(self, name: str) -> Tensor:
        try:
            return getattr(self.torch, name)
        except NotImplementedError:
            samples = self._fixed_samples()
            return samples.mean(0) if name == "mean" else samples.var(0)

    def _log_prob(self, y: Tensor) -> Tensor:
        made = self.torch
        logs: Tensor = made.log_prob(y)
        try:
            inside = made.support.check(y)
        except NotImplementedError:  # a family that does not tell
            return logs
        return torch.where(inside, logs, -math.inf)

    def _sample(self, size: tuple[int, ...], generator: Generator) -> Tensor:
        if generator is None:
            return self.torch.sample(size)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.torch.sample(size)

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
                samples = samples.reshape(len(samples), *more, *samples.shape[1:])
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


def as_distribution(value: object, argument: str = "predict", like: Tensor | None = None) -> Any:
    r"""A distribution of limbeck's or of torch, with tensors for parameters, or an error."""
    value = adapt(value, argument)
    if not isinstance(value, Distribution):
        raise ArgumentError(argument, f"a {type(value).__name__} as its result", ACCEPTED)
    _refuse_incomplete(value, argument)
    try:
        return base.with_tensors(value, like)
    except (TypeError, ValueError, RuntimeError) as error:
        received = f"a {type(value).__name__} whose parameters are no numbers ({error})"
        raise ArgumentError(argument, received, "tensors, arrays or numbers") from None


def _refuse_incomplete(value: Any, argument: str) -> None:
    names = [name for name, parameter in value._asdict().items() if given(parameter)]
    always = [name for name in value._fields if name not in value.either]
    # one of `either`, and all others
    if not set(always) <= set(names) or len(names) != len(always) + bool(value.either):
        either = [f"either {' or '.join(value.either)}"] if value.either else []
        received = f"a {type(value).__name__} with {' and '.join(names) or 'nothing'}"
        raise ArgumentError(argument, received, ", and ".join([*either, *always]))
    if isinstance(value, Mixture):
        if not isinstance(value.components, Distribution):
            received = f"a Mixture of a {type(value.components).__name__}"
            raise ArgumentError(argument, received, ACCEPTED)
        _refuse_incomplete(value.components, argument)


def check(
    value: object, n: int | None, argument: str = "predict", like: Tensor | None = None
) -> Any:
    r"""A distribution for n inputs, with tensors for parameters; anything else is refused."""
    distribution = as_distribution(value, argument, like)
    name, rows = type(distribution).__name__, () if n is None else (n,)
    parts = {key: part for key, part in distribution._asdict().items() if given(part)}
    sizes = {k: p.batch_shape if k == "components" else p.shape for k, p in parts.items()}
    shapes = {key: tuple(size) for key, size in sizes.items()}
    try:
        shape = tuple(distribution.batch_shape)
    except RuntimeError:
        listed = ", ".join(f"{key} {size}" for key, size in shapes.items())
        received = f"a {name} of {listed}, which do not fit each other"
        raise ArgumentError(argument, received, f"parameters of one shape {rows}") from None
    if shape[:1] != rows or len(shape) > 2 * len(rows):
        inputs = "of no inputs" if n is None else f"for {n} inputs"
        received = f"a {name} of the batch shape {shape} {inputs}"
        raise ArgumentError(argument, received, f"the shape {rows}")
    trailing = dict(zip(distribution._fields, distribution.trailing, strict=True))
    batches = [size[: len(size) - trailing[key]] for key, size in shapes.items()]
    if shape not in batches:  # (n, 1) beside (n,) would make n² distributions
        received = f"parameters of the shapes {' and '.join(map(str, batches))}"
        raise ArgumentError(argument, received, "parameters of one shape")
    _check_values(distribution, argument)
    return distribution


def _check_values(distribution: Any, argument: str) -> None:
    for name, value in distribution._asdict().items():
        if isinstance(value, Distribution):
            _check_values(value, argument)
        elif given(value) and (fault := _fault(distribution, name, value)):
            kind = getattr(distribution, "kind", type(distribution)).__name__
            raise ArgumentError(argument, f"{name} of a {kind} {fault[0]}", fault[1])


def _fault(distribution: Any, name: str, value: Tensor) -> tuple[str, str] | None:
    r"""What is wrong with the values of a parameter, and what is expected."""
    of_torch, binary = isinstance(distribution, TorchFamily), isinstance(distribution, Bernoulli)
    finite = value.isfinite()
    if name == "logits" and not binary and not of_torch:  # a class may be impossible
        finite |= value == -torch.inf
    if isinstance(distribution, Censored):  # no limit
        finite |= value.isinf()
    if not bool(finite.all()):
        return f"with {int((~finite).sum())} that are NaN or infinite", "finite numbers"
    if not value.numel():
        return "without any number", "numbers"
    low, high = value.min().item(), value.max().item()
    between = f"between {low:.4g} and {high:.4g}"
    if not of_torch and name in ("probs", "weights"):
        if low < -TOLERANCE or high > 1 + TOLERANCE:
            return between, "probabilities, between 0 and 1"
        if not binary and bool(((value.sum(-1) - 1).abs() > TOLERANCE).any()):
            return f"with the sum {value.sum(-1).flatten()[0].item():.4g}", "numbers with the sum 1"
    constraint, words = CONSTRAINTS.get(name, (None, ""))
    if of_torch:  # which does not check inside of vmap
        constraint = distribution.kind.arg_constraints.get(name)
        constraint = None if constraints.is_dependent(constraint) else constraint
        words = f"numbers that are {constraint}"
    wrong = constraint is not None and not bool(constraint.check(value).all())
    return (between, words) if wrong else None
