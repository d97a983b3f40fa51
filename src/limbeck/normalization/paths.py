r"""Paths from a density with a known normaliser to a target: log p̃_t = max(1 − t, 0) A + t B."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from limbeck.errors import ArgumentError, NotDifferentiableError
from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.normalization.densities import Densities, place_of
from limbeck.posteriors.coordinates import Affine
from limbeck.samplers.chains import start_events
from limbeck.samplers.hmc import Point, StepSize, differentiate, move
from limbeck.samplers.pairwise import Pairwise, draw_values
from limbeck.samplers.slice import Slice
from limbeck.supports import Binary, Discrete

RECOMPUTED = 32  # sweeps after which log densities are computed anew, against rounding
CHAINS, SWEEPS = 400, 100  # of short chains that the start of a path is fitted to
WIDER = 1.2  # the standard deviations of a Gaussian start, in those of these chains
STEP_SIZES = 17  # places on a path that have a step size each
MAX_LEAPFROG_STEPS = 40

Position = float | Tensor  # t, of all chains or (n,) of each
T = TypeVar("T")


class LinearPath(Protocol):
    r"""A path whose chains have a state of the path's own, here called x; by default, events."""

    log_z: float  # at t = 0

    def sample(self, n: int, generator: torch.Generator) -> Any:
        r"""The state of n chains that are draws at t = 0."""

    def parts(self, x: Any) -> tuple[Tensor, Tensor]:
        r"""A and B of every chain, (n,), in float64."""

    def advance(self, x: Any, t: Position, generator: torch.Generator) -> Any:
        r"""The state after a sweep that leaves p_t invariant."""

    def climb(
        self, x: Any, before: float, after: float, generator: torch.Generator
    ) -> tuple[Tensor, Any]:
        r"""Logarithms of weights (n,) of chains that move from one t to another, and their state.

        Weighted draws of p_before become weighted draws of p_after.
        """

    def events(self, x: Any) -> Tensor:
        r"""The events (n, *shape) of the chains."""
        return x

    def select(self, x: Any, rows: Tensor) -> Any:
        r"""The state of some of the chains."""
        return x[rows]


class PairsError(Exception):
    r"""Couplings of pairs of sites do not give the log density of some event."""


def along_path(densities: Densities, run: Callable[[Any], T], fitted: bool = True) -> T:
    r"""The result of a run along the path to a target, by pairs of sites if these suffice."""
    try:
        return run(path_of(densities, fitted))
    except PairsError:
        return run(path_of(densities, fitted, pairs=False))


def path_of(densities: Densities, fitted: bool = True, pairs: bool = True) -> LinearPath:
    r"""The path to a target from independent sites or normal events.

    If `fitted`, sites are as if couplings averaged out, or have the means of an RBM's chains.
    `pairs` looks for couplings of pairs; `check_pairs` raises `PairsError` if there are others.
    """
    target = densities.target
    if not isinstance(support := densities.support, Discrete):
        return GaussianPath(densities)
    if isinstance(target, RBM):
        return PairwisePath(_as_pairs(target), densities, fitted)
    if not isinstance(target, Energy):
        target = Energy(lambda x: -densities.target.log_unnormalized(x), support)
    count = max(CHAINS, support.size * support.count)
    x = start_events(densities, "target", count, densities.generator("couplings"))
    couplings = target._pairs_at(x) if pairs else None
    if couplings is None:
        return SitePath(target, support)
    return PairwisePath(couplings, densities, fitted)


def check_pairs(path: Any, densities: Densities, x: Tensor) -> None:
    r"""Compare a path of pairs of sites with the target, at events (n, *shape)."""
    if not isinstance(path, PairwisePath) or path.hidden:
        return
    if not path.pairs.agrees(x, densities.target.log_unnormalized(x)):
        raise PairsError


def _as_pairs(rbm: RBM) -> Pairwise:
    r"""Visible and hidden units as two groups of sites."""
    size, total = rbm.visible, rbm.visible + rbm.hidden
    W, fields = rbm.W.detach(), torch.cat([rbm.a, rbm.b]).detach()
    couplings = W.new_zeros(total, total)
    couplings[:size, size:], couplings[size:, :size] = W, W.T
    groups = ((size, total, 0, size), (0, size, size, total))  # first the hidden units
    sites = torch.arange(total, device=W.device)
    return Pairwise(Binary(total), rbm.constant, fields, couplings, sites, groups)


class SitePath(LinearPath):
    r"""The powers p̃(x)^t of any discrete target, by sweeps site by site."""

    def __init__(self, energy: Energy, support: Discrete) -> None:
        self.energy, self.support, self.log_z = energy, support, support.log_count

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.support.start(n, generator, *place_of(self.energy))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log = self.energy.log_unnormalized(x).double()
        return torch.zeros_like(log), log

    def advance(self, x: Tensor, t: Position, generator: torch.Generator) -> Tensor:
        return self.energy.sites(x, 1, generator, beta=t)

    def climb(
        self, x: Tensor, before: float, after: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        log = self.energy.log_unnormalized(x)
        moved = self.energy.sites(x, 1, generator, beta=after, known=log)
        return (after - before) * log.double(), moved


class PairState(NamedTuple):
    r"""Features (M, n) of chains, and B − A (n,) in float64."""

    features: Tensor
    slope: Tensor
    sweeps: int = 0


class PairwisePath:
    r"""From independent sites to sites that interact in pairs, in small steps of t.

    t changes before each group of sites that is swept, with that group summed out: this is a step
    for each group, and weights that vary less.
    """

    def __init__(self, pairs: Pairwise, densities: Densities, fitted: bool) -> None:
        self.pairs, self.support = pairs, densities.support
        self.others = pairs.support.count - 1
        self.hidden = pairs.support.size - self.support.size  # units that events do not show
        self.base = torch.zeros_like(pairs.fields)
        if fitted:
            self.base = self._base(densities.generator("base"))
        self.log_z = float(self._log_sums(self.base[:, None].double()).sum())

    def _base(self, generator: torch.Generator) -> Tensor:
        r"""Log odds of the start: where couplings average out, or of the means of an RBM's chains.

        The means of chains of one phase would keep annealing from the others.
        """
        even = torch.full_like(self.pairs.fields, 1 / (self.others + 1))[:, None]
        if not self.hidden:
            odds = [self.pairs.odds(k, even)[1] for k in range(len(self.pairs.groups))]
            return torch.cat(odds).flatten()
        state = self.sample(CHAINS, generator)
        for _ in range(SWEEPS):
            state = self.advance(state, 1.0, generator)
        counts = state.features.double().sum(1)
        base = ((counts + 1) / (CHAINS + 1 - counts)).log()
        base[(counts - CHAINS / 2).abs() < 2 * math.sqrt(CHAINS)] = 0
        base[self.support.size :] = 0  # the odds of hidden units depend on the visible ones
        return base.to(even)

    def sample(self, n: int, generator: torch.Generator) -> PairState:
        features = self.base[:, None].repeat(1, n)
        draw_values(features.clone(), self.others, generator, features)
        return self._state(features)

    def _state(self, features: Tensor) -> PairState:
        log = self.pairs.log_density(features).double()
        return PairState(features, log - (self.base @ features).double())

    def select(self, x: PairState, rows: Tensor) -> PairState:
        return PairState(x.features[:, rows], x.slope[rows])

    def parts(self, x: PairState) -> tuple[Tensor, Tensor]:
        base = (self.base @ x.features).double()
        return base, base + x.slope

    def advance(self, x: PairState, t: Position, generator: torch.Generator) -> PairState:
        return self.climb(x, t, t, generator)[1]

    def climb(
        self, x: PairState, before: Position, after: Position, generator: torch.Generator
    ) -> tuple[Tensor, PairState]:
        features, slope, sweeps = x
        if sweeps % RECOMPUTED == 0:
            slope = self._state(features).slope
        gain, count = torch.zeros_like(slope), len(self.pairs.groups)
        for k in range(count):
            here, rise = self.pairs.odds(k, features)
            rise -= self.base[here, None]  # how log odds change with t
            rest = slope - (features[here] * rise).sum(0)  # without this group of sites
            if after is before:
                odds = self._odds(here, rise, after)
            else:
                low, high = (before + (after - before) * (k + step) / count for step in (0, 1))
                odds = self._odds(here, rise, high)
                before_odds = self._odds(here, rise, low)
                gain += (high - low) * rest
                gain += self._change(before_odds, rise * (high - low), odds)
            draw_values(odds, self.others, generator, features[here])
            slope = rest + (features[here] * rise).sum(0)
        return gain, PairState(features, slope, sweeps + 1)

    def events(self, x: PairState) -> Tensor:
        if self.hidden:
            return x.features[: self.support.size].T.contiguous()
        return self.pairs.events(x.features)

    def _odds(self, here: slice, rise: Tensor, t: Position) -> Tensor:
        t = t.to(rise) if isinstance(t, Tensor) else t
        return torch.add(self.base[here, None], rise * t)

    def _change(self, before: Tensor, rise: Tensor, after: Tensor) -> Tensor:
        r"""The change (n,) of the logarithm of the sum over all values of a group of sites.

        Many small steps add up: their rounding, which is the same in all chains, may be no more
        than a small part of each. So it is log(1 + Σ p (exp(rise) − 1)), with probabilities p.
        """
        if float(rise.abs().max()) > 1:
            return (self._log_sums(after) - self._log_sums(before)).sum(0, dtype=torch.float64)
        if self.others == 1:
            gain = before.sigmoid().mul_(rise.expm1())
        else:
            shape = len(before) // self.others, self.others, -1
            share = (before.reshape(shape) - self._log_sums(before)[:, None]).exp_()
            gain = share.mul_(rise.expm1().reshape(shape)).sum(1)
        return gain.log1p_().sum(0, dtype=torch.float64)

    def _log_sums(self, odds: Tensor) -> Tensor:
        r"""log(1 + Σ exp(odds)) over the further values of each site, (sites, n)."""
        odds = odds.reshape(-1, self.others, odds.shape[1])
        return torch.cat([torch.zeros_like(odds[:, :1]), odds], 1).logsumexp(1)


class GaussianPath(LinearPath):
    r"""From a normal distribution, fitted to short chains, to a density over real numbers.

    Chains move by HMC, with a step size for each part of the path that is adapted while `adapting`;
    or by slice sampling, where there are no derivatives.
    """

    def __init__(self, densities: Densities, power: float = 1.0) -> None:
        self.target, self.support, self.power = densities.target, densities.support, power
        generator = densities.generator("base")
        x = start_events(densities, "target", CHAINS, generator)
        x = x[densities.log_target(x) > -math.inf]
        if len(x) < 8:
            expected = "a density above zero at starts: a target.start(n, generator)"
            raise ArgumentError("target", "a density of zero at its starts", expected)
        rows = self.target.advance(x, SWEEPS, generator).flatten(1).double()
        n, size = rows.shape
        rows = rows[rows.isfinite().all(1)]
        covariance = torch.cov(rows.T).reshape(size, size)
        shrink = min(1.0, size / n)  # towards independent coordinates
        diagonal = covariance.diagonal().clamp_min(1e-12)
        covariance = (1 - shrink) * covariance + shrink * diagonal.diag()
        wider = WIDER / math.sqrt(min(power, 1.0))
        factor = (wider * torch.linalg.cholesky(covariance)).to(x.dtype)
        self.normal, self.log_z = Affine(rows.mean(0).to(x.dtype), factor), 0.0
        self.constant = -size / 2 * math.log(2 * math.pi) - self.normal.log_volume
        self.adapting, first = True, size**-0.25
        self.sizes = [StepSize(first, 0.8) for _ in range(STEP_SIZES)]
        self.step_sizes = x.new_full((STEP_SIZES,), first)
        self.differentiable = size > 1
        try:
            rows = self.sample(8, generator)
            differentiate(lambda x: self.log_unnormalized(x, 0.5), rows)
        except (NotDifferentiableError, RuntimeError):
            self.differentiable = False

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.normal.mean
        noise = torch.randn(n, len(like), generator=generator, device=like.device, dtype=like.dtype)
        return self.normal.back(noise)

    def events(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.support.shape)

    def _log_normal(self, x: Tensor) -> Tensor:
        return self.constant - self.normal.distance(x) / 2

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log = self.power * self.target.log_unnormalized(self.events(x)).double()
        return self._log_normal(x).double(), log

    def log_unnormalized(self, x: Tensor, t: Position) -> Tensor:
        r"""log p̃_t (n,), −∞ where it is no number."""
        log = self.power * self.target.log_unnormalized(self.events(x))
        t = torch.as_tensor(t, dtype=log.dtype, device=log.device)
        total = (1 - t).clamp_min(0) * self._log_normal(x) + torch.where(t > 0, t * log, 0.0)
        return torch.where(total.isnan(), -math.inf, total)

    def climb(
        self, x: Tensor, before: float, after: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        base, log = self.parts(x)
        gain = (after - before) * (log - base)
        return gain, self.advance(x, after, generator)

    def advance(self, x: Tensor, t: Position, generator: torch.Generator) -> Tensor:
        t = torch.as_tensor(t, dtype=x.dtype, device=x.device).expand(len(x))
        if not self.differentiable:
            return self._slices(x, t, generator)
        place = (t.clamp(0, 1) * (STEP_SIZES - 1)).round().long()
        step = (self.step_sizes[place] / t.clamp_min(1).sqrt())[:, None]
        uniform = torch.rand(step.shape, generator=generator, device=x.device, dtype=x.dtype)
        count = ((0.33 + 0.67 * uniform) * 2.4 / step).ceil().clamp_max(MAX_LEAPFROG_STEPS)

        def evaluate(rows: Tensor) -> Point:
            return differentiate(lambda x: self.log_unnormalized(x, t), rows)

        moved = move(evaluate, evaluate(x), step, self.normal.factor / WIDER, count, generator)
        if self.adapting:
            for k in place.unique().tolist():
                accepted = moved.acceptance[place == k].clamp_min(0.1)
                size = self.sizes[k]
                size.update(float(1 / (1 / accepted).mean()))
                self.step_sizes[k] = min(math.exp(size.log), 2.0)
        return moved.end.x

    def _slices(self, x: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        x, width = x.clone(), 2 * self.normal.factor.norm(dim=1)
        for level in t.unique().tolist():
            rows = t == level
            density = lambda u, level=level: self.log_unnormalized(u, level)  # noqa: E731
            x[rows] = Slice(density, x[rows], width, generator=generator).step()
        return x

    def fix(self) -> None:
        r"""End the adaptation: later sweeps leave p_t invariant exactly."""
        if self.adapting:
            means = [min(math.exp(size.mean), 2.0) for size in self.sizes]
            self.step_sizes, self.adapting = self.step_sizes.new_tensor(means), False
