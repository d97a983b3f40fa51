r"""Unconstrained coordinates of draws: a support of each variable, with its bijection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.transforms import Transform

from limbeck.arrays import label
from limbeck.errors import ArgumentError, shown
from limbeck.posteriors.draws import Structure

IDENTITY = biject_to(constraints.real)
NAMED = {
    "real": constraints.real, "positive": constraints.positive,
    "unit_interval": constraints.unit_interval, "simplex": constraints.simplex,
}  # fmt: skip
ACCEPTED = (
    "'real', 'positive', 'unit_interval', 'simplex', 'ordered', a pair (low, high), or a "
    "torch.distributions constraint"
)


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


def _transform(support: Any, argument: str) -> Transform:
    r"""The bijection from real numbers to a support."""
    if isinstance(support, tuple | list) and len(support) == 2:
        try:
            low, high = map(float, support)
        except (TypeError, ValueError):
            raise ArgumentError(argument, shown(support), ACCEPTED) from None
        if not low < high:
            raise ArgumentError(argument, shown(support), "a pair (low, high) with low < high")
        if high == math.inf:
            support = constraints.real if low == -math.inf else constraints.greater_than(low)
        else:
            below = low == -math.inf
            support = constraints.less_than(high) if below else constraints.interval(low, high)
    if isinstance(support, str):
        if support == "ordered":
            return OrderedTransform()
        if support not in NAMED:
            raise ArgumentError.unknown(argument, support, (*NAMED, "ordered"))
        support = NAMED[support]
    if support is None or support is constraints.real or support is constraints.real_vector:
        return IDENTITY
    try:
        return biject_to(support)
    except (NotImplementedError, AttributeError, TypeError):
        raise ArgumentError(argument, shown(support), ACCEPTED) from None


class _Part(NamedTuple):
    r"""Some numbers of a row, with one support."""

    name: str  # for errors, as "draws['sigma']"
    columns: list[int]
    shape: tuple[int, ...]
    transform: Transform
    support: str  # as the user gave it

    def constrained(self, u: Tensor) -> tuple[Tensor, Tensor]:
        r"""Values (n, columns) of unconstrained ones (n, size), and the log volume (n,)."""
        u = u.reshape(len(u), *self.transform.inverse_shape(self.shape))
        x = self.transform(u)
        volume = self.transform.log_abs_det_jacobian(u, x)
        if not self.transform.codomain.event_dim:  # none where rounding led out of the support
            volume = torch.where(self.transform.codomain.check(x), volume, -math.inf)
        return x.reshape(len(u), -1), volume.reshape(len(u), -1).sum(1)

    def unconstrained(self, x: Tensor) -> Tensor:
        r"""The inverse of `constrained`; values outside the support are refused."""
        shaped = x.reshape(len(x), *self.shape)
        try:
            u = self.transform.inv(shaped)
            again = self.transform(u)
        except (RuntimeError, IndexError, ValueError) as error:
            received = f"the shape {self.shape} of one draw ({type(error).__name__})"
            raise ArgumentError(self.name, received, f"a shape that {self.support} has") from error
        wrong = ~((again - shaped).abs() <= 1e-4 * (1 + shaped.abs()))  # not a number, too
        if count := int(wrong.reshape(len(x), -1).any(1).sum()):
            received = f"{count:,} of {len(x):,} draws such as {shown(shaped[wrong][0].item())}"
            raise ArgumentError(self.name, received, f"values inside its support, {self.support}")
        flat = u.reshape(len(x), -1)
        if not flat.isfinite().all():
            received = f"draws at the boundary of its support, {self.support}"
            raise ArgumentError(self.name, received, "draws inside it")
        return flat


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
        numbers = list(range(structure.dim))
        given = dict(support) if isinstance(support, Mapping) else None
        if structure.vector and given is not None:
            parts = self._positions(given, structure.dim)
        else:
            for name in (given or {}).keys() - set(structure.names):
                raise ArgumentError.unknown("support", name, structure.names)
            parts = []
            for name, shape, size in zip(
                structure.names, structure.shapes, structure.sizes, strict=True
            ):
                columns, numbers = numbers[:size], numbers[size:]
                own = support if given is None else given.get(name)
                transform = _transform(own, label("support", name if given else ""))
                parts.append(_Part(label("draws", name), columns, shape, transform, shown(own)))
        # scales and the like come first: others depend on them in hierarchical models
        self.parts = parts = sorted(parts, key=lambda part: part.transform is IDENTITY)
        self._order = torch.tensor([column for part in parts for column in part.columns]).argsort()
        self.sizes: list[int] = []  # coordinates of each part
        for part in parts:
            least = max(part.transform.domain.event_dim, part.transform.codomain.event_dim)
            if len(part.shape) < least:
                expected = f"at least {least} axes for {part.support}"
                raise ArgumentError(part.name, f"the shape {part.shape} of one draw", expected)
            self.sizes.append(math.prod(part.transform.inverse_shape(part.shape)))
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

    @staticmethod
    def _positions(given: Mapping[Any, Any], dim: int) -> list[_Part]:
        r"""Parts of a vector whose supports are given by position; negative ones from the end."""
        positions: dict[int, Any] = {}
        for key, own in given.items():
            try:
                position = int(key)
            except (TypeError, ValueError):
                position = dim
            if not -dim <= position < dim:
                expected = f"positions from 0 to {dim - 1}, for draws without names"
                raise ArgumentError("support", shown(key), expected)
            positions[position % dim] = own
        rest = [column for column in range(dim) if column not in positions]
        parts = [_Part("draws", rest, (len(rest),), IDENTITY, "None")] if rest else []
        for column, own in positions.items():
            transform = _transform(own, f"support[{column}]")
            parts.append(_Part(f"draws[..., {column}]", [column], (), transform, shown(own)))
        return parts

    def constrained(self, u: Tensor) -> tuple[Tensor, Tensor]:
        r"""Rows (n, numbers of a draw) of unconstrained rows (n, dim), and log volumes (n,)."""
        u = u if self.affine is None else self.affine.back(u)
        pieces = zip(self.parts, u.split(self.sizes, 1), strict=True)
        values, volumes = zip(*(part.constrained(v) for part, v in pieces), strict=True)
        volume = torch.stack(volumes).sum(0) + (self.affine.log_volume if self.affine else 0.0)
        return torch.cat(values, 1)[:, self._order.to(u.device)], volume

    def unconstrained(self, rows: Tensor) -> Tensor:
        r"""The inverse of `constrained`; values outside their support are refused."""
        u = torch.cat([part.unconstrained(rows[:, part.columns]) for part in self.parts], 1)
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
