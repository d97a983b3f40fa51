r"""A fixed pool of inputs and outcomes, at which a bag is fitted to the average over draws.

At each input the divergence of the bag f from the average t is a sum over outcomes y: over all
classes, or over outcomes drawn from t. The average at the outcomes is computed once, block by
block, so training needs no draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X, as_dict, part_of, random, rows
from limbeck.condensation.held_out import MAX_COVARIANCE_ERROR, distinct_rows
from limbeck.condensation.predict_function import (
    Pair,
    PredictFunction,
    Wrapped,
    class_logs,
    paired,
    rows_of,
    unpair,
)
from limbeck.condensation.teachers import bytes_of
from limbeck.distributions.base import Distribution
from limbeck.inputs import Dataset
from limbeck.posteriors.draws import Draws

if TYPE_CHECKING:
    from limbeck.condensation.sample_bag import SampleBag

AT_ONCE = 2**22  # single predictions of outcomes in memory at once
OUTCOMES = 16  # outcomes of each input that a divergence of densities is estimated with
CANDIDATES = 1000  # draws among which the first components are chosen
FEATURES = 1000  # outcomes by which they are compared
COVARIANCE_WEIGHT = 0.1  # nats that covariances count which are wrong by 100%
COVARIANCE_INPUTS = 512  # different inputs whose covariances are compared, at most
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
    near, start = rows_of(parts, index), 0
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
    classes: bool  # whether the outcomes are all classes, or drawn ones

    @classmethod
    def of(cls, x: X, y: Tensor, log_t: Tensor, classes: bool) -> Pool:
        r"""A pool of outcomes (n, m, ...) of the average."""
        if not classes:
            return cls(x, y, torch.full_like(log_t, 1 / log_t.shape[1]), log_t, False)
        weight = log_t.exp()
        return cls(x, y, weight, torch.where(weight > 0, log_t, 0.0), True)

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

    def log_probs(self, prediction: Any) -> Tensor:
        r"""Log probabilities (..., n, m, ...) of the outcomes, of predictions (..., n)."""
        if self.classes:
            return class_logs(prediction)
        leading = len(prediction.batch_shape) - (self.y.ndim - 1 - prediction.event)
        first = self.y.movedim(1, 0)  # (m, n, ...)
        first = first.reshape(len(first), *[1] * leading, *first.shape[1:])
        return prediction.log_prob(first).movedim(0, leading + 1)

    def terms(self, f: Any) -> Tensor:
        r"""Terms (n, m, ...) whose mean, weighted, is KL(t ‖ f), of predictions f (n, ...).

        The mean of f/t − 1 − log(f/t) has far less noise than that of log(t/f), and the same
        expectation; over all classes both are the same number.
        """
        ratio = torch.where(self.weight > 0, self.log_probs(f) - self.log_t, 0.0)
        return -ratio if self.classes else ratio.clamp_max(20.0).expm1() - ratio

    def divergence(self, f: Any) -> Tensor:
        r"""KL(t ‖ f) of predictions f (n, ...), (n,)."""
        values = (self.weight * self.terms(f)).sum(1)
        return values.flatten(1).mean(1) if values.ndim > 1 else values

    @torch.no_grad()
    def divergences(self, student: Callable[[X], Any]) -> Tensor:
        r"""KL(t ‖ f) of a student f at each input, (n,), in float64."""
        parts = (part_of(self, start, 1000) for start in range(0, rows(self.x), 1000))
        return torch.cat([part.divergence(student(part.x)).double() for part in parts])

    def data(self, weight: Tensor | None = None) -> Dataset:
        r"""The pool as a data set of the loop, whose inputs `PoolDivergence` takes apart."""
        parts = paired(Pair(self.x, self.y)) | {"weight": self.weight, "log_t": self.log_t}
        return Dataset(parts, weight=weight)


class Covariances(NamedTuple):
    r"""The covariances of the means of predictions at some inputs, over all draws."""

    x: X  # n inputs, the first that differ from each other
    matrix: Tensor  # (n, n)

    @classmethod
    @torch.no_grad()
    def of(cls, function: PredictFunction, draws: Draws, x: X) -> Covariances:
        x = distinct_rows(x, COVARIANCE_INPUTS)
        size = max(1, AT_ONCE // (rows(x) * function.numbers))
        means = [function.stacked(block, x).mean.flatten(1) for block in draws.blocks(size)]
        return cls(x, torch.cov(torch.cat(means).double().T, correction=0))

    def error(self, bag: SampleBag) -> Tensor:
        r"""The root mean square error of the covariances of a bag, relative to these."""
        wrong = bag.covariances(self.x) - self.matrix
        return (wrong.square().mean() / self.matrix.square().mean()).sqrt()

    def components(self) -> int:
        r"""The least number of draws whose covariances can be within a tenth of these."""
        squares = torch.linalg.eigvalsh(self.matrix).square()  # ascending
        lost = (squares.cumsum(0) / squares.sum()).sqrt()  # by the best matrix of lower rank
        return int((lost > MAX_COVARIANCE_ERROR).sum()) + 1  # centred draws lose one direction


class PoolDivergence(Wrapped):
    r"""−KL(t ‖ f) of a student f at each input of a pool, (n,), as a log density of the loop.

    With covariances, the square of their relative error counts too: a tenth as 10⁻³ nats.
    """

    output_form = "log_density"
    student: SampleBag

    def __init__(
        self, student: SampleBag, classes: bool, covariances: Covariances | None = None
    ) -> None:
        super().__init__(student)
        self.classes, self.covariances = classes, covariances

    def forward(self, parts: dict[str, Tensor]) -> Tensor:
        x, y, _ = unpair(parts)
        pool = Pool(x, y, parts["weight"], parts["log_t"], self.classes)
        values = -pool.divergence(self.student(x))
        return values - self.penalty().to(values.dtype)

    def penalty(self) -> Tensor:
        r"""What the error of covariances counts."""
        if self.covariances is None:
            return torch.zeros(())
        return COVARIANCE_WEIGHT * self.covariances.error(self.student).square()


def average_at(
    function: PredictFunction, draws: Draws, x: X, outcomes: int, generator: torch.Generator
) -> tuple[Pool, float]:
    r"""The average over draws at the inputs x, block by block; and about its own error.

    The error is the divergence of the average from that of another run, by the difference of two
    halves of the draws in time: the squares have four times the variance of the average's logs, and
    half of that is a divergence.
    """
    classes, n = function.classes, rows(x)
    with torch.no_grad():
        if classes is not None:
            y = torch.arange(classes).expand(n, -1)
        else:
            some = draws.over_time(min(draws.count, CANDIDATES), generator)
            some = rows_of(some, torch.randperm(rows(some), generator=generator))
            columns = []
            for k in range(outcomes):  # each of the prediction of another draw
                index = (torch.randperm(n, generator=generator) * outcomes + k) % rows(some)
                columns.append(function.paired(rows_of(some, index), x).sample((), generator))
            y = torch.stack(columns, 1)
        places = Pool(x, y, y, y, classes is not None)
        size = max(1, AT_ONCE // (n * max(y[0].numel(), function.numbers)))
        order = draws.in_time(torch.arange(draws.count))
        halves = order.tensor_split(min(2, draws.count))
        sums = [
            torch.stack([
                places.log_probs(function.stacked(draws.take(block), x)).logsumexp(0)
                for block in half.split(size)
            ]).logsumexp(0)
            for half in halves
        ]  # fmt: skip
    log_t = torch.stack(sums).logsumexp(0) - math.log(draws.count)
    pool = Pool.of(x, y.to(log_t.device), log_t, classes is not None)
    if len(sums) < 2:
        return pool, math.inf
    squares = (sums[0] - sums[1] - math.log(len(halves[0]) / len(halves[1]))).square()
    squares = squares.nan_to_num(0.0, 0.0, 0.0)  # of a class of one half alone
    return pool, float((pool.weight * squares).sum(1).mean()) / 8


@torch.no_grad()
def ratios(
    function: PredictFunction, draws: X, pool: Pool, generator: torch.Generator, most: int
) -> tuple[Tensor, Tensor]:
    r"""p(y|x, w)/t(y|x) of draws w at about `most` outcomes of a pool, (draws, m), and weights."""
    n, m = pool.log_t.shape[:2]
    each = m if pool.classes else max(1, min(m, most // n))
    index = torch.randperm(n, generator=generator)[: max(1, most // each)]
    part: Pool = rows_of(pool, index)
    # of outcomes that are drawn independently, the first ones are enough
    y, weight, log_t = (values[:, :each] for values in part[1:4])
    part = Pool(part.x, y, weight, log_t, pool.classes)
    logs = part.log_probs(function.stacked(draws, part.x))
    ratio = (logs - part.log_t).flatten(1).clamp_max(50.0).exp()
    weight = weight.flatten()
    keep = weight > 0
    return ratio[:, keep].double(), (weight[keep] / weight.sum()).double()


def subset_divergence(mean_ratio: Tensor, weight: Tensor) -> Tensor:
    r"""KL(t ‖ f) of f = t · ratio, over the last axis."""
    return (mean_ratio - 1 - mean_ratio.clamp_min(1e-300).log()) @ weight


def choose_draws(ratio: Tensor, weight: Tensor, count: int) -> list[int]:
    r"""The numbers of `count` draws whose average is nearest to that of all, by greedy choice.

    This is kernel herding in the space of predictions, with the divergence for a distance: draws
    are added one by one, then each is exchanged for a better one, twice.
    """
    total, chosen = torch.zeros_like(ratio[0]), list[int]()

    def best(others: list[int]) -> int:
        values = subset_divergence((total + ratio) / (len(others) + 1), weight)
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


def draws_curve(ratio: Tensor, weight: Tensor, generator: torch.Generator) -> dict[int, float]:
    r"""The mean divergence of the average of N random draws, by N."""
    curve: dict[int, float] = {}
    for size in (2**k for k in range(10) if 2 ** (k + 1) <= len(ratio)):
        repeats = max(4, min(32, 2 * len(ratio) // size))
        index = (torch.randint(len(ratio), (size,), generator=generator) for _ in range(repeats))
        means = torch.stack([ratio[some].mean(0) for some in index])
        curve[size] = float(subset_divergence(means, weight).mean())
    return curve


ROUNDING = 1e-7  # of divergences in single precision: what is below may be nearer, or may not


def worth(curve: dict[int, float], kl: float) -> float:
    r"""The number of random draws whose average has this divergence; beyond the curve as 1/N."""
    if not curve or not math.isfinite(kl):
        return math.nan
    kl = max(kl, ROUNDING)
    sizes = np.array(sorted(curve))
    least = np.minimum.accumulate([curve[size] for size in sizes])
    if kl < least[-1]:
        return float(sizes[-1] * least[-1] / kl)
    logs = np.log(least.clip(1e-300))
    return float(np.exp(np.interp(-math.log(kl), -logs, np.log(sizes))))


def posterior_divergence(
    predict: PredictFunction, draws: Draws, student: Callable[[X], Any], seed: int, x: X
) -> tuple[Tensor, float]:
    r"""KL(average over draws ‖ student) (n,), and about that of the average from another run's."""
    outcomes = 1 if predict.classes is not None else OUTCOMES
    # at most 5 · 10⁷ predictions of single draws, fewer of slow ones, and 256 MiB of draws
    work = 5 * 10**7 // (rows(x) * outcomes * (1 if predict.vmapped else 20))
    most = max(2, min(work, 2**28 // bytes_of(1, draws.structure, draws.dtype)))
    generator = torch.Generator().manual_seed(seed)
    if draws.count > most:
        draws = Draws.one_chain(draws.over_time(most, generator))
    pool, noise = average_at(predict, draws, x, outcomes, generator)
    return pool.divergences(student), noise
