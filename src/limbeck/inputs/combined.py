r"""Anything as a source of inputs, and sources made of others: transformed, mixed, by high loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data

from limbeck.arguments import number, whole_number
from limbeck.arrays import Batch, map_tensors
from limbeck.errors import ArgumentError, rename_argument
from limbeck.inputs.base import Inputs, Nested, join_batches
from limbeck.inputs.dataset import Dataset, Loader
from limbeck.inputs.generated import Function, Samples, SeededCall
from limbeck.inputs.munge import widest_float

ACCEPTED = (
    "an input source of limbeck.inputs, a tensor, an array, a dict of these, a numeric data frame, "
    "a torch Dataset or DataLoader, a model with a method sample, or a function of n"
)


def as_inputs(value: object, argument: str = "inputs") -> Inputs:
    r"""The source that a value stands for.

    Arguments:
        value: A source, data, a torch data set or loader, a model with a method `sample`, or a
            function of n.
        argument: What errors call the value. Default: "inputs".
    """
    if isinstance(value, Inputs):
        return value
    if isinstance(value, type):
        raise ArgumentError(argument, f"the class {value.__name__}", "an object of the class")
    if isinstance(value, list | tuple) and any(isinstance(v, Inputs) for v in value):
        raise ArgumentError(argument, "several sources", "one: limbeck.inputs.Mix(sources)")
    if isinstance(value, data.DataLoader | data.IterableDataset):
        return Loader(value)
    arrays = (Tensor, np.ndarray, dict, list, tuple, data.Dataset)
    methods = ("__array__", "to_numpy", "toarray")
    if isinstance(value, arrays) or any(hasattr(value, name) for name in methods):
        with rename_argument("X", argument):
            return Dataset(value)
    if callable(getattr(value, "sample", None)):
        return Samples(value)
    if isinstance(value, nn.Module):
        received = f"the module {type(value).__name__}, which has no method sample"
        raise ArgumentError(argument, received, ACCEPTED)
    if callable(value):
        return Function(value)
    raise ArgumentError(argument, f"a {type(value).__name__}", ACCEPTED)


class Augment(Nested):
    r"""Transformed rows; labels go with them, row numbers do not.

    Arguments:
        X: The data, anything that Dataset takes; rows are drawn in shuffled passes.
        transform: A function of x (n, ...), or of x and `generator`, that gives as many rows.
        y: Labels (N, ...). Default: none.
        seed: The generator's seed. Default: the seed of the distillation.
    """

    def __init__(
        self, X: Any, transform: Callable[..., Any], y: Any = None, seed: int | None = None
    ) -> None:
        self.data = Dataset(X, y)
        self.transform = SeededCall(transform, "transform")
        super().__init__([self.data], seed)

    def draw(self, n: int) -> Batch:
        batch = self.data.build(self.data.next_rows(n))
        x = self.checked(self.transform(self.generator, batch.x), n, "transform").x
        return Batch(x, batch.y)


class Mix(Nested):
    r"""Batches of n that are made up of rows from several sources.

    The rows from each source are its share on average in every batch, and up to a constant in many
    batches (systematic sampling). Labels are kept if every source has them, weights are one where a
    source has none, and row numbers are dropped.

    Arguments:
        sources: A list of anything that `as_inputs` takes.
        weights: Their shares, which need not sum to one. Default: equal shares.
        seed: The generator's seed. Default: the seed of the distillation.

    >>> from limbeck.inputs import Noise
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
        count = len(sources)
        expected = f"{count} nonnegative numbers, one for each source, not all zero"
        values = [1.0] * count if weights is None else list(weights)
        numbers = [number("weights", value, expected, lambda w: w >= 0) for value in values]
        if len(numbers) != count or not sum(numbers):
            raise ArgumentError("weights", repr(weights), expected)
        left = [math.fsum(numbers[k:]) for k in range(count)]  # over by the sources before
        pairs = zip(numbers, left, strict=True)
        self.shares = [value / rest if rest else 0.0 for value, rest in pairs]
        self._restart()

    def _restart(self) -> None:
        self.totals = [0] * len(self.sources)  # rows of each source so far
        self.start: list[float] = []
        self.labelled: bool | None = None  # known once every source has given something
        self.weighted = False

    def draw(self, n: int) -> Batch:
        counts = self._counts(n)
        drawn = {i: self.sources[i](count) for i, count in enumerate(counts) if count}
        if self.labelled is None:
            absent = {i: self.sources[i].probe(1) for i in range(len(counts)) if i not in drawn}
            self._find_fields(drawn | absent)
        return self._join(drawn)

    def probe(self, n: int) -> Batch:
        r"""A few inputs of every source."""
        count = max(1, n // len(self.sources))
        drawn = {i: source.probe(count) for i, source in enumerate(self.sources)}
        self._find_fields(drawn)
        return self._join(drawn)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self._restart()

    def state_dict(self) -> dict[str, Tensor]:
        fields = [] if self.labelled is None else [self.labelled, self.weighted]
        return super().state_dict() | {
            "given": torch.tensor(self.totals, dtype=torch.int64),
            "start": torch.tensor(self.start, dtype=torch.float64),
            "fields": torch.tensor(fields, dtype=torch.bool),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.totals, self.start = state["given"].tolist(), state["start"].tolist()
        self.labelled, self.weighted = state["fields"].tolist() or (None, False)

    def _counts(self, n: int) -> list[int]:
        r"""How many of the next n rows come from each source."""
        if not self.start:
            generator, count = self.generator, len(self.sources)
            self.start = torch.rand(count, generator=generator, device=generator.device).tolist()
        # floor(p m + u) of the m rows that the sources before leave over, with u drawn once
        left, totals = sum(self.totals) + n, []
        for share, start in zip(self.shares, self.start, strict=True):
            totals.append(min(left, math.floor(share * left + start)))
            left -= totals[-1]
        counts = [total - before for total, before in zip(totals, self.totals, strict=True)]
        self.totals = totals
        return counts

    def _find_fields(self, batches: dict[int, Batch]) -> None:
        self.labelled = all(batch.y is not None for batch in batches.values())
        self.weighted = any(batch.weight is not None for batch in batches.values())
        self._join(batches)  # which refuses batches that are not alike

    def _join(self, batches: dict[int, Batch]) -> Batch:
        parts = list(batches.values())
        if not self.labelled:
            parts = [batch._replace(y=None) for batch in parts]
        joined = join_batches(parts, [f"sources[{i}]" for i in batches], "sources")
        if not self.weighted:
            return joined
        dtype = self.dtype or torch.get_default_dtype()
        return joined._replace(weight=torch.cat([self._weight(b).to(dtype) for b in parts]))


class Seek(Nested):
    r"""Candidates from a source, resampled in proportion to the student's loss on them.

    Of m = candidates · n inputs with losses l, n are drawn with replacement with probabilities
    q_i = uniform / m + (1 − uniform) l_i / Σ l, and get the weight 1 / (m q_i), times their own, so
    that weighted means over batches estimate the mean over the source. Losses of which some are
    negative are taken from their minimum; one that is not finite counts as zero.

    Arguments:
        source: Anything that `as_inputs` takes.
        candidates: The number of candidates for each input that is drawn. Default: 4.
        uniform: The part of the probability that is divided equally, in (0, 1]. Default: 0.1.
        seed: The generator's seed. Default: the seed of the distillation.
    """

    def __init__(
        self, source: object, candidates: int = 4, uniform: float = 0.1, seed: int | None = None
    ) -> None:
        self.source = as_inputs(source, "source")
        super().__init__([self.source], seed)
        self.candidates = whole_number("candidates", candidates, "a positive integer", least=1)
        self.uniform = number("uniform", uniform, "a number in (0, 1]", lambda u: 0 < u <= 1)
        self.loss_of: Callable[[Batch], Tensor] | None = None

    def bind(self, loss_of: Callable[[Batch], Tensor]) -> None:
        super().bind(loss_of)
        self.loss_of = loss_of

    def probe(self, n: int) -> Batch:
        r"""Candidates of weight one: there is no loss before the first step."""
        batch = self.source.probe(n)
        return batch._replace(weight=self._weight(batch))

    def draw(self, n: int) -> Batch:
        if self.loss_of is None:
            expected = "one that bind(loss_of) was called on"
            raise ArgumentError("inputs", "a Seek without a loss", expected)
        m = n * self.candidates
        try:
            batch = self.source(m)
        except ArgumentError as error:
            if error.argument != "batch_size":
                raise
            received = f"{self.candidates}, which makes {m} of batch_size {n}"
            raise ArgumentError("candidates", received, error.expected) from None
        loss = self.loss_of(batch).detach()
        if loss.shape != (m,):
            raise ArgumentError("loss_of", f"losses of shape {tuple(loss.shape)}", f"({m},)")
        q = self.probabilities(loss)
        chosen = torch.multinomial(q, n, replacement=True, generator=self.generator)
        weight = (1 / (m * q[chosen])).to(loss.dtype)
        drawn: Batch = map_tensors(lambda t: t.index_select(0, chosen), batch)
        return drawn._replace(weight=weight if drawn.weight is None else weight * drawn.weight)

    def probabilities(self, loss: Tensor) -> Tensor:
        r"""How likely each candidate is to be drawn, from the losses (m,)."""
        loss = loss.to(widest_float(loss.device))
        finite = torch.isfinite(loss)
        loss = torch.where(finite, loss, 0)
        loss = torch.where(finite, loss - loss.amin().clamp_max(0), 0)
        largest = loss.amax()
        loss = torch.where(largest > 0, loss / largest, 1)  # the sum cannot overflow
        return self.uniform / len(loss) + (1 - self.uniform) * loss / loss.sum()
