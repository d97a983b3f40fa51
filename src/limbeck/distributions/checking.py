r"""Checks of the distributions that a user's function returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from limbeck.distributions.base import Distribution, Mixture, given, with_tensors
from limbeck.distributions.discrete import Bernoulli
from limbeck.distributions.families import Censored, TorchFamily, adapt
from limbeck.errors import ArgumentError
from limbeck.outputs import TOLERANCE

ACCEPTED = "a distribution of limbeck's or of torch.distributions"


def as_distribution(value: object, argument: str = "predict", like: Tensor | None = None) -> Any:
    r"""A distribution of limbeck's or of torch, with tensors for parameters, or an error."""
    value = adapt(value, argument)
    if not isinstance(value, Distribution):
        raise ArgumentError(argument, f"a {type(value).__name__} as its result", ACCEPTED)
    _refuse_incomplete(value, argument)
    try:
        return with_tensors(value, like)
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
    shapes = {key: _shape(part) for key, part in distribution._asdict().items() if given(part)}
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


def _shape(part: Distribution | Tensor) -> tuple[int, ...]:
    return tuple(part.batch_shape if isinstance(part, Distribution) else part.shape)


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
    if of_torch:  # which does not check inside of vmap
        constraint = distribution.kind.arg_constraints.get(name)
        known = constraint is not None and not constraints.is_dependent(constraint)
        wrong = known and not bool(constraint.check(value).all())
        return (between, f"numbers that are {constraint}") if wrong else None
    if name in ("probs", "weights"):
        if low < -TOLERANCE or high > 1 + TOLERANCE:
            return between, "probabilities, between 0 and 1"
        if not binary and bool(((value.sum(-1) - 1).abs() > TOLERANCE).any()):
            return f"with the sum {value.sum(-1).flatten()[0].item():.4g}", "numbers with the sum 1"
    if name == "zero" and not 0 <= low <= high <= 1:
        return between, "probabilities, between 0 and 1"
    if name == "scale" and low <= 0:
        return between, "numbers above zero"
    if name == "rate" and low < 0:
        return between, "numbers from zero"
    if name == "scale_tril" and bool((value.diagonal(dim1=-2, dim2=-1) <= 0).any()):
        return "with a diagonal that is not positive", "a lower triangular Cholesky factor"
    if name == "scale_tril" and bool((value.triu(1) != 0).any()):
        return "with numbers above the diagonal", "a lower triangular Cholesky factor"
    return None
