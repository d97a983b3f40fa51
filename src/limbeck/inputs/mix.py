r"""A weighted mixture of sources, in constant proportions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import number
from limbeck.arrays import Batch, check_alike, join, rows
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Nested
from limbeck.inputs.convert import as_inputs

__all__ = ["Mix"]


class Mix(Nested):
    r"""Batches of n that are made up of rows from several sources.

    The number of rows from each source follows by systematic sampling: what it has given after
    any number of batches stays within a constant of its share, and its expected number in every
    batch is its share exactly. Labels are kept if every source has them, weights are one where a
    source has none, and row numbers are dropped.

    Arguments:
        sources: A list of anything that `as_inputs` takes.
        weights: Their shares, which need not sum to one; None makes them equal.
        seed: The generator's seed, from which each source gets a different one; None takes the
            seed of the distillation.

    >>> from limbeck.inputs.generated import Noise
    >>> Mix([Noise(2), Noise(2, mean=5.0)], weights=[0.9, 0.1])(100).x.shape
    torch.Size([100, 2])
    """

    def __init__(
        self,
        sources: Sequence[Any],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(sources, list | tuple) or not sources:
            raise ArgumentError("sources", repr(sources), "a list of one source or more")
        super().__init__([as_inputs(s, f"sources[{i}]") for i, s in enumerate(sources)], seed)
        self.shares = _shares(weights, len(sources))
        self.given: list[int] = []
        self.start: list[float] = []
        # Which fields the batches have: known once every source has given something.
        self.labelled: bool | None = None
        self.weighted = False
        self._restart()

    def draw(self, n: int) -> Batch:
        counts = self._counts(n)
        drawn = {i: self.sources[i](count) for i, count in enumerate(counts) if count}
        if self.labelled is None:
            absent = {i: self.sources[i].probe(1) for i in range(len(counts)) if i not in drawn}
            self._settle(drawn | absent)
        return self._join(drawn)

    def probe(self, n: int) -> Batch:
        r"""A few inputs of every source."""
        some = max(1, n // len(self.sources))
        drawn = {i: source.probe(some) for i, source in enumerate(self.sources)}
        self._settle(drawn)
        return self._join(drawn)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self._restart()

    def state_dict(self) -> dict[str, Tensor]:
        known = [] if self.labelled is None else [self.labelled, self.weighted]
        return super().state_dict() | {
            "given": torch.tensor(self.given, dtype=torch.int64),
            "start": torch.tensor(self.start, dtype=torch.float64),
            "fields": torch.tensor(known, dtype=torch.bool),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.given = [int(count) for count in state["given"]]
        self.start = state["start"].tolist()
        fields = state["fields"].tolist()
        self.labelled, self.weighted = fields or (None, False)

    def _restart(self) -> None:
        self.given = [0] * len(self.sources)
        self.start = []
        self.labelled, self.weighted = None, False

    def _counts(self, n: int) -> list[int]:
        r"""How many of the next n rows come from each source.

        A source takes its share p of the m rows that those before it leave over: in total
        floor(p m + u), with u uniform in [0, 1) drawn once. The expectation of that is p m, and
        it grows with m by no more than m does, so that no count is negative.
        """
        if not self.start:
            uniform = torch.rand(
                len(self.sources), generator=self.generator, device=self.generator.device
            )
            self.start = uniform.tolist()
        left, totals = sum(self.given) + n, []
        for share, start in zip(self.shares, self.start, strict=True):
            totals.append(min(left, math.floor(share * left + start)))
            left -= totals[-1]
        counts = [total - given for total, given in zip(totals, self.given, strict=True)]
        self.given = totals
        return counts

    def _settle(self, batches: dict[int, Batch]) -> None:
        r"""Find out which fields the mixture has, from a batch of every source."""
        self.labelled = all(batch.y is not None for batch in batches.values())
        self.weighted = any(batch.weight is not None for batch in batches.values())
        self._check(batches)

    def _join(self, batches: dict[int, Batch]) -> Batch:
        self._check(batches)
        y = weight = None
        if self.labelled:
            y = torch.cat([batch.y for batch in batches.values() if batch.y is not None])
        if self.weighted:
            weight = torch.cat([self._weight(batch) for batch in batches.values()])
        return Batch(join([batch.x for batch in batches.values()]), y, weight)

    def _check(self, batches: dict[int, Batch]) -> None:
        names = [f"sources[{i}]" for i in batches]
        check_alike([batch.x for batch in batches.values()], names, "sources")
        if self.labelled:
            labels = [f"labels of {name}" for name in names]
            check_alike([batch.y for batch in batches.values()], labels, "sources")

    def _weight(self, batch: Batch) -> Tensor:
        dtype = self.dtype or torch.get_default_dtype()
        if batch.weight is None:
            return torch.ones(rows(batch.x), dtype=dtype, device=self.device)
        return batch.weight.to(dtype)


def _shares(weights: Sequence[float] | None, count: int) -> list[float]:
    r"""The share of each source in what the sources before it leave over."""
    expected = f"{count} nonnegative numbers, one for each source, not all zero"
    values = [1.0] * count if weights is None else list(weights)
    if len(values) != count:
        raise ArgumentError("weights", repr(weights), expected)
    numbers = [number("weights", value, expected, lambda w: w >= 0) for value in values]
    if not sum(numbers):
        raise ArgumentError("weights", repr(weights), expected)
    left = [math.fsum(numbers[k:]) for k in range(count)]
    return [value / rest if rest else 0.0 for value, rest in zip(numbers, left, strict=True)]
