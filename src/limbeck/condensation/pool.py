r"""A fixed pool of inputs and outcomes, at which a bag is fitted to the average over draws.

At each input the divergence of the bag f from the average t is a sum over outcomes y: over all
classes, or over outcomes drawn from t. The average at the outcomes is computed once, in one pass
over the draws, in constant memory; so a stream is read once, and training needs no draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck.arrays import X, as_dict, map_tensors, part_of, random, rows
from limbeck.condensation.predict_function import (
    Pair,
    PredictFunction,
    class_logs,
    paired,
    unpair,
)
from limbeck.condensation.teachers import RecordedStream, strata
from limbeck.distributions.base import broadcast, map_parameters, tensors
from limbeck.distributions.families import Joint, adapt
from limbeck.inputs import Dataset
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.stream import StreamEnded
from limbeck.storage.files import strip_prefix

if TYPE_CHECKING:
    from limbeck.condensation.sample_bag import SampleBag

AT_ONCE = 2**22  # single predictions of outcomes in memory at once
CANDIDATES = 1000  # draws among which the first components are chosen
FEATURES = 1000  # outcomes by which they are compared
COVARIANCE_ROWS = 1000  # rows whose differences make the noise of neighbours


def neighbours(
    x: X, count: int, noise: float, generator: torch.Generator
) -> tuple[X, Tensor] | None:
    r"""Inputs between and beyond the rows x, and the rows (count,) that they started from.

    A row moves towards the mean of all rows and gets `noise` standard deviations of Gaussian noise
    with the covariance of the rows, so that means and covariances stay those of the rows. Whole
    numbers, which may be codes, stay; so do bounds at zero, and at one. None if nothing can move.
    """
    parts = as_dict(x)
    wide = {n: p.reshape(len(p), -1).double() for n, p in parts.items() if p.is_floating_point()}
    moving = {name: (part != part.round()).any(0) for name, part in wide.items()}
    moving = {name: columns for name, columns in moving.items() if bool(columns.any())}
    if not moving or not noise or not count or rows(x) < 3:
        return None
    z = torch.cat([wide[name][:, columns] for name, columns in moving.items()], 1)
    index = torch.randint(len(z), (count,), generator=generator).to(z.device)
    centred = z - z.mean(0)
    some = centred[:: math.ceil(len(z) / COVARIANCE_ROWS)]
    mixing = random(torch.randn, (count, len(some)), z, generator)
    moved = z.mean(0) + math.sqrt(1 - noise**2) * centred[index]
    moved = moved + noise / math.sqrt(len(some)) * (mixing @ some)
    low, high = z.amin(0), z.amax(0)
    moved = torch.where(low >= 0, moved.abs(), moved)
    moved = torch.where((low >= 0) & (high <= 1), (1 - (1 - moved).abs()).clamp(0, 1), moved)
    near, start = {name: part[index.to(part.device)] for name, part in parts.items()}, 0
    for name, columns in moving.items():
        flat, size = near[name].reshape(count, -1).clone(), int(columns.sum())
        flat[:, columns] = moved[:, start : start + size].to(flat.dtype)
        near[name], start = flat.reshape(near[name].shape), start + size
    return near.get("", near), index


class Pool(NamedTuple):
    r"""Inputs, and at each of them outcomes with the average's log density and weights."""

    x: X  # n inputs
    y: Tensor  # outcomes (n, m, ...)
    weight: Tensor  # of outcomes, with the sum 1 over m
    log_t: Tensor  # log t(y|x), (n, m, ...)

    def take(self, index: Tensor) -> Pool:
        return Pool(*map_tensors(lambda part: part[index.to(part.device)], tuple(self)))

    def data(self, weight: Tensor | None = None) -> Dataset:
        r"""The pool as a data set of the loop, whose inputs `PoolDivergence` takes apart."""
        parts = paired(Pair(self.x, self.y)) | {"weight": self.weight, "log_t": self.log_t}
        return Dataset(parts, weight=weight)


def pair_up(x: X, generator: torch.Generator) -> dict[str, Tensor]:
    r"""Random pairs of inputs, a few hundred where inputs are few, as one dict of both."""
    n = rows(x)
    count, both = max(n, min(400, n * n)), dict[str, Tensor]()
    for side in "01":
        order = [torch.randperm(n, generator=generator) for _ in range(-(-count // n))]
        index = torch.cat(order)[:count]
        both |= {f"{side}.{k}": part[index.to(part.device)] for k, part in as_dict(x).items()}
    return both


def pair_function(predict: Callable[..., Any]) -> Callable[..., Joint]:
    r"""A function of a draw and pairs of inputs, which predicts both outcomes together."""

    def both(draw: X, x: dict[str, Tensor]) -> Joint:
        sides = [strip_prefix(f"{side}.", x) for side in "01"]
        parts = [broadcast(adapt(predict(draw, side.get("", side)))) for side in sides]
        columns = zip(*map(tensors, parts), strict=True)
        return Joint(map_parameters(parts[0], lambda value, dims: torch.stack(next(columns), 1)))

    return both


class Covariances(NamedTuple):
    r"""The covariances of the means of predictions at some inputs, over all draws."""

    x: X  # n inputs
    matrix: Tensor  # (n, n)

    @classmethod
    @torch.no_grad()
    def of(cls, function: PredictFunction, draws: Draws, x: X) -> Covariances:
        size = max(1, AT_ONCE // (rows(x) * function.numbers))
        means = [function.stacked(block, x).mean.flatten(1) for block in draws.blocks(size)]
        return cls(x, torch.cov(torch.cat(means).double().T, correction=0))

    def error(self, covariances: Tensor) -> Tensor:
        r"""The root mean square error of covariances (n, n), relative to that of these."""
        return ((covariances - self.matrix).square().mean() / self.matrix.square().mean()).sqrt()


class PoolDivergence(nn.Module):
    r"""−KL(t ‖ f) of a student f at each input of a pool, (n,), as a log density of the loop.

    With covariances, the square of their relative error counts too: a tenth as 10⁻⁴ nats.
    """

    output_form = "log_density"

    def __init__(
        self, student: SampleBag, classes: bool, pairs: Callable[..., Any] | None = None,
        covariances: Covariances | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.student, self.classes = student, classes
        self.pairs, self.covariances = pairs, covariances  # `pairs` is a `pair_function`

    def forward(self, parts: dict[str, Tensor]) -> Tensor:
        pair = unpair(parts)
        targets = (parts[name] for name in ("weight", "log_t"))
        bag = self.student
        prediction = bag(pair.x) if self.pairs is None else bag.average_of(self.pairs, pair.x)
        values = -pool_divergence(prediction, self.classes, pair.y, *targets)
        if self.covariances is None:
            return values
        own = bag.covariances(self.covariances.x)
        return values - 0.01 * self.covariances.error(own).square().to(values.dtype)


def log_probs(prediction: Any, y: Tensor, classes: bool) -> Tensor:
    r"""Log probabilities (..., n, m, ...) of outcomes y (n, m, ...), of predictions (..., n)."""
    if classes:
        return class_logs(prediction)
    leading = len(prediction.batch_shape) - (y.ndim - 1 - prediction.event)
    first = y.movedim(1, 0)  # (m, n, ...)
    first = first.reshape(len(first), *[1] * leading, *first.shape[1:])
    return prediction.log_prob(first).movedim(0, leading + 1)


def pool_divergence(
    prediction: Any, classes: bool, y: Tensor, weight: Tensor, log_t: Tensor
) -> Tensor:
    r"""KL(t ‖ f) of predictions f (n, ...) at outcomes (n, m, ...), (n,).

    At outcomes of t the mean of f/t − 1 − log(f/t) has far less noise than that of log(t/f), and
    the same expectation; over all classes both are the same number.
    """
    ratio = torch.where(weight > 0, log_probs(prediction, y, classes) - log_t, 0.0)
    terms = -ratio if classes else ratio.clamp_max(20.0).expm1() - ratio
    values = (weight * terms).sum(1)
    return values.flatten(1).mean(1) if values.ndim > 1 else values


class LogMean:
    r"""The logarithm of a running mean of probabilities, of all draws and of four parts of them."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []  # log sums of the parts
        self.counts: list[int] = []

    def add(self, logs: Tensor, part: int) -> None:
        r"""Add log probabilities (draws, ...), which belong to a part."""
        total = logs.logsumexp(0)
        if part == len(self.sums):
            self.sums.append(total)
            self.counts.append(len(logs))
        else:
            self.sums[part] = torch.logaddexp(self.sums[part], total)
            self.counts[part] += len(logs)

    @property
    def value(self) -> Tensor:
        return torch.stack(self.sums).logsumexp(0) - math.log(sum(self.counts))

    def noise(self, weight: Tensor) -> float:
        r"""About the divergence of the mean from what it estimates, by the difference of halves."""
        half = max(1, len(self.sums) // 2)
        if len(self.sums) < 2:
            return math.inf
        logs = [
            torch.stack(self.sums[part]).logsumexp(0) - math.log(sum(self.counts[part]))
            for part in (slice(half), slice(half, None))
        ]
        squares = (logs[0] - logs[1]).square().nan_to_num(0.0, 0.0, 0.0)
        return float((weight * squares).sum(1).mean()) / 8


class DrawBlocks:
    r"""All draws of a posterior once, in blocks: stored ones, or `count` of a stream.

    Means and variances of the quarters of the draws, in time, show whether they drift.
    """

    def __init__(self, source: Draws | RecordedStream, count: int) -> None:
        self.source = source
        self.end: StreamEnded | None = None
        self.count = source.count if isinstance(source, Draws) else count
        self.first: X | None = None
        self.moments: list[tuple[int, Tensor, Tensor]] = [(0, torch.zeros(1), torch.zeros(1))] * 4
        self.done = 0

    def head(self) -> X:
        r"""Draws from which outcomes are drawn: some of all, or the first ones of a stream."""
        if isinstance(self.source, Draws):
            generator = torch.Generator().manual_seed(0)
            some = strata(self.count, min(self.count, CANDIDATES), generator)
            return self.source.take(some[torch.randperm(len(some), generator=generator)])
        self.first = self.source.next(min(self.count, CANDIDATES))
        return self.first

    def __call__(self, size: int) -> Iterator[tuple[X, int]]:
        r"""Blocks of draws, with the quarter that they belong to."""
        quarter = math.ceil(self.count / 4)
        while self.done < self.count:
            part = self.done // quarter
            n = min(size, self.count - self.done, (part + 1) * quarter - self.done)
            block = self._next(n)
            if block is None:
                return
            self._watch(block, part)
            self.done += rows(block)
            yield block, part

    def _next(self, n: int) -> X | None:
        if isinstance(self.source, Draws):  # a quarter of each chain after the other
            number = torch.arange(self.done, self.done + n)
            chains, length = self.source.chains, self.source.per_chain
            return self.source.take(number % chains * length + number // chains)
        if self.first is not None:
            block = part_of(self.first, 0, n)
            rest = rows(self.first) - rows(block)
            self.first = part_of(self.first, rows(block), rest) if rest else None
            return block
        try:
            return self.source.next(n)
        except StreamEnded as end:
            self.end = end
            return None

    def _watch(self, block: X, part: int) -> None:
        flat = self.source.structure.flatten(block).double()
        count, mean, square = self.moments[part]
        total = count + len(flat)
        gap = flat.mean(0) - mean
        square = square + (flat - flat.mean(0)).square().sum(0)
        square = square + gap.square() * count * len(flat) / total
        self.moments[part] = (total, mean + gap * len(flat) / total, square)

    def drift(self) -> str:
        r"""A number whose quarters, in time, differ by more than their deviations; or nothing."""
        known = [(mean, square / count) for count, mean, square in self.moments if count > 1]
        if len(known) < 2:
            return ""
        means, variances = (torch.stack(values) for values in zip(*known, strict=True))
        within = variances.mean(0)
        apart = means.amax(0) - means.amin(0)
        far = apart > 2 * within.sqrt()
        worst = int((apart / within.sqrt().clamp_min(1e-300)).nan_to_num(0.0).argmax())
        if not bool(far.any()) or not bool(apart[worst] > 0):
            return ""
        low, high = float(means[:, worst].min()), float(means[:, worst].max())
        label = self.source.structure.label(worst)
        return f"the mean of {label} is {low:.4g} in a quarter of the draws, {high:.4g} in another"


class Targets(NamedTuple):
    r"""The average over draws at a pool of inputs."""

    pool: Pool
    noise: float  # about the divergence of the average from that of another run
    drift: str


def average_at(
    function: PredictFunction, blocks: DrawBlocks, x: X, outcomes: int, generator: torch.Generator
) -> Targets:
    r"""One pass over the draws: the average's log probabilities of outcomes at the inputs x."""
    classes, n = function.classes is not None, rows(x)
    first = blocks.head()
    with torch.no_grad():
        if classes:
            y = torch.arange(int(function.classes or 0)).expand(n, -1)
            proposal = None
        else:
            y = draw_outcomes(function, first, x, outcomes, generator)
            proposal = None if isinstance(blocks.source, Draws) else LogMean()
        mean, m = LogMean(), y[0].numel()
        size = max(1, AT_ONCE // (n * max(m, function.numbers)))
        if proposal is not None:
            for start in range(0, rows(first), size):
                part = part_of(first, start, size)
                proposal.add(log_probs(function.stacked(part, x), y, classes), 0)
        for block, quarter in blocks(size):
            logs = log_probs(function.stacked(block, x), y, classes)
            mean.add(logs, min(quarter, len(mean.sums)))
    log_t = mean.value
    weight = torch.full_like(log_t, 1 / log_t.shape[1])
    if classes:
        weight = log_t.exp()
        log_t = torch.where(weight > 0, log_t, 0.0)
    elif proposal is not None:  # outcomes are of the first draws: weigh them as of all
        weight = (log_t - proposal.value).clamp_max(math.log(100.0)).exp()
        weight = weight / weight.sum(1, keepdim=True).clamp_min(1e-30)
    y = y.to(log_t.device)
    return Targets(Pool(x, y, weight, log_t), mean.noise(weight), blocks.drift())


def draw_outcomes(
    function: PredictFunction, draws: X, x: X, outcomes: int, generator: torch.Generator
) -> Tensor:
    r"""Outcomes (n, m, ...) at inputs x, each of the prediction of another draw."""
    n, count, columns = rows(x), rows(draws), []
    for k in range(outcomes):
        index = (torch.randperm(n, generator=generator) * outcomes + k) % count
        select: Any = lambda part, index=index: part[index.to(part.device)]  # noqa: E731
        some = map_tensors(select, draws)
        columns.append(function.paired(some, x).sample((), generator))
    return torch.stack(columns, 1)


@torch.no_grad()
def ratios(
    function: PredictFunction, draws: X, pool: Pool, generator: torch.Generator, most: int
) -> tuple[Tensor, Tensor]:
    r"""p(y|x, w)/t(y|x) of draws w at about `most` outcomes of a pool, (draws, m), and weights."""
    n, m = pool.log_t.shape[:2]
    classes = function.classes is not None
    each = m if classes else max(1, min(m, most // n))
    index = torch.randperm(n, generator=generator)[: max(1, most // each)]
    part = pool.take(index)
    if each < m:  # of outcomes that are drawn independently, the first ones are enough
        part = Pool(part.x, *(values[:, :each] for values in part[1:]))
    logs = log_probs(function.stacked(draws, part.x), part.y, classes)
    ratio = (logs - part.log_t).flatten(1).clamp_max(50.0).exp()
    weight = part.weight.flatten()
    keep = weight > 0
    return ratio[:, keep].double(), (weight[keep] / weight.sum()).double()


def subset_divergence(mean_ratio: Tensor, weight: Tensor, classes: bool) -> Tensor:
    r"""KL(t ‖ f) of f = t · ratio, over the last axis."""
    logs = mean_ratio.clamp_min(1e-300).log()
    terms = -logs if classes else mean_ratio - 1 - logs
    return terms @ weight


def choose_draws(ratio: Tensor, weight: Tensor, count: int, classes: bool) -> list[int]:
    r"""The numbers of `count` draws whose average is nearest to that of all, by greedy choice.

    This is kernel herding in the space of predictions, with the divergence for a distance: draws
    are added one by one, then each is exchanged for a better one, twice.
    """
    total, chosen = torch.zeros_like(ratio[0]), list[int]()

    def best(others: list[int]) -> int:
        values = subset_divergence((total + ratio) / (len(others) + 1), weight, classes)
        values[others] = math.inf
        return int(values.argmin())

    for _ in range(count):
        chosen.append(best(chosen))
        total = total + ratio[chosen[-1]]
    for place in list(range(count)) * 2:
        total = total - ratio[chosen[place]]
        chosen[place] = best(chosen[:place] + chosen[place + 1 :])
        total = total + ratio[chosen[place]]
    return chosen


def draws_curve(
    ratio: Tensor, weight: Tensor, classes: bool, generator: torch.Generator
) -> dict[int, float]:
    r"""The mean divergence of the average of N random draws, by N."""
    curve: dict[int, float] = {}
    size = 1
    while size <= min(len(ratio) // 2, 512):
        repeats = max(4, min(32, 2 * len(ratio) // size))
        means = torch.stack([
            ratio[torch.randint(len(ratio), (size,), generator=generator)].mean(0)
            for _ in range(repeats)
        ])  # fmt: skip
        curve[size] = float(subset_divergence(means, weight, classes).mean())
        size *= 2
    return curve


def worth(curve: dict[int, float], kl: float) -> float:
    r"""The number of random draws whose average has this divergence; beyond the curve as 1/N."""
    sizes = sorted(curve)
    if not sizes or not math.isfinite(kl):
        return math.nan
    if kl <= 0:
        return math.inf
    for small, large in itertools.pairwise(sizes):
        a, b = curve[small], curve[large]
        if a >= kl > b:
            return small * (large / small) ** (math.log(a / kl) / math.log(a / b))
    if kl > curve[sizes[0]]:
        return 1.0
    return sizes[-1] * curve[sizes[-1]] / kl
