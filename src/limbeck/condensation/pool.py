r"""A fixed pool of inputs and outcomes, at which a bag is fitted to the average over draws.

At each input the divergence of the bag f from the average t is a sum over outcomes y: over all
classes, or over outcomes drawn from t. The average at the outcomes is computed once, block by
block, so training needs no draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck.arrays import X, as_dict, map_tensors, part_of, random, rows
from limbeck.condensation.held_out import MAX_COVARIANCE_ERROR
from limbeck.condensation.predict_function import (
    Pair,
    PredictFunction,
    class_logs,
    paired,
    unpair,
)
from limbeck.condensation.teachers import strata
from limbeck.distributions.base import Distribution
from limbeck.inputs import Dataset
from limbeck.posteriors.draws import Draws

if TYPE_CHECKING:
    from limbeck.condensation.sample_bag import SampleBag

AT_ONCE = 2**22  # single predictions of outcomes in memory at once
CANDIDATES = 1000  # draws among which the first components are chosen
FEATURES = 1000  # outcomes by which they are compared
COVARIANCE_WEIGHT = 0.1  # nats that covariances count which are wrong by 100%
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

    @classmethod
    def of(cls, x: X, y: Tensor, log_t: Tensor, classes: bool) -> Pool:
        r"""A pool of outcomes (n, m, ...) of the average: all classes, or drawn ones."""
        if not classes:
            return cls(x, y, torch.full_like(log_t, 1 / log_t.shape[1]), log_t)
        weight = log_t.exp()
        return cls(x, y, weight, torch.where(weight > 0, log_t, 0.0))

    @classmethod
    def at(
        cls, x: X, t: Distribution, classes: bool, outcomes: int, generator: torch.Generator
    ) -> Pool:
        r"""The pool of an average t that is known as a distribution at the inputs x."""
        if classes:
            logs = class_logs(t)
            return cls.of(x, torch.arange(logs.shape[1]).expand(logs.shape), logs, True)
        y = t.sample((outcomes,), generator)
        return cls.of(x, y.movedim(0, 1), t.log_prob(y).movedim(0, 1), False)

    def take(self, index: Tensor) -> Pool:
        parts: Any = map_tensors(lambda part: part[index.to(part.device)], tuple(self))
        return Pool(*parts)

    @torch.no_grad()
    def divergences(self, student: Callable[[X], Any], classes: bool) -> Tensor:
        r"""KL(t ‖ f) of a student f at each input, (n,)."""
        values = []
        for start in range(0, rows(self.x), 1000):
            parts: Any = part_of(tuple(self), start, 1000)
            part = Pool(*parts)
            values.append(pool_divergence(student(part.x), classes, *part[1:]).double())
        return torch.cat(values)

    def data(self, weight: Tensor | None = None) -> Dataset:
        r"""The pool as a data set of the loop, whose inputs `PoolDivergence` takes apart."""
        parts = paired(Pair(self.x, self.y)) | {"weight": self.weight, "log_t": self.log_t}
        return Dataset(parts, weight=weight)


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

    def components(self) -> int:
        r"""The least number of draws whose covariances can be within a tenth of these."""
        squares = torch.linalg.eigvalsh(self.matrix).square()  # ascending
        lost = (squares.cumsum(0) / squares.sum()).sqrt()  # by the best matrix of lower rank
        return int((lost > MAX_COVARIANCE_ERROR).sum()) + 1  # centred draws lose one direction

    @torch.no_grad()
    def error_of(self, bag: SampleBag) -> float:
        return float(self.error(bag.covariances(self.x)))


class PoolDivergence(nn.Module):
    r"""−KL(t ‖ f) of a student f at each input of a pool, (n,), as a log density of the loop.

    With covariances, the square of their relative error counts too: a tenth as 10⁻³ nats.
    """

    output_form = "log_density"

    def __init__(
        self, student: SampleBag, classes: bool, covariances: Covariances | None = None
    ) -> None:
        super().__init__()
        self.student, self.classes, self.covariances = student, classes, covariances

    def forward(self, parts: dict[str, Tensor]) -> Tensor:
        pair = unpair(parts)
        targets = (parts[name] for name in ("weight", "log_t"))
        values = -pool_divergence(self.student(pair.x), self.classes, pair.y, *targets)
        return values - self.penalty().to(values.dtype)

    def penalty(self) -> Tensor:
        r"""What the error of covariances counts."""
        if self.covariances is None:
            return torch.zeros(())
        own = self.student.covariances(self.covariances.x)
        return COVARIANCE_WEIGHT * self.covariances.error(own).square()


def log_probs(prediction: Any, y: Tensor, classes: bool) -> Tensor:
    r"""Log probabilities (..., n, m, ...) of outcomes y (n, m, ...), of predictions (..., n)."""
    if classes:
        return class_logs(prediction)
    leading = len(prediction.batch_shape) - (y.ndim - 1 - prediction.event)
    first = y.movedim(1, 0)  # (m, n, ...)
    first = first.reshape(len(first), *[1] * leading, *first.shape[1:])
    return prediction.log_prob(first).movedim(0, leading + 1)


def divergence_terms(
    prediction: Any, classes: bool, y: Tensor, weight: Tensor, log_t: Tensor
) -> Tensor:
    r"""Terms (n, m, ...) at outcomes of t, whose mean, weighted, is KL(t ‖ f).

    The mean of f/t − 1 − log(f/t) has far less noise than that of log(t/f), and the same
    expectation; over all classes both are the same number.
    """
    ratio = torch.where(weight > 0, log_probs(prediction, y, classes) - log_t, 0.0)
    return -ratio if classes else ratio.clamp_max(20.0).expm1() - ratio


def pool_divergence(
    prediction: Any, classes: bool, y: Tensor, weight: Tensor, log_t: Tensor
) -> Tensor:
    r"""KL(t ‖ f) of predictions f (n, ...) at outcomes (n, m, ...), (n,)."""
    values = (weight * divergence_terms(prediction, classes, y, weight, log_t)).sum(1)
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def average_at(
    function: PredictFunction, draws: Draws, x: X, outcomes: int, generator: torch.Generator
) -> tuple[Pool, float]:
    r"""The average over draws at the inputs x, block by block; and about its own error.

    The error is the divergence of the average from that of another run, by the difference of two
    halves of the draws in time: the squares have four times the variance of the average's logs, and
    half of that is a divergence.
    """
    classes, n = function.classes is not None, rows(x)
    with torch.no_grad():
        if classes:
            y = torch.arange(int(function.classes or 0)).expand(n, -1)
        else:
            some = strata(draws.count, min(draws.count, CANDIDATES), generator)
            some = some[torch.randperm(len(some), generator=generator)]
            y = draw_outcomes(function, draws.take(some), x, outcomes, generator)
        size = max(1, AT_ONCE // (n * max(y[0].numel(), function.numbers)))
        sums, counts = list[Tensor](), list[int]()
        number = torch.arange(draws.count)  # all chains at a time, then all at the next
        order = number % draws.chains * draws.per_chain + number // draws.chains
        for half in order.tensor_split(min(2, draws.count)):
            parts = [
                log_probs(function.stacked(draws.take(block), x), y, classes).logsumexp(0)
                for block in half.split(size)
            ]
            sums.append(torch.stack(parts).logsumexp(0))
            counts.append(len(half))
    log_t = torch.stack(sums).logsumexp(0) - math.log(draws.count)
    pool = Pool.of(x, y.to(log_t.device), log_t, classes)
    if len(sums) < 2:
        return pool, math.inf
    squares = (sums[0] - sums[1] - math.log(counts[0] / counts[1])).square()
    squares = squares.nan_to_num(0.0, 0.0, 0.0)  # of a class of one half alone
    return pool, float((pool.weight * squares).sum(1).mean()) / 8


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
