r"""EM for Gaussian mixtures: moments, starts, iterations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import as_part, as_weights, random
from limbeck.distributions import gaussians
from limbeck.distributions.gaussians import Moments, Statistics, has_matrices, least_variances
from limbeck.errors import ArgumentError
from limbeck.models.checks import Generator
from limbeck.progress import tracked

if TYPE_CHECKING:
    from limbeck.models.mixture import GaussianMixture

Numbers = arg.UserObject[object]  # a tensor, an array or a list


def parameters_of(moments: Moments, kind: str) -> dict[str, Tensor]:
    r"""The parameters of a mixture by name: the inverse of its `scale`, and of a softmax."""
    dim = moments.means.shape[-1]
    matrices = has_matrices(kind, dim)
    scale = gaussians.factor(moments.covariances, matrices)
    deviations = scale.diagonal(dim1=1, dim2=2) if matrices else scale
    parameters = {
        "logits": moments.weights.clamp_min(gaussians.TINY).log(),
        "means": moments.means,
        "log_scale": (deviations[:, :1] if kind == "spherical" else deviations).log(),
    }
    if matrices:
        parameters["below"] = scale.flatten(1).index_select(1, places_below(dim, scale.device))
    return parameters


def places_below(dim: int, device: torch.device) -> Tensor:
    r"""Numbers of the entries below the diagonal of a flattened matrix."""
    rows, columns = torch.tril_indices(dim, dim, -1, device=device)
    return rows * dim + columns


def numbers(argument: str, value: object, device: torch.device) -> Tensor:
    r"""Finite float64 numbers of a tensor, an array or a list."""
    return as_part(value, argument).values.to(device, torch.float64)


class Samples(NamedTuple):
    r"""Samples in float64 about their mean, so that squares lose no digits."""

    x: Tensor  # samples less their mean, (n, D)
    weight: Tensor  # (n,), above zero, with the sum n
    centre: Tensor  # their mean, (D,)
    variance: Tensor  # of each variable, (D,)

    @classmethod
    def of(cls, model: GaussianMixture, x: object, weight: object = None, name: str = "x") -> Self:
        r"""A user's samples for a mixture; constant variables and too few samples are refused."""
        device = model.means.device
        rows = model.rows(numbers(name, x, device), name)
        weights = as_weights(weight, len(rows), "weights")
        share = rows.new_ones(len(rows)) if weights is None else torch.from_numpy(weights).to(rows)
        rows, share = rows[share > 0], share[share > 0]
        if len(rows) < model.components:
            expected = f"at least as many as the {model.components} components"
            raise ArgumentError(name, f"{len(rows)} samples", expected)
        share = share / share.sum()
        centre = share @ rows
        variance = share @ (rows - centre).square()
        constant = variance <= (1e-14 * centre).square()  # the mean may have a rounding error
        if bool(constant.any()):
            received = f"samples whose variable {int(constant.nonzero()[0])} never changes"
            raise ArgumentError(name, received, "samples of a density")
        return cls(rows - centre, share * len(rows), centre, variance)


def started(samples: Samples, components: int, kind: str, generator: Generator) -> Moments:
    r"""A mixture with centres by k-means++, and covariances that are shrunk to a common one."""
    x, dim = samples.x, samples.x.shape[1]
    matrices = has_matrices(kind, dim)
    nearest = _spread(samples, components, generator)
    z = torch.nn.functional.one_hot(nearest, components).to(x).mT * samples.weight  # (K, n)
    counts = z.sum(1)
    means = z @ x / counts.unsqueeze(1)
    apart = x - means[nearest]
    squares = (z.unsqueeze(-1) * apart).mT @ apart if matrices else z @ apart.square()
    common = (dim + 2) * squares.sum(0) / len(x)  # counts as dim + 2 samples
    size = (counts + dim + 2).reshape(-1, *[1] * common.ndim)
    moments = Moments(counts, means, (squares + common) / size)
    least = least_variances(samples.variance, 1e-3, kind)
    statistics = gaussians.expected_statistics(moments, matrices)
    return gaussians.maximised(statistics, moments, kind, least)


def _spread(samples: Samples, components: int, generator: Generator) -> Tensor:
    r"""For each sample, the number of the nearest of K different centres: k-means++."""
    x, weight, _, variance = samples
    scaled, distance = x / variance.sqrt(), torch.ones_like(weight)
    nearest = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for k in range(components):
        chances = weight * distance
        if not chances.sum() > 0:
            expected = f"at least {components} different ones"
            raise ArgumentError("x", f"{k} different samples", expected)
        uniform, ends = random(torch.rand, (1,), x, generator), chances.cumsum(0)
        centre = torch.searchsorted(ends, uniform * ends[-1], right=True).clamp_max(len(x) - 1)
        new = (scaled - scaled[centre]).square().sum(1)
        closer = new < distance if k else torch.ones_like(nearest, dtype=torch.bool)
        distance, nearest = torch.where(closer, new, distance), nearest.where(~closer, k)
    return nearest


BLOCK = 2**22  # numbers of all components together that an E step holds at once


@dataclass(frozen=True)
class EMResult:
    r"""The result of EM."""

    log_likelihood: list[float]  # mean over samples, before each iteration and at the end
    iterations: int  # from the best start
    converged: bool  # whether the last iteration gained less than the tolerance
    reasons: tuple[str, ...] = ()  # problems of the mixture
    starts: tuple[float, ...] = ()  # the mean log likelihood that each start led to
    seconds: float = 0.0  # of all starts

    @property
    def trustworthy(self) -> bool:
        r"""Whether EM has converged, to a mixture without broken components."""
        return not self.reasons

    @property
    def verdict(self) -> str:
        r"""The same in a sentence."""
        end = f"{self.log_likelihood[-1]:.4f} nat a sample after {self.iterations:,} iterations"
        if self.trustworthy:
            return f"EM converged to {end}."
        return f"EM ended at {end}, but {'; '.join(self.reasons)}."

    def __str__(self) -> str:
        return self.verdict


@torch.no_grad()
@arg.checked_arguments
def fit_em(
    mixture: arg.UserObject[GaussianMixture], x: Numbers, weights: Numbers = None, *,
    iterations: arg.Count = 1000, tolerance: arg.FromZero = 1e-8, floor: arg.InnerFraction = 1e-6,
    restarts: arg.CountFromZero = 10, generator: Generator = None, progress: arg.Flag = True,
) -> EMResult:  # fmt: skip
    r"""Fit a mixture to samples, in place, by EM from several starts, and take the best.

    A start that ends with a collapsed component (at the floor of the variances, or without
    weight) is taken only if all do.

    Arguments:
        mixture: The mixture.
        x: Samples (n, D), a tensor or an array; of one variable, (n,) is accepted too.
        weights: The weight of each sample, (n,); 2 is the same as the sample twice. Default: 1.
        iterations: The largest number of iterations from each start. Default: 1,000.
        tolerance: Stop when the mean log likelihood gains less in an iteration. Default: 1e-8.
        floor: The least variance of a component, in units of the samples' variance. Default: 1e-6.
        restarts: Starts by k-means++; 0 continues from the present mixture. Default: 10.
        generator: Draws the starts. Default: torch's global one.
        progress: Whether to show a bar in a terminal. Default: True.

    >>> from limbeck.models.mixture import GaussianMixture
    >>> x = torch.cat([torch.linspace(-4, -2, 50), torch.linspace(2, 4, 50)])
    >>> fit_em(GaussianMixture(2), x, generator=torch.Generator().manual_seed(0)).converged
    True
    """
    began = time.monotonic()
    if not hasattr(mixture, "set_moments_"):
        raise ArgumentError("mixture", f"a {type(mixture).__name__}", "a GaussianMixture")
    samples, kind = Samples.of(mixture, x, weights), mixture.covariance
    least = least_variances(samples.variance, floor, kind)
    runs = []
    for _ in tracked(range(max(restarts, 1)), "EM", progress):
        if restarts:
            moments = started(samples, mixture.components, kind, generator)
        else:
            moments = mixture.moments(samples.centre)
        runs.append(Ascent(samples, moments, kind, least, iterations, tolerance))
    best = max(runs, key=lambda run: (not run.broken, run.history[-1]))
    mixture.set_moments_(best.moments, samples.centre)
    reasons, history = best.broken, best.history
    if not best.converged:
        gain = history[-1] - history[-2]
        reasons = (*reasons, f"iteration {iterations:,}, the last, still gained {gain:.1g}")
    starts, seconds = tuple(run.history[-1] for run in runs), time.monotonic() - began
    return EMResult(history, len(history) - 1, best.converged, reasons, starts, seconds)


class Ascent:
    r"""EM from one start, until the mean log likelihood gains no more than the tolerance."""

    def __init__(
        self, samples: Samples, moments: Moments, kind: str, least: Tensor, iterations: int,
        tolerance: float,
    ) -> None:  # fmt: skip
        self.samples, self.moments = samples, moments
        self.matrices = has_matrices(kind, samples.x.shape[1])
        self.history, self.converged = list[float](), False
        statistics = self._expect()
        for _ in range(iterations):
            self.moments = gaussians.maximised(statistics, self.moments, kind, least)
            statistics = self._expect()
            if self.history[-1] - self.history[-2] <= tolerance:
                self.converged = True
                break
        counts = self.moments.weights * len(samples.x)
        self.broken = troubles(self.moments, least, self.matrices, counts)

    def _expect(self) -> Statistics:
        r"""The statistics of all samples, block by block; their log likelihood is recorded."""
        x, weight = self.samples.x, self.samples.weight
        size = max(1, BLOCK // self.moments.means.numel())
        total, parts = 0.0, []
        for rows, w in zip(x.split(size), weight.split(size), strict=True):
            log_density, statistics = gaussians.expectations(rows, w, self.moments, self.matrices)
            total += (w @ log_density).item()
            parts.append(statistics)
        self.history.append(total / len(x))
        return Statistics(*(torch.stack(values).sum(0) for values in zip(*parts, strict=True)))


def troubles(moments: Moments, least: Tensor, matrices: bool, counts: Tensor) -> tuple[str, ...]:
    r"""The collapsed or empty components of a mixture, in words."""
    units, problems = (least.unsqueeze(-1) * least).sqrt() if matrices else least, []
    scaled = moments.covariances / units  # the least variance is one
    variances = (torch.linalg.eigvalsh(scaled) if matrices else scaled).amin(-1)
    for k, variance in enumerate(variances.tolist()):
        if counts[k] < 1:
            problems.append(f"component {k} has died out: its weight is {moments.weights[k]:.1g}")
        elif variance < 1 + 1e-6:
            problems.append(f"component {k} has collapsed: its variance is at the floor")
    return tuple(problems)
