r"""Do the kernels of an annealing path do what they should? They are run, and compared."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ArgumentError, LimbeckError
from limbeck.models.energy import Energy, EnergyPath
from limbeck.normalization.densities import Densities
from limbeck.normalization.repeatability import EVENTS

__all__ = ["check_path"]

BASE, CHAINS, SWEEPS = 8000, 2000, 10
r"""Events of the base, chains that start at some of them, and their sweeps."""

LIMIT = 5.5
r"""A z-score that chance gives in 1 of 10⁵ checks, of a hundred statistics each."""

COORDINATES = 64
r"""Variables whose means are compared, at most."""

INEXACT = 0.3
r"""Standard deviations that chains may move if their kernel is said to be inexact."""

MULTIPLIER = (
    "an advance(x, sweeps, generator, beta) that leaves exp(−beta · fn / temperature) invariant, "
    "from beta = 0, all events alike, to beta = 1, the target itself. If your beta is something "
    "else, such as a physical inverse temperature, rename that argument: without one called beta, "
    "annealing uses limbeck's own site-wise Gibbs sampling"
)


@torch.no_grad()
def check_path(path: Any, densities: Densities, reverse: bool) -> None:
    r"""Refuse a path that does not end at the target, or whose kernels lead elsewhere.

    An `advance` of the user's with an argument `beta` must do at beta=1.0 what it does without, and
    leave the densities of the path invariant. At β = 0 the path gives exact draws; at a small β
    these are weighted. Sweeps may change no mean of them, however slowly or quickly they mix.

    Arguments:
        path: The path.
        densities: The target.
        reverse: Whether the reversed kernels will be used too.
    """
    if callable(path.log_unnormalized):
        _check_end(path, densities)
    if not isinstance(path, EnergyPath) or not path.energy.tempers:
        return
    x = path.sample(BASE, densities.generator("path, to check it"))
    _check_default(path.energy, x, densities)
    for beta in (0.0, _small_beta(path, x)):
        log_w = (path.log_unnormalized(x, beta) - path.log_unnormalized(x, 0.0)).double()
        for back in (False, True) if reverse else (False,):
            generator = densities.generator(f"kernels at {beta}, {back}")
            weight = log_w.softmax(0)
            chosen = torch.multinomial(weight, CHAINS, True, generator=generator)
            moved = x[chosen]
            features = _Features(moved, densities)
            try:
                for _ in range(SWEEPS):
                    moved = path.advance(moved, beta, generator, reverse=back)
                after = features(densities.support.check(moved, "advance"))
            except LimbeckError as error:
                raise ArgumentError("advance", f"{error} (at beta={beta:g})", MULTIPLIER) from error
            except ArithmeticError as error:
                received = f"{type(error).__name__}: {error} at beta={beta:g}"
                raise ArgumentError("advance", received, MULTIPLIER) from error
            before = features(x)
            mean = weight @ before
            spread = (weight @ (before - mean).square()).sqrt()
            # The two errors are not independent where chains mix slowly: they add, at most.
            noise = (weight.square() @ (before - mean).square()).sqrt() + after.std(0) / CHAINS**0.5
            gap = (after.mean(0) - mean).abs()
            if not densities.exact:
                gap = torch.where(gap > INEXACT * spread, gap, 0.0)
            if (z := _largest(gap, noise)) > LIMIT:
                received = (
                    f"sweeps at beta={beta:.3g} that lead away from the density they should leave "
                    f"as it is (z = {z:.1f})"
                )
                raise ArgumentError("advance", received, MULTIPLIER)


def _check_end(path: Any, densities: Densities) -> None:
    r"""Refuse a path to something else than the target."""
    x = path.sample(EVENTS, densities.generator("end of the path")).to(densities.dtype)
    end = path.log_unnormalized(x, 1.0).double()
    own = densities.log_target(x)
    both = end.isfinite() & own.isfinite()
    scale = max(1.0, float(own[both].abs().max())) if both.any() else 1.0
    if ((end - own)[both].abs() > 1e-3 * scale).any() or (end.isfinite() != own.isfinite()).any():
        received = "a path whose log density at beta=1.0 is not that of the target"
        raise ArgumentError("path", received, "log_unnormalized(x, 1.0) equal to the target's")


def _check_default(energy: Energy, x: Tensor, densities: Densities) -> None:
    r"""Refuse an `advance` that goes elsewhere with beta=1.0 than without."""
    one, other = x[:CHAINS], x[CHAINS : 2 * CHAINS]
    plain = energy.advance(one.clone(), SWEEPS, densities.generator("kernel"))
    at_one = energy.advance_at(one.clone(), SWEEPS, densities.generator("kernel"), beta=1.0)
    if float((plain == at_one).flatten(1).all(1).double().mean()) > 0.99:  # but for rounding
        return
    # It may use random numbers in another way: other starts and numbers, and the same means.
    at_one = energy.advance_at(other.clone(), SWEEPS, densities.generator("other"), beta=1.0)
    features = _Features(torch.cat([plain, at_one]), densities)
    a, b = features(plain), features(at_one)
    error = ((a.var(0) + b.var(0)) / CHAINS).sqrt()
    if (z := _largest((a.mean(0) - b.mean(0)).abs(), error)) > LIMIT:
        received = f"chains that go elsewhere with beta=1.0 than without it (z = {z:.1f})"
        raise ArgumentError("advance", received, MULTIPLIER)


def _small_beta(path: Any, x: Tensor) -> float:
    r"""The largest of 1, ½, ¼, … at which weights of the base's events are still good."""
    base, beta = path.log_unnormalized(x, 0.0), 1.0
    for _ in range(40):
        share = (path.log_unnormalized(x, beta) - base).double().softmax(0)
        if float(1 / share.square().sum()) > len(x) / 4:
            break
        beta /= 2
    return beta


def _largest(gap: Tensor, error: Tensor) -> float:
    z = torch.where(gap > 1e-9, gap / error, 0.0)
    return float(z.nan_to_num(0.0, math.inf).max())


class _Features:
    r"""Bounded statistics (n, k) of events: log p̃, its square, and a number of variables.

    Arguments:
        x: Events that say how far each of them reaches.
        densities: The target.
    """

    def __init__(self, x: Tensor, densities: Densities) -> None:
        self.densities = densities
        raw = self._raw(x)
        finite = torch.where(raw.isfinite(), raw, raw[raw.isfinite()].mean())
        ends = torch.tensor([0.005, 0.995], dtype=raw.dtype, device=raw.device)
        self.low, self.high = finite.quantile(ends, dim=0)
        self.middle = finite[:, 0].median()

    def __call__(self, x: Tensor) -> Tensor:
        raw = self._raw(x).nan_to_num(0.0, math.inf, -math.inf).clamp(self.low, self.high)
        return torch.cat([raw, (raw[:, :1] - self.middle).square()], 1)

    def _raw(self, x: Tensor) -> Tensor:
        log = self.densities.log_target(x)
        return torch.cat([log[:, None], x.flatten(1)[:, :COORDINATES].double()], 1)
