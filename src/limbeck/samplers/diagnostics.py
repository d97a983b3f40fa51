r"""Effective sizes, R-hat, Pareto's k̂, and scores of whether chains agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import Items, UserObject, checked_arguments
from limbeck.arrays import as_array, as_part
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Stateful
from limbeck.text import listed

SIGNIFICANT = 3.7  # a z-score that chance gives in 1 of 5,000 tests
LARGE_R_HAT = 1.05
BLOCKS = 64  # of draws, whose means are stored: an even number
MIN_CHAINS = 20  # below, only their own series can be tested


def effective_size(series: UserObject[Tensor]) -> float:
    r"""The number of independent draws that estimate the mean of a series as well.

    Autocovariances are about the mean of all chains, without ranks; their sum is cut by Geyer's
    initial monotone sequence. Antithetic chains have more than n, up to n·log₁₀ n; chains of a
    single draw have n.

    Arguments:
        series: Numbers (chains, draws), or (draws,) of one chain.

    >>> effective_size(torch.tensor([[1.0], [2.0], [4.0]]))
    3.0
    """
    series = as_part(series, "series").values
    x = _series(series.reshape(1, -1) if series.dim() == 1 else series)
    n, draws = x.numel(), x.shape[1]
    x = x - x.mean()
    if draws == 1 or n < 3 or float(x.abs().max()) <= 1e-14 * float(series.abs().max()):
        return float(n)
    # Sums over n, not over the pairs at each lag: so they stand in the variance of a finite mean.
    spectrum = torch.fft.rfft(x, n=2 * draws, dim=1)
    covariance = torch.fft.irfft(spectrum.abs().square().sum(0), n=2 * draws)[:draws] / n
    rho = covariance / covariance[0]
    even, odd = rho[0::2], rho[1::2]
    pairs = even + torch.cat([odd, odd.new_zeros(len(even) - len(odd))])
    negative = (pairs <= 0).nonzero()
    cut = int(negative[0]) if len(negative) else len(pairs)
    monotone = pairs[: max(cut, 1)].cummin(0).values
    time = float(2 * monotone.sum()) - 1
    if cut < len(even):  # the even lag after the cut, which antithetic chains need
        time += max(float(even[cut]), 0.0)
    return n / max(time, 1 / math.log10(max(n, 11)))


def r_hat(series: UserObject[Tensor]) -> float:
    r"""Gelman and Rubin's R-hat of chains cut in halves; 1 where they agree, NaN below 4 draws.

    Arguments:
        series: Numbers (chains, draws).
    """
    x = _series(series)
    half = x.shape[1] // 2
    if half < 2:
        return math.nan
    x = torch.cat([x[:, :half], x[:, -half:]])
    return float(_r_hat(x.mean(1, keepdim=True), x.var(1, keepdim=True), half))


def _r_hat(means: Tensor, variances: Tensor, n: int) -> Tensor:
    r"""R-hat (dim,) from the means and variances (pieces, dim) of pieces of n draws."""
    return ((n - 1) / n + _ratio(means.var(0), variances.mean(0), means, constant=1 / n)).sqrt()


def weights_effective_size(log_weights: UserObject[Tensor]) -> float:
    r"""Kish's effective size of weights, (Σw)²/Σw².

    >>> round(weights_effective_size(torch.tensor([5.0, 5.0, float("-inf")])), 9)
    2.0
    """
    log_w = _log_weights(log_weights)
    return math.exp(float(2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)))


def pareto_k(log_weights: UserObject[Tensor]) -> float:
    r"""The shape k̂ of the generalised Pareto distribution that the largest weights follow.

    It is fitted by the method of Zhang and Stephens (2009) to the 3√n (at most a fifth) largest
    weights. If it exceeds 0.7, do not trust the mean of the weights. It is −∞ without a tail, and
    NaN for fewer than 5 weights.

    Arguments:
        log_weights: Logarithms (n,) of the weights, up to a constant.
    """
    log_w = _log_weights(log_weights)
    log_w = (log_w - log_w.max()).sort().values
    size = min(len(log_w) // 5, math.ceil(3 * math.sqrt(len(log_w))))
    if size < 5:
        return math.nan
    cut, tail = log_w[-size - 1], log_w[-size:]
    tail = tail[tail > cut + 1e-9]  # ties, and what rounding makes of them, are no tail
    tail = (tail.exp() - cut.exp()).clamp_min(1e-290)
    if len(tail) == 0:
        return -math.inf
    m = len(tail)
    if m < 5:
        return math.nan
    # The notation is theirs, with −k for k; tail (m,) is sorted and above zero.
    points = 30 + int(math.sqrt(m))
    j = torch.arange(1, points + 1, dtype=torch.float64)
    quartile = tail[int(m / 4 + 0.5) - 1]
    theta = 1 / tail[-1] + (1 - (points / (j - 0.5)).sqrt()) / (3 * quartile)
    k = torch.log1p(-theta[:, None] * tail).mean(1)
    profile = m * ((-theta / k).log() - k - 1)
    mean = float((theta * torch.softmax(profile, 0)).sum())
    shape = float(torch.log1p(-mean * tail).mean())
    return (m * shape + 10 * 0.5) / (m + 10)


def _log_weights(log_weights: Tensor) -> Tensor:
    r"""Logarithms (n,) of weights, of which some are above zero, in float64 on the CPU."""
    log_w = torch.as_tensor(as_array(log_weights, "log_weights")).double().flatten().cpu()
    as_part(log_w[~log_w.isneginf()], "log_weights")  # which −∞ is, too
    return log_w


def _series(series: Tensor) -> Tensor:
    r"""Numbers (chains, draws) in float64 on the CPU."""
    x = as_part(series, "series").values.double().cpu()
    if x.dim() != 2:
        raise ArgumentError("series", f"shape {tuple(x.shape)}", "shape (chains, draws)")
    return x


def difference(one: Tensor, other: Tensor) -> float:
    r"""The difference between the means of two groups of chains (chains, draws), over its error."""
    one, other = one.double(), other.double()  # rounding of single precision is not a difference
    if one.numel() < 2 or other.numel() < 2:
        return 0.0
    variance = sum(float(group.var()) / effective_size(group) for group in (one, other))
    scale = max(float(one.abs().max()), float(other.abs().max()))
    return _z_score(float(one.mean() - other.mean()), math.sqrt(variance), scale)


def drift(before: Tensor, after: Tensor) -> float:
    r"""The mean change of chains (chains,) between two times, over its error."""
    if len(before) < MIN_CHAINS:
        return 0.0
    change = after.double() - before.double()
    error = float(change.std()) / math.sqrt(len(change))
    return _z_score(float(change.mean()), error, float(after.abs().max()))


def memory(log_weights: Tensor, now: Tensor) -> float:
    r"""How far chains (chains,) from samples of q still depend on their start, as a z-score.

    Weighted by p/q at their starts, they stand for chains that start at p and stay there. The score
    is the weighted less the plain mean, over its error; zero with less than ten effective weights.
    """
    if len(now) < MIN_CHAINS or not log_weights.isfinite().any():
        return 0.0
    now = now.double()  # rounding of single precision is not a difference
    share = torch.softmax(log_weights.double(), 0)
    if float(1 / share.square().sum()) < 10:
        return 0.0
    error = float((share - 1 / len(now)).norm() * now.std())
    return _z_score(float(share @ now - now.mean()), error, float(now.abs().max()))


def _z_score(gap: float, error: float, scale: float) -> float:
    if abs(gap) <= 1e-12 * scale:  # rounding
        return 0.0
    return gap / error if error else math.copysign(math.inf, gap)


def acceptance_rate(log_ratio: Tensor) -> float:
    r"""What independence Metropolis will accept, ⟨min(1, w(y)/w(x))⟩, from weights at samples of q.

    >>> round(acceptance_rate(torch.zeros(5)), 6)
    1.0
    """
    log_w = log_ratio[:1000].double()
    accepted = (log_w - log_w[:, None]).clamp_max(0).exp()  # from x (rows) to y
    return float(log_w.softmax(0) @ accepted.nan_to_num(0.0).mean(1))


class RunningDiagnostics(Stateful):
    r"""R̂ and effective sizes of draws (chains, dim) that arrive sweep by sweep.

    Chains are cut into blocks of equal length, of which only means and sums of squares are stored.
    When the blocks are full, neighbours are merged, so that memory stays the same.

    R̂ is that of `samplers.r_hat` for all draws in complete blocks. The effective size uses batch
    means (Flegal and Jones, 2010), with a hundred batches if possible. Longer batches are used if
    their variance is larger by more than its error, which detects slow chains.

    Arguments:
        names: Names of the coordinates in `reasons`. Default: their numbers.

    >>> running = RunningDiagnostics()
    >>> for draws in torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0)):
    ...     running.update(draws)
    >>> running.count, running.reasons()
    (500, [])
    """

    STATE = ("_mean", "_squares", "_full", "_partial", "_length")

    @checked_arguments
    def __init__(self, names: Items[Sequence[str]] | None = None) -> None:
        self.names = None if names is None else list(map(str, names))
        self._full, self._partial, self._length = 0, 0, 1  # blocks, draws in the next, in each
        self._mean = self._squares = torch.empty(0)  # (blocks, chains, dim)

    @property
    def count(self) -> int:
        r"""Draws of each chain so far."""
        return self._full * self._length + self._partial

    def update(self, draws: UserObject[np.ndarray | Tensor | Sequence[Sequence[float]]]) -> None:
        r"""Add one more draw of each chain, (chains, dim)."""
        x = as_part(draws, "draws").values.double()
        shape, expected = tuple(x.shape), tuple(self._mean.shape[1:])
        if len(shape) != 2 or (expected and shape != expected):
            raise ArgumentError("draws", f"shape {shape}", f"shape {expected or '(chains, dim)'}")
        if self.names is not None and len(self.names) != shape[1]:
            received = f"{len(self.names)} names"
            raise ArgumentError("names", received, f"{shape[1]}, one for each coordinate")
        if not expected:
            self._mean = x.new_zeros(BLOCKS, *shape)
            self._squares = torch.zeros_like(self._mean)
        mean, squares = self._mean[self._full], self._squares[self._full]
        self._partial += 1
        change = x - mean
        mean += change / self._partial  # Welford's way
        squares += change * (x - mean)
        if self._partial == self._length:
            self._full, self._partial = self._full + 1, 0
        if self._full == BLOCKS:
            merged = _pooled(self._mean, self._squares, self._length, 2)
            self._full, self._length = BLOCKS // 2, 2 * self._length
            for stored, new in zip((self._mean, self._squares), merged, strict=True):
                stored[: self._full] = new
                stored[self._full :] = 0

    @property
    def r_hat(self) -> Tensor:
        r"""R̂ of each coordinate, (dim,): 1 where chains agree; NaN below four draws."""
        mean, squares = self._blocks()
        half = self._full // 2
        n = half * self._length
        if n < 2:
            return mean.new_full(mean.shape[2:], math.nan)
        pairs = (slice(half), slice(self._full - half, None))
        halves = [_pooled(mean[at], squares[at], self._length, half) for at in pairs]
        mean, squares = (torch.cat(pair).flatten(0, 1) for pair in zip(*halves, strict=True))
        return _r_hat(mean, squares / (n - 1), n)

    @property
    def ess(self) -> Tensor:
        r"""The effective size of each coordinate's draws, all chains together, (dim,), or NaN."""
        mean, squares = self._blocks()
        chains, dim = mean.shape[1:]
        size = self._full // math.ceil(100 / chains) or 1  # blocks in a batch
        if not self._full or (chains < 100 and size * self._length < 10):
            return mean.new_full((dim,), math.nan)
        n = mean.shape[0] * self._length * chains
        apart = (mean - mean.mean((0, 1))).square().sum((0, 1))
        variance = (squares.sum((0, 1)) + self._length * apart) / max(n - 1, 1)
        of_means, shortest = torch.zeros_like(variance), size
        while (batches := self._full // size) * chains > 1:
            error = math.sqrt(2 / (batches * chains - 1)) if size > shortest else 0.0
            latest = mean[self._full - batches * size :].unflatten(0, (batches, size))
            spread = size * self._length * latest.mean(1).flatten(0, 1).var(0)
            of_means = torch.maximum(of_means, spread / (1 + error))
            if size == self._full:
                break
            size = min(2 * size, self._full)
        total = self.count * chains
        share = _ratio(variance, of_means, mean.flatten(0, 1), constant=1.0)
        return (total * share).clamp_max(total * math.log10(max(total, 11)))

    def reasons(self) -> list[str]:
        r"""Reasons to distrust the draws so far, one sentence each; empty if there are none."""
        ratios, sizes = self.r_hat, self.ess
        names = self.names or [f"coordinate {number}" for number in range(len(sizes))]
        mean, squares = self._blocks()
        late, reasons = slice(self._full // 2, self._full), list[str]()
        if (draws := (late.stop - late.start) * self._length) >= 10:  # since half-time
            moved = (squares[late] > 0) | (mean[late] != mean[-1])
            if still := (~moved.any(0).any(1)).nonzero()[:, 0].tolist():
                count = f"{len(still)} of {mean.shape[1]} chains"
                reasons.append(f"{count} have not moved in {draws:,} draws: {listed(still)}")
        if reason := disagreement(names, ratios):
            means = mean[:, :, int(ratios.nan_to_num(0.0).argmax())].mean(0)
            furthest = int((means - means.median()).abs().argmax())
            reasons.append(
                f"{reason}: after {self.count:,} draws the chains disagree or are too short to "
                f"tell; chain {furthest} is furthest from the others"
            )
        if self._full >= BLOCKS // 4:
            centres = mean.mean(1)  # of blocks of all chains, (blocks, dim)
            away = centres - centres.median(0).values
            limit = 6 * 1.4826 * away.abs().median(0).values  # six robust standard deviations
            limit += 1e-9 * centres.abs().amax(0)  # of rounding
            jumped = (away[-2:] > limit).all(0) | (away[-2:] < -limit).all(0)
            if jumped.any():
                where = listed([names[index] for index in jumped.nonzero()[:, 0].tolist()])
                share = f"{2 / self._full:.0%} of the draws"
                reasons.append(f"the last {share} are far from those before: {where}")
        if (sizes < 100).any():
            worst = int(sizes.nan_to_num(math.inf).argmin())
            reasons.append(
                f"the draws of {names[worst]} are worth {float(sizes[worst]):.0f} independent ones"
            )
        return reasons

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._mean = self._squares = state["mean"]  # where the draws are
        super().load_state_dict(state)

    def _blocks(self) -> tuple[Tensor, Tensor]:
        r"""Means and sums of squares of the whole blocks, (full, chains, dim) each."""
        if not len(self._mean):
            raise ArgumentError("draws", "none yet", "one or more, by `update`")
        return self._mean[: self._full], self._squares[: self._full]


def disagreement(names: Sequence[str], r_hats: Tensor) -> str:
    r"""The largest R̂, if it is large, with the name of its coordinate; "" if none is."""
    large, worst = int((r_hats > LARGE_R_HAT).sum()), int(r_hats.nan_to_num(0.0).argmax())
    known = f"R̂ of {names[worst]} is {float(r_hats[worst]):.3g}"
    return f"{known} (above {LARGE_R_HAT:g} for {large} of {len(r_hats)})" if large else ""


def _pooled(mean: Tensor, squares: Tensor, length: int, size: int) -> tuple[Tensor, Tensor]:
    r"""Means and sums of squares of blocks put together, so many (`size`) neighbours each."""
    parts = mean.unflatten(0, (-1, size))
    pooled = parts.mean(1)
    apart = length * (parts - pooled[:, None]).square().sum(1)
    return pooled, squares.unflatten(0, (-1, size)).sum(1) + apart


def _ratio(one: Tensor, other: Tensor, x: Tensor, constant: float) -> Tensor:
    r"""A ratio of variances (dim,) of values like x (n, dim); constant if both are rounding."""
    rounding = (1e-14 * x.abs().amax(0)).square()
    one, other = (torch.where(v <= rounding, 0.0, v) for v in (one, other))
    return torch.where((one == 0) & (other == 0), constant, one / other)
