r"""What a series or a set of weights is worth: effective sizes, R-hat and Pareto's k̂."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limbeck.errors import ArgumentError

__all__ = ["effective_size", "pareto_k", "r_hat", "weights_effective_size"]


def effective_size(series: Tensor) -> float:
    r"""How many independent draws estimate the mean of a series as well as its draws do.

    It is the effective size of the plain mean of these very numbers, with no ranks taken: the
    square of the standard error of the mean is the series' variance over it. Autocovariances are
    taken about the mean of all chains, so that chains which disagree have a small size together;
    their sum is cut by Geyer's initial monotone sequence. Antithetic chains have more than n, up
    to n·log₁₀ n. Chains of a single draw are independent draws: n.

    Arguments:
        series: Numbers (chains, draws), or (draws,) of one chain.

    >>> effective_size(torch.tensor([[1.0], [2.0], [4.0]]))
    3.0
    """
    x = _finite("series", series)
    x = x.reshape(1, -1) if x.dim() == 1 else x
    if x.dim() != 2:
        raise ArgumentError("series", f"shape {tuple(series.shape)}", "shape (chains, draws)")
    n, draws = x.numel(), x.shape[1]
    x = x - x.mean()
    if draws == 1 or n < 3 or _constant(x, series):
        return float(n)
    # Sums over n, not over the pairs at each lag: so they stand in the variance of a finite mean.
    spectrum = torch.fft.rfft(x, n=2 * draws, dim=1)
    covariance = torch.fft.irfft(spectrum.abs().square().sum(0), n=2 * draws)[:draws] / n
    rho = covariance / covariance[0]
    even, odd = rho[0::2], rho[1::2]
    pairs = even + torch.cat([odd, odd.new_zeros(len(even) - len(odd))])
    negative = (pairs <= 0).nonzero()
    kept = int(negative[0]) if len(negative) else len(pairs)
    monotone = pairs[: max(kept, 1)].cummin(0).values
    time = float(2 * monotone.sum()) - 1
    if kept < len(even):  # the even lag after the cut, which antithetic chains need
        time += max(float(even[kept]), 0.0)
    return n / max(time, 1 / math.log10(max(n, 11)))


def r_hat(series: Tensor) -> float:
    r"""Gelman and Rubin's R-hat of chains cut in halves; 1 where they agree, NaN below 4 draws.

    Arguments:
        series: Numbers (chains, draws).
    """
    x = _finite("series", series)
    if x.dim() != 2:
        raise ArgumentError("series", f"shape {tuple(series.shape)}", "shape (chains, draws)")
    half = x.shape[1] // 2
    if half < 2:
        return math.nan
    x = torch.cat([x[:, :half], x[:, -half:]])
    within = float(x.var(1).mean())
    between = float(x.mean(1).var())  # of the means, already over `half`
    if _constant(x - x.mean(), series):
        return 1.0
    if within == 0:
        return math.inf
    return math.sqrt((half - 1) / half + between / within)


def weights_effective_size(log_weights: Tensor) -> float:
    r"""Kish's effective size of weights, (Σw)²/Σw².

    >>> round(weights_effective_size(torch.tensor([5.0, 5.0, float("-inf")])), 9)
    2.0
    """
    log_w = log_weights.detach().double().flatten().cpu()
    total = 2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)
    return math.exp(float(total))


def pareto_k(log_weights: Tensor) -> float:
    r"""The shape k̂ of the generalised Pareto distribution that the largest weights follow.

    The fit is Zhang and Stephens' (2009), of the 3√n (at most a fifth) largest weights, drawn a
    little towards ½ as in Pareto-smoothed importance sampling. The weights have 1/k moments: from
    k̂ = ½ their variance, and from 0.7 in practice their mean, cannot be relied on. Weights
    without a tail give −∞, and fewer than 5 different ones in the tail NaN.

    Arguments:
        log_weights: Logarithms (n,) of the weights, up to a constant.
    """
    log_w = log_weights.detach().double().flatten().cpu()
    if log_w.isnan().any() or (log_w == math.inf).any() or not log_w.isfinite().any():
        raise ArgumentError("log_weights", "NaN, +∞ or nothing finite", "logarithms of weights")
    log_w = (log_w - log_w.max()).sort().values
    size = min(len(log_w) // 5, math.ceil(3 * math.sqrt(len(log_w))))
    if size < 5:
        return math.nan
    cut = log_w[-size - 1]
    tail = log_w[-size:]
    tail = tail[tail > cut + 1e-9]  # ties, and what rounding makes of them, are no tail
    tail = (tail.exp() - cut.exp()).clamp_min(1e-290)
    if len(tail) == 0:
        return -math.inf
    return _shape(tail) if len(tail) >= 5 else math.nan


def _shape(tail: Tensor) -> float:
    # The notation is theirs, with −k for k; tail (m,) is sorted and above zero.
    m = len(tail)
    points = 30 + int(math.sqrt(m))
    j = torch.arange(1, points + 1, dtype=torch.float64)
    quartile = tail[int(m / 4 + 0.5) - 1]
    theta = 1 / tail[-1] + (1 - (points / (j - 0.5)).sqrt()) / (3 * quartile)
    k = torch.log1p(-theta[:, None] * tail).mean(1)
    profile = m * ((-theta / k).log() - k - 1)
    mean = float((theta * torch.softmax(profile, 0)).sum())
    shape = float(torch.log1p(-mean * tail).mean())
    return (m * shape + 10 * 0.5) / (m + 10)


def _finite(argument: str, x: Tensor) -> Tensor:
    x = x.detach().double().cpu()
    if x.numel() == 0 or not x.isfinite().all():
        raise ArgumentError(argument, "nothing, NaN or infinite numbers", "finite numbers")
    return x


def _constant(centred: Tensor, series: Tensor) -> bool:
    r"""Whether a series varies by no more than its rounding."""
    scale = float(series.abs().max()) if series.numel() else 0.0
    return float(centred.abs().max()) <= 1e-14 * scale or scale == 0
