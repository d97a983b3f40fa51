r"""Where EM starts from: samples as it wants them, and components spread over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.gaussians import (
    Moments,
    expected_statistics,
    has_matrices,
    least_variances,
    maximised,
)
from limbeck.models.mixture_moments import numbers

if TYPE_CHECKING:
    from limbeck.models.mixture import GaussianMixture

__all__ = ["Samples", "started"]

LEAST = 1e-3
r"""The least variance that a component starts with, in units of the samples'."""


class Samples(NamedTuple):
    r"""Samples in float64 about their mean, so that squares lose no digits.

    Attributes:
        x: Samples less their mean, (n, D).
        weight: How much each counts, (n,), above zero and with the sum n.
        centre: Their mean, (D,).
        variance: The variance of each variable, (D,).
    """

    x: Tensor
    weight: Tensor
    centre: Tensor
    variance: Tensor

    @classmethod
    def of(
        cls, mixture: GaussianMixture, x: Any, weight: Any = None, argument: str = "x"
    ) -> Samples:
        r"""Samples of the user's for a mixture; what no density can be fitted to is refused."""
        device = mixture.means.device
        rows = mixture.rows(numbers(argument, x, device), argument)
        share = rows.new_ones(len(rows))
        if weight is not None:
            share = numbers("weights", weight, device)
            if share.shape != (len(rows),) or bool((share < 0).any()):
                received = f"shape {tuple(share.shape)}, with {int((share < 0).sum())} below zero"
                raise ArgumentError("weights", received, f"{len(rows)} nonnegative numbers")
            rows, share = rows[share > 0], share[share > 0]
        if len(rows) < mixture.components:
            accepted = f"at least as many as the {mixture.components} components"
            raise ArgumentError(argument, f"{len(rows)} samples", accepted)
        share = share / share.sum()
        centre = share @ rows
        variance = share @ (rows - centre).square()
        # of equal numbers the mean may be off by a rounding error
        constant = variance <= (1e-14 * centre).square()
        if bool(constant.any()):
            which = int(constant.nonzero()[0])
            received = f"samples whose variable {which} never changes"
            raise ArgumentError(argument, received, "samples of a density")
        return cls(rows - centre, share * len(rows), centre, variance)

    def placed(self, moments: Moments) -> Moments:
        r"""Moments of these samples as moments of the user's."""
        return moments._replace(means=moments.means + self.centre)

    def centred(self, moments: Moments) -> Moments:
        r"""The inverse."""
        return moments._replace(means=moments.means - self.centre)


def started(
    samples: Samples, components: int, kind: str, generator: torch.Generator | None
) -> Moments:
    r"""A mixture spread over samples: centres by k-means++, each with the samples nearest to it.

    Covariances are those of the samples of each centre, drawn to what all centres have in
    common: a centre with few samples does not start collapsed.

    Arguments:
        samples: Samples, about their mean.
        components: The number of components K.
        kind: The kind of covariances.
        generator: Where centres are drawn from; None is torch's global one.
    """
    x, weight, _, variance = samples
    dim = x.shape[1]
    matrices = has_matrices(kind, dim)
    nearest = _spread(samples, components, generator)
    z = torch.nn.functional.one_hot(nearest, components).to(x).mT * weight  # (K, n)
    counts = z.sum(1)
    means = z @ x / counts.unsqueeze(1)
    apart = x - means[nearest]
    own = (z.unsqueeze(-1) * apart).mT @ apart if matrices else z @ apart.square()
    common = (dim + 2) * own.sum(0) / len(x)  # that many samples' worth of what all have in common
    size = (counts + dim + 2).reshape(-1, *[1] * common.ndim)
    moments = Moments(counts, means, (own + common) / size)
    statistics = expected_statistics(moments, matrices)
    return maximised(statistics, moments, kind, least_variances(variance, LEAST, kind))


def _spread(samples: Samples, components: int, generator: torch.Generator | None) -> Tensor:
    r"""For each sample, the number of the nearest of K different centres: k-means++."""
    x, weight, _, variance = samples
    lives = x.device if generator is None else generator.device
    scaled = x / variance.sqrt()
    distance = torch.ones_like(weight)
    nearest = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for k in range(components):
        chances = weight * distance
        if not chances.sum() > 0:
            accepted = f"at least {components} different ones"
            raise ArgumentError("x", f"{k} different samples", accepted)
        uniform = torch.rand(1, generator=generator, device=lives, dtype=x.dtype).to(x.device)
        ends = chances.cumsum(0)
        which = torch.searchsorted(ends, uniform * ends[-1], right=True).clamp_max(len(x) - 1)
        new = (scaled - scaled[which]).square().sum(1)
        closer = new < distance if k else torch.ones_like(nearest, dtype=torch.bool)
        distance, nearest = torch.where(closer, new, distance), nearest.where(~closer, k)
    return nearest
