r"""Unconstrained coordinates of draws: a support of each variable, with its bijection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import Transform

from limbeck.arrays import label
from limbeck.errors import ArgumentError, shown
from limbeck.posteriors.draws import Structure


class OrderedTransform(Transform):
    r"""Any vector to one whose values increase: y₀ = x₀, yₖ = yₖ₋₁ + exp(xₖ)."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x[..., 1:].exp()], -1).cumsum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat([y[..., :1], y.diff(dim=-1).log()], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x[..., 1:].sum(-1)


class Ordered(Constraint):
    r"""Vectors whose values increase, which torch has no constraint for."""

    event_dim = 1


for registry in (biject_to, transform_to):
    registry.register(Ordered, lambda constraint: OrderedTransform())
NAMED: dict[str, Constraint] = {
    "real": constraints.real, "positive": constraints.positive,
    "unit_interval": constraints.unit_interval, "unit": constraints.unit_interval,
    "simplex": constraints.simplex, "ordered": Ordered(),
}  # fmt: skip
ACCEPTED = (
    "'real', 'positive', 'unit_interval', 'simplex', 'ordered', a pair (low, high), or a "
    "torch.distributions constraint"
)


def as_constraint(support: Any, argument: str) -> Constraint:
    r"""The support that a name, a pair of ends (None: without end) or a constraint stands for."""
    if support is None:
        return constraints.real
    if isinstance(support, str):
        if support not in NAMED:
            raise ArgumentError.unknown(argument, support, NAMED)
        return NAMED[support]
    if isinstance(support, tuple | list) and len(support) == 2:
        try:
            low = -math.inf if support[0] is None else float(support[0])
            high = math.inf if support[1] is None else float(support[1])
        except (TypeError, ValueError):
            raise ArgumentError(argument, shown(support), ACCEPTED) from None
        if not low < high:
            raise ArgumentError(argument, shown(support), "a pair (low, high) with low < high")
        if high == math.inf:
            return constraints.real if low == -math.inf else constraints.greater_than(low)
        below = low == -math.inf
        return constraints.less_than(high) if below else constraints.interval(low, high)
    try:
        biject_to(support)
    except (NotImplementedError, AttributeError, TypeError):
        raise ArgumentError(argument, shown(support), ACCEPTED) from None
    return constraints.real if support is constraints.real_vector else support


class Part:
    r"""Some numbers of a row of draws, with one support.

    Arguments:
        name: Their name in errors, as "draws['sigma']".
        columns: Their places in a row.
        shape: The shape of the variable in one draw.
        support: Their support, as the user gave it.
        argument: The name of `support` in errors.
    """

    def __init__(
        self, name: str, columns: Iterable[int], shape: tuple[int, ...], support: Any, argument: str
    ) -> None:
        self.name, self.columns, self.shape = name, list(columns), shape
        self.support, self.constraint = shown(support), as_constraint(support, argument)
        self.transform = biject_to(self.constraint)
        least = max(self.transform.domain.event_dim, self.transform.codomain.event_dim)
        if len(shape) < least:
            expected = f"at least {least} axes for {self.support}"
            raise ArgumentError(name, f"the shape {shape} of one draw", expected)

    @property
    def bounded(self) -> bool:
        r"""Whether a density that does not depend on them has an integral."""
        ends = hasattr(self.constraint, "lower_bound") and hasattr(self.constraint, "upper_bound")
        return ends or self.constraint in (constraints.simplex, constraints.corr_cholesky)

    def constrained(self, u: Tensor) -> tuple[Tensor, Tensor]:
        r"""Values (n, columns) of unconstrained ones (n, size), and the log volume (n,)."""
        u = u.reshape(len(u), *self.transform.inverse_shape(self.shape))
        x = self.transform(u)
        volume = self.transform.log_abs_det_jacobian(u, x)
        if not self.constraint.event_dim:  # none where rounding led out of the support
            volume = torch.where(self.constraint.check(x), volume, -math.inf)
        return x.reshape(len(u), -1), volume.reshape(len(u), -1).sum(1)

    def check(self, rows: Tensor) -> Tensor:
        r"""Unconstrained values of rows of draws; refuse those with values outside the support."""
        shaped = rows[:, self.columns].reshape(len(rows), *self.shape)
        try:
            u = self.transform.inv(shaped)
            again = self.transform(u)
        except (RuntimeError, IndexError, ValueError) as error:
            received = f"the shape {self.shape} of one draw ({type(error).__name__})"
            raise ArgumentError(self.name, received, f"a shape that {self.support} has") from error
        wrong = ~((again - shaped).abs() <= 1e-4 * (1 + shaped.abs()))  # not a number, too
        if count := int(wrong.reshape(len(rows), -1).any(1).sum()):
            received = f"{count:,} of {len(rows):,} draws such as {shown(shaped[wrong][0].item())}"
            raise ArgumentError(self.name, received, f"values inside its support, {self.support}")
        return u.reshape(len(rows), -1)

    def unconstrained(self, rows: Tensor) -> Tensor:
        r"""The inverse of `constrained`, of rows of draws whose values are inside the support."""
        u = self.check(rows)
        if not u.isfinite().all():
            received = f"draws at the boundary of its support, {self.support}"
            raise ArgumentError(self.name, received, "draws inside it")
        return u


def parts_of(structure: Structure, support: Any) -> list[Part]:
    r"""The neighbouring parts of a row, with the supports that a user gave; see `Coordinates`."""
    columns = range(structure.dim)
    own = support if isinstance(support, Mapping) else dict.fromkeys(structure.names, support)
    if structure.vector and isinstance(support, Mapping):
        try:
            own = {columns[int(str(key))]: value for key, value in support.items()}  # no fractions
        except (TypeError, ValueError, IndexError):
            expected = f"positions from 0 to {structure.dim - 1}, for draws without names"
            raise ArgumentError("support", shown([*support]), expected) from None
        runs = groupby(columns, lambda column: column if column in own else None)
        pieces: list[Any] = [(key, [*run]) for key, run in runs]
        return [
            Part("draws", run, (len(run),), None, "support") if key is None
            else Part(f"draws[..., {key}]", run, (), own[key], f"support[{key}]")
            for key, run in pieces
        ]  # fmt: skip
    for name in own.keys() - set(structure.names):
        raise ArgumentError.unknown("support", name, structure.names)
    places = torch.arange(structure.dim).split(structure.sizes)
    return [
        Part(label("draws", name), place.tolist(), shape, own.get(name), label("support", name))
        for name, shape, place in zip(structure.names, structure.shapes, places, strict=True)
    ]


class Affine(NamedTuple):
    r"""Rows mean + factor z, with a lower triangular factor."""

    mean: Tensor
    factor: Tensor

    def whiten(self, x: Tensor) -> Tensor:
        r"""The rows z of rows x (n, D)."""
        return torch.linalg.solve_triangular(self.factor, (x - self.mean).T, upper=False).T

    def back(self, z: Tensor) -> Tensor:
        r"""The inverse of `whiten`."""
        return self.mean + z @ self.factor.T

    def distance(self, x: Tensor) -> Tensor:
        r"""The squared lengths (n,) of rows x when they are whitened."""
        return self.whiten(x).square().sum(1)

    @property
    def log_volume(self) -> float:
        return float(self.factor.diagonal().log().sum())


class Coordinates:
    r"""Rows of draws as unconstrained rows, and back, with the logarithm of the volume.

    A simplex of K numbers has K − 1 coordinates, and its density is one of the first K − 1 numbers,
    as in `torch.distributions.Dirichlet`.

    Arguments:
        structure: Names and shapes of the variables.
        support: One support for all, or by name (of a vector: by position) those that are not real.

    >>> coordinates = Coordinates(Structure(("mu", "sigma"), ((), ())), {"sigma": "positive"})
    >>> coordinates.constrained(torch.zeros(1, 2))
    (tensor([[0., 1.]]), tensor([0.]))
    """

    def __init__(self, structure: Structure, support: Any = None) -> None:
        # scales and the like come first: others depend on them in hierarchical models
        self.parts = parts = sorted(
            parts_of(structure, support), key=lambda part: part.constraint is constraints.real
        )
        self._order = torch.tensor([column for part in parts for column in part.columns]).argsort()
        self.sizes = [math.prod(part.transform.inverse_shape(part.shape)) for part in parts]
        self.dim = sum(self.sizes)
        self.affine: Affine | None = None

    def whiten(self, rows: Tensor) -> Tensor:
        r"""Unconstrained rows of draws; from now on their mean is 0, and their covariance 1."""
        u = self.unconstrained(rows)
        mean = u.mean(0)
        covariance = (u - mean).T @ (u - mean) / len(u)
        scale = covariance.diagonal().sqrt()
        factor, failed = torch.linalg.cholesky_ex(covariance / scale.outer(scale))
        if failed or float(factor.diagonal().min()) < 1e-6:
            last = int(failed) - 1 if failed else int(factor.diagonal().argmin())
            received = "numbers that are linear functions of each other, or of other variables"
            raise ArgumentError(self.owner(last), received, "free ones; see var_names and support")
        self.affine = Affine(mean, scale[:, None] * factor)
        return self.affine.whiten(u)

    def constrained(self, u: Tensor) -> tuple[Tensor, Tensor]:
        r"""Rows (n, numbers of a draw) of unconstrained rows (n, dim), and log volumes (n,)."""
        u = u if self.affine is None else self.affine.back(u)
        pieces = zip(self.parts, u.split(self.sizes, 1), strict=True)
        values, volumes = zip(*(part.constrained(v) for part, v in pieces), strict=True)
        volume = torch.stack(volumes).sum(0) + (self.affine.log_volume if self.affine else 0.0)
        return torch.cat(values, 1)[:, self._order.to(u.device)], volume

    def unconstrained(self, rows: Tensor) -> Tensor:
        r"""The inverse of `constrained`; values outside their support are refused."""
        u = torch.cat([part.unconstrained(rows) for part in self.parts], 1)
        return u if self.affine is None else self.affine.whiten(u)

    @property
    def plain_columns(self) -> list[int]:
        r"""The numbers of a draw that each have one coordinate of their own."""
        pairs = zip(self.parts, self.sizes, strict=True)
        return sorted(c for part, size in pairs if size == len(part.columns) for c in part.columns)

    def owner(self, coordinate: int) -> str:
        r"""The variable of a coordinate, as "draws['sigma']"."""
        for part, size in zip(self.parts, self.sizes, strict=True):
            if coordinate < size:
                return part.name
            coordinate -= size
        raise IndexError(coordinate)
