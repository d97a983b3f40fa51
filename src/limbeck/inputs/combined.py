r"""Sources made of others: transformed, MUNGE, mixed, by loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from limbeck import arguments as arg
from limbeck.arrays import Batch, X, as_dict, map_tensors, per_row
from limbeck.errors import ArgumentError, rename_argument, shown
from limbeck.inputs.base import Nested, join_batches
from limbeck.inputs.dataset import Dataset, as_inputs
from limbeck.inputs.generated import SeededCall


class Augment(Nested):
    r"""Transformed rows; labels are kept, row numbers are dropped.

    Arguments:
        X: The data, anything that Dataset takes; rows are drawn in shuffled passes.
        transform: A function of x (n, ...), or of x and `generator`, that returns as many rows.
        y: Labels (N, ...). Default: none.
        seed: The generator's seed. Default: the seed of the distillation.
        weight: Weights (N,) of the rows, which their transformed rows keep. Default: none.
    """

    @arg.checked_arguments
    def __init__(
        self, X: arg.UserObject[Any], transform: arg.UserObject[Callable[..., Any]],
        y: arg.UserObject[Any] = None, seed: arg.Seed | None = None,
        weight: arg.UserObject[Any] = None,
    ) -> None:  # fmt: skip
        self.data = Dataset(X, y, weight)
        self.transform = SeededCall(transform, "transform")
        super().__init__([self.data], seed)

    def draw(self, n: int) -> Batch:
        batch = self.data.build(self.data.next_rows(n))
        x = self._checked(self.transform(self.generator, batch.x), n, "transform").x
        return Batch(x, batch.y, batch.weight)


def nearest(parts: dict[str, Tensor], categorical: dict[str, Tensor], block: int = 2**24) -> Tensor:
    r"""The number (N,) of the row nearest to each row, other than itself.

    The squared distance is the sum, over continuous attributes, of the squared difference as a
    fraction of the attribute's range, plus the number of categorical attributes that differ.
    Parts are arrays (N, ...); `block` distances are in memory at once.
    """
    coordinates = []  # columns whose squared differences add up
    codes = []  # columns (N,) of many categories, which are compared
    for name, part in parts.items():
        wide = widest_float(part.device)
        columns = part.reshape(len(part), -1).to(wide if part.is_floating_point() else torch.int64)
        low, high = columns.amin(0), columns.amax(0)
        continuous = ~categorical[name].reshape(-1)
        extent = torch.where(high > low, high - low, 1)
        coordinates.append(((columns - low)[:, continuous] / extent[continuous]).to(wide) - 0.5)
        for column in columns[:, ~continuous].unbind(1):
            values, places = torch.unique(column, return_inverse=True)
            # up to 32, products of indicators, which are √2 apart, are faster than comparisons
            if len(values) <= 32:
                coordinates.append(functional.one_hot(places, len(values)).to(wide) / 2**0.5)
            else:
                codes.append(column.contiguous())
    points = torch.cat(coordinates, 1)
    rows, squares = len(points), points.square().sum(1)
    step = max(1, block // rows)
    neighbours = []
    for start in range(0, rows, step):
        block_rows = slice(start, start + step)
        # (block, N), less each row's own square, which is the same for all of its candidates
        distance = torch.addmm(squares, points[block_rows], points.T, alpha=-2)
        for code in codes:
            distance += code[block_rows, None] != code
        distance.diagonal(start).fill_(torch.inf)
        neighbours.append(distance.argmin(1))
    return torch.cat(neighbours)


def widest_float(device: torch.device) -> torch.dtype:
    r"""The most precise floating type that a device computes with."""
    return torch.float32 if device.type == "mps" else torch.float64


class Munge(Nested):
    r"""Rows of a data set, mixed with their nearest neighbours attribute by attribute.

    A batch starts from rows e of the data, drawn in shuffled passes; e′ is the row nearest to e
    (see `nearest` for the distance). Each attribute a of each row is replaced with probability
    `swap`, independently: a continuous one by a draw from N(e′_a, (|e_a − e′_a| / s)²), where s is
    `local_variance`; a categorical one by e′_a. Unlike in Bucila, Caruana and Niculescu-Mizil
    (2006), neighbours are found once, and every draw starts from the data.

    Integer and boolean parts are categorical. The batches have no labels and no index.

    Arguments:
        X: The data, anything that Dataset takes, with two rows or more.
        swap: The probability that an attribute is replaced. Default: 0.5.
        local_variance: The divisor s of the standard deviation. Default: 1.
        categorical: Further categorical attributes, in floating-point parts: column numbers of a
            tensor (N, columns), or names of parts of a dict. Default: none.
        seed: The generator's seed. Default: the seed of the distillation.
        weight: Weights (N,) of the rows, which a batch that starts from them keeps. Default: none.

    >>> Munge([[0.0, 5.0], [1.0, 7.0], [2.0, 5.0]], categorical=[1])(10).x.shape
    torch.Size([10, 2])
    """

    @arg.checked_arguments
    def __init__(
        self,
        X: arg.UserObject[Any],
        swap: arg.Fraction = 0.5,
        local_variance: arg.Positive = 1.0,
        categorical: arg.Text | arg.Items[Iterable[int | str]] = (),
        seed: arg.Seed | None = None,
        weight: arg.UserObject[Any] = None,
    ) -> None:
        self.data = Dataset(X, weight=weight)
        super().__init__([self.data], seed)
        if len(self.data) < 2:
            raise ArgumentError("X", "1 row", "two rows or more, or there are no neighbours")
        self.swap, self.local_variance = swap, local_variance
        self.categorical = _categorical(self.data.x, categorical)
        self.neighbours: Tensor | None = None

    def draw(self, n: int) -> dict[str, Any]:
        if self.neighbours is None:
            self.neighbours = nearest(as_dict(self.data.x), self.categorical)
        row = self.data.next_rows(n)
        swap, noise = {}, {}
        for name, part in as_dict(self.data.x).items():
            shape = (n, *part.shape[1:])
            chance = torch.rand(shape, generator=self.generator, device=self.device)
            swap[name] = chance < self.swap
            if part.is_floating_point():
                noise[name] = torch.empty_like(chance, dtype=part.dtype)
                noise[name].normal_(generator=self.generator)
        neighbour = self.neighbours.index_select(0, row)
        return {"row": row, "neighbour": neighbour, "swap": swap, "noise": noise}

    def build(self, drawn: dict[str, Any]) -> Batch:
        rows, neighbours = (self.data.build(drawn[key]) for key in ("row", "neighbour"))
        result, near = {}, as_dict(neighbours.x)
        for name, row in as_dict(rows.x).items():
            new = neighbour = near[name]
            if name in drawn["noise"]:
                deviation = (row - neighbour).abs() / self.local_variance
                deviation = torch.where(self.categorical[name], 0, deviation)
                new = neighbour + drawn["noise"][name] * deviation
            result[name] = torch.where(drawn["swap"][name], new, row)
        return Batch(result.get("", result), weight=rows.weight)

    def _restart(self) -> None:
        self.categorical = {name: m.to(self.device) for name, m in self.categorical.items()}
        self.neighbours = None if self.neighbours is None else self.neighbours.to(self.device)


def _categorical(x: X, named: Iterable[int | str]) -> dict[str, Tensor]:
    r"""Which attributes (...) of each part are categorical."""
    masks = {
        name: torch.full(part.shape[1:], not part.is_floating_point(), device=part.device)
        for name, part in as_dict(x).items()
    }
    for which in (named,) if isinstance(named, str) else named:
        if isinstance(x, dict):
            arg.choice("categorical", which, x)
            masks[str(which)][...] = True
            continue
        columns = x.shape[1] if x.ndim == 2 else int(x.ndim == 1)
        expected = f"column numbers below {columns} for X of shape {tuple(x.shape)}, or the names "
        expected += "of the parts of a dict"
        masks[""].view(-1)[arg.Whole(-columns, columns - 1)("categorical", which, expected)] = True
    return masks


class Mix(Nested):
    r"""Batches of n that are made up of rows from several sources.

    In every batch each source has its share of the rows on average, and over many batches up to a
    constant (systematic sampling). Labels are kept if every source has them, weights are one if a
    source has none, and row numbers are dropped.

    Arguments:
        sources: A list of anything that `as_inputs` takes.
        weights: Their shares, which need not sum to one. Default: equal shares.
        seed: The generator's seed. Default: the seed of the distillation.

    >>> from limbeck.inputs import Noise
    >>> Mix([Noise(2), Noise(2, mean=5.0)], weights=[0.9, 0.1])(100).x.shape
    torch.Size([100, 2])
    """

    STATE = ("totals", "start")

    @arg.checked_arguments
    def __init__(
        self,
        sources: arg.UserObject[Sequence[Any]],
        weights: arg.Items[Sequence[float]] | None = None,
        seed: arg.Seed | None = None,
    ) -> None:
        if not isinstance(sources, list | tuple) or not sources:
            raise ArgumentError("sources", shown(sources), "a list of one source or more")
        super().__init__([as_inputs(s, f"sources[{i}]") for i, s in enumerate(sources)], seed)
        count = len(sources)
        expected = f"{count} nonnegative numbers, one for each source, not all zero"
        values = [1.0] * count if weights is None else list(weights)
        numbers = [arg.Number(0)("weights", value, expected) for value in values]
        if len(numbers) != count or not sum(numbers):
            raise ArgumentError("weights", shown(weights), expected)
        left = [math.fsum(numbers[k:]) for k in range(count)]  # over by the sources before
        self.shares = [w / rest if rest else 0.0 for w, rest in zip(numbers, left, strict=True)]
        self._restart()

    def _restart(self) -> None:
        self.totals = [0] * len(self.sources)  # rows of each source so far
        self.start: list[float] = []
        self.fields: tuple[bool, bool] | None = None  # whether batches have labels, and weights

    def draw(self, n: int) -> Batch:
        if self.fields is None:
            self.probe(len(self.sources))
        counts = enumerate(self._counts(n))
        return self._join({i: self.sources[i](count) for i, count in counts if count})

    def probe(self, n: int) -> Batch:
        r"""A few inputs of every source."""
        count = max(1, n // len(self.sources))
        drawn = {i: source.probe(count) for i, source in enumerate(self.sources)}
        labelled = all(batch.y is not None for batch in drawn.values())
        self.fields = labelled, any(batch.weight is not None for batch in drawn.values())
        return self._join(drawn)

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

    def _join(self, batches: dict[int, Batch]) -> Batch:
        r"""The rows of batches by number of source; those that are not alike are refused."""
        assert self.fields is not None
        (labelled, weighted), parts = self.fields, list(batches.values())
        if not labelled:
            parts = [batch._replace(y=None) for batch in parts]
        joined = join_batches(parts, [f"sources[{i}]" for i in batches], "sources")
        if not weighted:
            return joined
        dtype = self.dtype or torch.get_default_dtype()
        return joined._replace(weight=torch.cat([self._weight(b).to(dtype) for b in parts]))


class Seek(Nested):
    r"""Candidates from a source, resampled in proportion to the student's loss on them.

    Of m = candidates · n inputs with losses l, n are drawn with replacement with probabilities
    q_i = uniform / m + (1 − uniform) l_i / Σ l, and get the weight 1 / (m q_i), times their own, so
    that weighted means over batches estimate the mean over the source. If some losses are negative,
    their minimum is subtracted; a loss that is not finite counts as zero.

    Arguments:
        source: Anything that `as_inputs` takes.
        candidates: The number of candidates for each input that is drawn. Default: 4.
        uniform: The fraction of the probability that is uniform, in (0, 1]. Default: 0.1.
        seed: The generator's seed. Default: the seed of the distillation.
    """

    @arg.checked_arguments
    def __init__(
        self, source: arg.UserObject[object], candidates: arg.Count = 4, uniform: arg.Share = 0.1,
        seed: arg.Seed | None = None,
    ) -> None:  # fmt: skip
        self.source = as_inputs(source, "source")
        super().__init__([self.source], seed)
        self.candidates, self.uniform = candidates, uniform

    def probe(self, n: int) -> Batch:
        r"""Candidates of weight one: there is no loss before the first step."""
        batch = self.source.probe(n)
        return batch._replace(weight=self._weight(batch))

    def draw(self, n: int) -> Batch:
        if self.loss_of is None:
            expected = "one that bind(loss_of) was called on"
            raise ArgumentError("inputs", "a Seek without a loss", expected)
        m = n * self.candidates
        with rename_argument("batch_size", "candidates", f" ({self.candidates} for each of {n})"):
            batch = self.source(m)
        loss = per_row(self.loss_of(batch), m, "loss_of").detach()
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
