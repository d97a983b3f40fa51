r"""Batch EM: the maximum likelihood of a mixture of Gaussians on samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limbeck.core.checks import number, whole_number
from limbeck.models.gaussians import (
    Moments,
    Statistics,
    expectations,
    has_matrices,
    least_variances,
    maximised,
    smallest_variances,
)
from limbeck.models.mixture_start import Samples, started
from limbeck.progress import tracked

if TYPE_CHECKING:
    from limbeck.models.mixture import GaussianMixture

__all__ = ["Ascent", "EMResult", "fit_em", "troubles"]

BLOCK = 2**22
r"""Numbers of all components together that an E step holds at once."""


@dataclass(frozen=True)
class EMResult:
    r"""What EM found.

    Attributes:
        log_likelihood: The mean log likelihood of the samples before each iteration, and at the
            end, of the start that was kept.
        iterations: Iterations from that start.
        converged: Whether the last of them gained less than the tolerance.
        reasons: What speaks against the mixture, in words; nothing, if all is well.
        starts: The mean log likelihood that each start led to.
        seconds: Wall-clock seconds of all starts.
    """

    log_likelihood: list[float]
    iterations: int
    converged: bool
    reasons: tuple[str, ...] = ()
    starts: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def trustworthy(self) -> bool:
        r"""Whether EM has converged, to a mixture without broken components."""
        return not self.reasons

    @property
    def verdict(self) -> str:
        r"""The same in a sentence."""
        found = f"{self.log_likelihood[-1]:.4f} nat a sample after {self.iterations:,} iterations"
        if self.trustworthy:
            return f"EM converged to {found}."
        return f"EM ended at {found}, but {'; '.join(self.reasons)}."

    def __str__(self) -> str:
        return self.verdict


@torch.no_grad()
def fit_em(
    mixture: GaussianMixture,
    x: Any,
    weights: Any = None,
    *,
    iterations: int = 1000,
    tolerance: float = 1e-8,
    floor: float = 1e-6,
    restarts: int = 10,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> EMResult:
    r"""Fit a mixture to samples, in place, by EM from several starts; the best is kept.

    A start that ends with a collapsed component (one that sits on a sample or two, at the floor
    of the variances, or has died out) is kept only if all do, whatever its likelihood.

    Arguments:
        mixture: The mixture.
        x: Samples (n, D), a tensor or an array; of one variable, (n,) is taken too.
        weights: How much each counts, (n,); a weight of 2 is as good as having the sample twice.
        iterations: The most iterations from each start.
        tolerance: Stop where the mean log likelihood gains less than this in an iteration.
        floor: The least variance of a component, in units of the samples' variance.
        restarts: Starts by k-means++; 0 goes on from where the mixture is.
        generator: Where starts are drawn from; None is torch's global one.
        progress: Whether to show a bar, if a terminal is there.

    >>> from limbeck.models.mixture import GaussianMixture
    >>> x = torch.cat([torch.linspace(-4, -2, 50), torch.linspace(2, 4, 50)])
    >>> mixture = GaussianMixture(2)
    >>> fit_em(mixture, x, generator=torch.Generator().manual_seed(0)).converged
    True
    >>> [round(each, 2) for each in sorted(mixture.means.flatten().tolist())]
    [-3.0, 3.0]
    """
    began = time.monotonic()
    limit = whole_number("iterations", iterations, "a whole number from 1", least=1)
    tolerance = number("tolerance", tolerance, "a number from 0", lambda value: value >= 0)
    floor = number("floor", floor, "a number between 0 and 1", lambda value: 0 < value < 1)
    count = whole_number("restarts", restarts, "a whole number from 0", least=0)
    samples = Samples.of(mixture, x, weights)
    kind = mixture.covariance
    least = least_variances(samples.variance, floor, kind)
    runs = []
    for _ in tracked(range(max(count, 1)), "EM", progress):
        if count:
            moments = started(samples, mixture.components, kind, generator)
        else:
            moments = samples.centred(mixture.moments())
        runs.append(Ascent(samples, moments, kind, least))
        runs[-1].run(limit, tolerance)
    best = max(runs, key=lambda run: (not run.broken, run.history[-1]))
    mixture.set_moments_(samples.placed(best.moments))
    reasons = best.broken
    if not best.converged:
        gain = best.history[-1] - best.history[-2]
        reasons = (*reasons, f"iteration {limit:,}, the last, still gained {gain:.1g}")
    return EMResult(
        best.history,
        len(best.history) - 1,
        best.converged,
        reasons,
        tuple(run.history[-1] for run in runs),
        time.monotonic() - began,
    )


class Ascent:
    r"""EM from one start.

    Arguments:
        samples: Samples, about their mean.
        moments: The start, about the same mean.
        kind: The kind of covariances.
        least: The least variance along each variable, (D,).
    """

    def __init__(self, samples: Samples, moments: Moments, kind: str, least: Tensor) -> None:
        self.samples, self.moments, self.kind, self.least = samples, moments, kind, least
        self.matrices = has_matrices(kind, samples.x.shape[1])
        self.history: list[float] = []
        self.converged = False

    def run(self, limit: int, tolerance: float) -> None:
        r"""Iterate, until the mean log likelihood gains no more than the tolerance."""
        value, statistics = self._expect()
        self.history.append(value)
        for _ in range(limit):
            self.moments = maximised(statistics, self.moments, self.kind, self.least)
            value, statistics = self._expect()
            self.history.append(value)
            if self.history[-1] - self.history[-2] <= tolerance:
                self.converged = True
                break
        counts = self.moments.weights * len(self.samples.x)
        self.broken = troubles(self.moments, self.least, self.matrices, counts)

    def _expect(self) -> tuple[float, Statistics]:
        r"""The mean log likelihood and the statistics of all samples, block by block."""
        x, weight = self.samples.x, self.samples.weight
        size = max(1, BLOCK // (self.moments.means.numel()))
        total, parts = 0.0, []
        for rows, w in zip(x.split(size), weight.split(size), strict=True):
            log_density, statistics = expectations(rows, w, self.moments, self.matrices)
            total += (w @ log_density).item()
            parts.append(statistics)
        summed = [torch.stack(each).sum(0) for each in zip(*parts, strict=True)]
        return total / len(x), Statistics(*summed)


def troubles(moments: Moments, least: Tensor, matrices: bool, counts: Tensor) -> tuple[str, ...]:
    r"""What is wrong with the components of a mixture, in words.

    Arguments:
        moments: The mixture.
        least: The least variance along each variable, (D,).
        matrices: Whether covariances are matrices.
        counts: How many samples each component has, (K,); below one it has died out.
    """
    found = []
    variances = smallest_variances(moments.covariances, least, matrices)
    for k, variance in enumerate(variances.tolist()):
        if counts[k] < 1:
            found.append(f"component {k} has died out: its weight is {moments.weights[k]:.1g}")
        elif variance < 1 + 1e-6:
            found.append(f"component {k} has collapsed: its variance is at the floor")
    return tuple(found)
