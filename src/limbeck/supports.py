r"""Supports: the sets on which densities are defined, with their event shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from limbeck.arguments import CountFromZero, Device, UserObject, Whole, checked_arguments, integer
from limbeck.errors import ArgumentError


class Support:
    r"""A set of events x of one shape; a batch of n of them has the shape (n, *shape).

    Arguments:
        shape: The shape of one event, as numbers or as one tuple.
    """

    discrete = False  # whether it is finite

    @checked_arguments
    def __init__(self, *shape: UserObject[int | Sequence[int]]) -> None:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        expected = "whole numbers from 1, such as 784 or (28, 28)"
        if not sizes:
            raise ArgumentError("shape", "nothing", expected)
        self.shape = tuple(integer("shape", size, expected, least=1) for size in sizes)
        self.size = math.prod(self.shape)  # the number of variables of an event

    def check(self, x: Tensor, argument: UserObject[str] = "x") -> Tensor:
        r"""The same x, if it is a batch of events of this support; an error if not."""
        self.check_shape(x, argument)
        outside = ~self.contains(x)
        if outside.any():
            received = f"{int(outside.sum()):,} values such as {x[outside][0].item():g}"
            raise ArgumentError(argument, received, self.description)
        return x

    def check_shape(self, x: Tensor, argument: UserObject[str] = "x") -> None:
        r"""Refuse what is no batch of events by its type or shape, whatever its values."""
        dense = isinstance(x, Tensor) and x.layout == torch.strided and not x.is_meta
        if not dense or not x.is_floating_point():
            kind = f"{x.dtype}, {x.layout}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(argument, kind, "a floating-point tensor")
        if x.shape[1:] != self.shape:
            expected = f"shape (n, {', '.join(map(str, self.shape))})"
            raise ArgumentError(argument, f"shape {tuple(x.shape)}", expected)

    def contains(self, x: Tensor) -> Tensor:
        r"""Which numbers of x are values of the support."""
        return x.isfinite()

    @checked_arguments
    def start(
        self,
        n: CountFromZero,
        generator: torch.Generator | None = None,
        device: Device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        r"""Events (n, *shape) to start chains from: standard normal, uniform on a finite set."""
        return self._random((n, *self.shape), dtype, generator=generator, device=device)

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype, **place: Any) -> Tensor:
        return torch.randn(shape, dtype=dtype, **place)

    @property
    def description(self) -> str:
        r"""The accepted values, as text."""
        return "finite numbers"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.shape))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Support) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class Real(Support):
    r"""Real numbers."""


class Discrete(Support):
    r"""A finite number of values for each variable, evenly spaced: x = first + step · code."""

    discrete = True
    count = 2  # of values q; their codes are 0 … q−1
    first, step = 0.0, 1.0

    @property
    def log_count(self) -> float:
        r"""The logarithm of the number of events."""
        return self.size * math.log(self.count)

    @property
    def values(self) -> list[float]:
        r"""The values that a variable can have."""
        return [self.first + self.step * code for code in range(self.count)]

    @property
    def description(self) -> str:
        first, second, *more = (f"{value:g}" for value in self.values)
        return f"{first}, {second} … {more[-1]}" if more else f"{first} and {second}"

    def encode(self, x: Tensor) -> Tensor:
        r"""Codes 0 … q−1 of the same shape and type."""
        return (x - self.first) / self.step

    def decode(self, codes: Tensor) -> Tensor:
        r"""The values of codes, of the same shape and type."""
        return codes * self.step + self.first

    def contains(self, x: Tensor) -> Tensor:
        codes = self.encode(x)
        return (codes >= 0) & (codes < self.count) & (codes == codes.round())

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype, **place: Any) -> Tensor:
        return self.decode(torch.randint(self.count, shape, **place).to(dtype))

    @checked_arguments
    def enumerate(
        self,
        start: CountFromZero,
        stop: CountFromZero,
        device: Device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        r"""The events number start … stop−1 of all q^size, (stop − start, *shape)."""
        if stop < start:
            raise ArgumentError("stop", stop, f"a whole number from start, {start}")
        numbers = torch.arange(start, stop, device=device)
        digits = [numbers // self.count**k % self.count for k in reversed(range(self.size))]
        return self.decode(torch.stack(digits, 1).to(dtype)).reshape(-1, *self.shape)


class Binary(Discrete):
    r"""Zeros and ones."""


class Spins(Discrete):
    r"""Spins, −1 and +1."""

    first, step = -1.0, 2.0


class States(Discrete):
    r"""The values 0 … q−1, as floating-point numbers.

    Arguments:
        q: The number of values, from 2.
        shape: The shape of one event.
    """

    @checked_arguments
    def __init__(
        self, q: Annotated[int, Whole(2)], *shape: UserObject[int | Sequence[int]],
    ) -> None:  # fmt: skip
        super().__init__(*shape)
        self.count = q

    def __repr__(self) -> str:
        return f"States({self.count}, {', '.join(map(str, self.shape))})"
