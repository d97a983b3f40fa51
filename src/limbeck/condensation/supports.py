r"""Where parameters may be: intervals and simplices, reached from free numbers that may be any."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.posteriors.structure import Structure

__all__ = ["Interval", "Simplex", "Supports", "as_support"]

ACCEPTED = "'real', 'positive', 'unit', 'simplex', or (low, high) with one end possibly None"


@dataclass(frozen=True)
class Interval:
    r"""Numbers between two ends, of which one or both may be infinite.

    >>> Interval(0.0).held(torch.tensor([-100.0, 0.0])) > 0
    tensor([True, True])
    """

    low: float = -math.inf
    high: float = math.inf
    size = 1  # how many numbers belong together

    def held(self, free: Tensor) -> Tensor:
        r"""Numbers in the interval, of any numbers."""
        if self.low == -math.inf:
            return free if self.high == math.inf else self.high - free.exp()
        if self.high == math.inf:
            return self.low + free.exp()
        return self.low + (self.high - self.low) * free.sigmoid()

    def free(self, values: Tensor) -> Tensor:
        r"""The inverse of `held`; a number at an end is moved inwards by a hair."""
        tiny, eps = torch.finfo(values.dtype).tiny, torch.finfo(values.dtype).eps
        if self.low == -math.inf:
            return values if self.high == math.inf else (self.high - values).clamp_min(tiny).log()
        if self.high == math.inf:
            return (values - self.low).clamp_min(tiny).log()
        return ((values - self.low) / (self.high - self.low)).logit(eps)

    def outside(self, values: Tensor) -> Tensor:
        r"""Which of the numbers are none of the interval's."""
        return (values < self.low) | (values > self.high)

    def __str__(self) -> str:
        return f"numbers between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Simplex:
    r"""Probabilities: the last axis of a variable has `size` nonnegative numbers with the sum 1."""

    size: int

    def held(self, free: Tensor) -> Tensor:
        return free.unflatten(-1, (-1, self.size)).softmax(-1).flatten(-2)

    def free(self, values: Tensor) -> Tensor:
        return values.clamp_min(torch.finfo(values.dtype).tiny).log()

    def outside(self, values: Tensor) -> Tensor:
        sums = values.unflatten(-1, (-1, self.size)).sum(-1, keepdim=True)
        wrong = (sums - 1).abs() > 1e-3
        return (values < 0) | wrong.expand(*sums.shape[:-1], self.size).flatten(-2)

    def __str__(self) -> str:
        return f"{self.size} nonnegative numbers with the sum 1"


NAMES = {"real": Interval(), "positive": Interval(0.0), "unit": Interval(0.0, 1.0)}


def as_support(value: Any, shape: tuple[int, ...], argument: str) -> Interval | Simplex:
    r"""A support by name, or by its ends.

    Arguments:
        value: A name, a pair (low, high), an Interval or a Simplex.
        shape: The shape of the variable.
        argument: What errors call it.
    """
    if value == "simplex" or isinstance(value, Simplex):
        size = shape[-1] if shape else 0
        if size < 2 or (isinstance(value, Simplex) and value.size != size):
            received = f"a simplex for a variable of shape {shape}"
            raise ArgumentError(argument, received, "a variable whose last axis is a simplex")
        return Simplex(size)
    if isinstance(value, Interval):
        return value
    if isinstance(value, str):
        if value not in NAMES:
            raise ArgumentError.unknown(argument, value, (*NAMES, "simplex"))
        return NAMES[value]
    try:
        low, high = value
        ends = Interval(
            -math.inf if low is None else float(low), math.inf if high is None else float(high)
        )
    except (TypeError, ValueError):
        raise ArgumentError(argument, repr(value), ACCEPTED) from None
    if not ends.low < ends.high:
        raise ArgumentError(argument, repr(value), "ends with low < high")
    return ends


class Segment(NamedTuple):
    r"""Numbers of a draw that follow each other and have one kind of support."""

    size: int
    support: Interval | Simplex


class Supports:
    r"""The supports of all numbers of a draw, and the way between draws and free numbers.

    Arguments:
        segments: Which numbers of a row have which support, in their order.

    Attributes:
        plain: Whether all numbers are real, without any restriction.

    >>> supports = Supports.of({"sigma": "positive"}, Structure(("beta", "sigma"), ((2,), ())))
    >>> supports.held(torch.tensor([-1.0, 2.0, 0.0]))
    tensor([-1.,  2.,  1.])
    """

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = list(_merged(segments))
        self.plain = all(each.support == Interval() for each in self.segments)

    @classmethod
    def of(cls, support: Any, structure: Structure) -> Supports:
        r"""What the user said of some variables; all others are real.

        Arguments:
            support: Supports by name; of a posterior of vectors one support for all numbers, or
                supports by their places. None is for no restriction.
            structure: What one draw looks like.
        """
        pairs = list(zip(structure.names, structure.shapes, structure.sizes, strict=True))
        given = {} if support is None else support
        if structure.vector and not isinstance(given, Mapping):
            given = (
                dict.fromkeys(range(structure.dim), given) if given != "simplex" else {"": given}
            )
        if not isinstance(given, Mapping):
            raise ArgumentError("support", repr(support), "a dict of supports by variable")
        known = list(structure.names) if not structure.vector else ["", *range(structure.dim)]
        for name in given:
            if name not in known:
                expected = f"a dict of {structure}"
                raise ArgumentError("support", f"a support of {name!r}", expected)
        segments = []
        for name, shape, size in pairs:
            if structure.vector and "" not in given:
                segments += [
                    Segment(1, as_support(given.get(i, "real"), (), f"support[{i}]"))
                    for i in range(size)
                ]
            else:
                found = as_support(given.get(name, "real"), shape, f"support[{name!r}]")
                segments.append(Segment(size, found))
        return cls(segments)

    def held(self, free: Tensor) -> Tensor:
        r"""Rows of draws (..., dim), of rows of free numbers (..., dim)."""
        return self._each(free, "held")

    def free(self, rows: Tensor) -> Tensor:
        r"""The inverse of `held`."""
        return self._each(rows, "free")

    def _each(self, rows: Tensor, way: str) -> Tensor:
        if self.plain:
            return rows
        parts = rows.split([each.size for each in self.segments], -1)
        found = [getattr(s.support, way)(p) for s, p in zip(self.segments, parts, strict=True)]
        return torch.cat(found, -1)

    def check(self, rows: Tensor, structure: Structure) -> None:
        r"""Refuse draws (n, dim) that are not where they are said to be."""
        start = 0
        for size, support in self.segments:
            outside = support.outside(rows[:, start : start + size])
            if bool(outside.any()):
                where = start + int(outside.any(0).nonzero()[0])
                received = f"{support}, and {int(outside.any(1).sum()):,} of {len(rows):,} draws "
                received += f"of {structure.label(where)} are not"
                raise ArgumentError("support", received, "a support that holds all draws")
            start += size

    def encoded(self) -> Tensor:
        r"""The supports as a table of numbers (segments, 4), which `decoded` reads."""
        ends = (
            [0.0, s.low, s.high] if isinstance(s, Interval) else [float(s.size), 0.0, 1.0]
            for _, s in self.segments
        )
        sizes = (each.size for each in self.segments)
        rows = [[float(size), *rest] for size, rest in zip(sizes, ends, strict=True)]
        return torch.tensor(rows, dtype=torch.float64)

    @classmethod
    def decoded(cls, table: Tensor) -> Supports:
        r"""The supports that a table of numbers stands for."""
        return cls(
            [
                Segment(int(size), Simplex(int(simplex)) if simplex else Interval(low, high))
                for size, simplex, low, high in table.tolist()
            ]
        )


def _merged(segments: list[Segment]) -> Iterator[Segment]:
    r"""Neighbours with one kind of support as one."""
    kept: Segment | None = None
    for each in segments:
        if kept is not None and kept.support == each.support:
            kept = Segment(kept.size + each.size, kept.support)
            continue
        if kept is not None:
            yield kept
        kept = each
    if kept is not None:
        yield kept
