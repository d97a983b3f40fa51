r"""Paths from a density with a known normaliser to a target: log p̃_t = max(1 − t, 0) A + t B."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from limbeck.errors import ArgumentError, NotDifferentiableError
from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.normalization.densities import Densities, moments, place_of
from limbeck.normalization.regions import MAX_SIZE, Box, RealSearch
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
MAX_NORMALS = 6  # at peaks that short chains miss
LEAST = 0.1  # the share of each normal distribution at the start of a path

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
        base, log = self.parts(x)
        return (after - before) * (log - base), self.advance(x, after, generator)

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
    count = max(CHAINS, support.size * support.count // 8)
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


class Normals:
    r"""A mixture of normal distributions of rows, by means (k, size), factors and shares (k,)."""

    def __init__(self, means: Tensor, factors: Tensor, shares: Tensor) -> None:
        self.means, self.factors, self.shares = means, factors, shares
        self.inverses = torch.linalg.inv(factors.double()).to(means)
        volume = means.shape[1] / 2 * math.log(2 * math.pi) + factors.double().slogdet().logabsdet
        self.constants = (shares.double().log() - volume).to(means)[:, None]

    def logs(self, x: Tensor) -> Tensor:
        r"""Log densities (k, n) of rows, with their shares."""
        whitened = (x - self.means[:, None]) @ self.inverses.mT
        return self.constants - whitened.square().sum(2) / 2

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        like = self.means
        x = torch.randn(n, like.shape[1], generator=generator, device=like.device, dtype=like.dtype)
        part = torch.multinomial(self.shares, n, True, generator=generator)
        for k, (mean, factor) in enumerate(zip(self.means, self.factors, strict=True)):
            x[part == k] = mean + x[part == k] @ factor.T
        return x


class GaussianPath(LinearPath):
    r"""From normal distributions, fitted to short chains and peaks, to a density over real numbers.

    Chains move by HMC, on the scale of each normal distribution in turn, with step sizes for each
    part of the path that are adapted while `adapting`; or by slice sampling, where there are no
    derivatives.
    """

    def __init__(self, densities: Densities, power: float = 1.0) -> None:
        self.target, self.support, self.power = densities.target, densities.support, power
        self.log_z, self.adapting, self.turn = 0.0, True, 0
        generator = densities.generator("base")
        x = start_events(densities, "target", CHAINS, generator)
        x = x[densities.log_target(x) > -math.inf]
        if len(x) < 8:
            expected = "a density above zero at starts: a target.start(n, generator)"
            raise ArgumentError("target", "a density of zero at its starts", expected)
        began, left = time.monotonic(), densities.time_left()
        x = self._short_chains(x, began + 0.25 * left, generator)
        boxes, shares = self._missed(densities, x, began + 0.5 * left)
        mean, factor = moments(x)
        means = torch.stack([mean, *(box.peak.to(mean) for box in boxes)])
        factors = torch.stack([factor, *(box.factor.to(mean) for box in boxes)])
        wider = WIDER / math.sqrt(min(power, 1.0))
        rest = max(1 - sum(shares), LEAST)
        weights = torch.tensor([rest, *(max(share, LEAST) for share in shares)])
        self._set(means.to(x), wider * factors.to(x), (weights / weights.sum()).to(x))

    def _set(self, means: Tensor, factors: Tensor, shares: Tensor) -> None:
        r"""Begin with other normal distributions, and step sizes to be adapted."""
        first = means.shape[1] ** -0.25
        self.normals = Normals(means, factors, shares)
        self.sizes = [[StepSize(first, 0.8) for _ in range(STEP_SIZES)] for _ in means]
        self.step_sizes = means.new_full((len(means), STEP_SIZES), first)

    def _short_chains(self, x: Tensor, end: float, generator: torch.Generator) -> Tensor:
        r"""Rows (n, size) after sweeps from events (n, *shape), until a time."""
        rows, target = x.flatten(1), self.target
        own = callable(getattr(target, "advance", None))
        own = own and getattr(target, "sampler", True) is not None  # not an energy's default
        mean, factor = moments(rows)
        self._set(mean[None], factor[None], rows.new_ones(1))
        self.differentiable = rows.shape[1] > 1
        try:
            differentiate(lambda x: self.log_unnormalized(x, 0.5), rows[:8])
        except (NotDifferentiableError, RuntimeError):
            self.differentiable = False
        for done in range(1, SWEEPS + 1):
            if own:
                x = target.advance(x, 1, generator)
                rows = x.flatten(1)
            else:
                rows = self.advance(rows, 1 / self.power, generator)
            if time.monotonic() > end:
                break
            if done in (8, 16, 32, 64) and not own:
                mean, factor = moments(rows)
                self._set(mean[None], factor[None], rows.new_ones(1))
        return rows[rows.isfinite().all(1)]

    def _missed(
        self, densities: Densities, rows: Tensor, end: float
    ) -> tuple[list[Box], list[float]]:
        r"""Boxes around peaks that chains, or a normal distribution fitted to them, hardly visit.

        With them come their shares of the mass in boxes.
        """
        if rows.shape[1] > MAX_SIZE:
            return [], []
        search = RealSearch(densities, rows, end=end)
        regions = search.regions()[0]
        boxes, shares = list[Box](), list[float]()
        total = max((region.log_mass for region in regions), default=0.0)
        mean, factor = moments(search.draws)
        normal = Normals(mean[None], factor[None], mean.new_ones(1))
        fitted_rows = normal.sample(2**12, search.generator)
        for box, region in zip(search.sets, regions, strict=False):
            share, visited = math.exp(region.log_mass - total), float(region.inside.double().mean())
            fitted = float(box.contains(fitted_rows).double().mean()) > 0.1 * visited
            if share > 5e-3 and region.error < 0.5 and not (fitted and visited > 0.1 * share):
                boxes.append(box)
                shares.append(share)
        densities.boxes = search.sets
        return boxes[:MAX_NORMALS], shares[:MAX_NORMALS]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.normals.sample(n, generator)

    def events(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.support.shape)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log = self.power * self.target.log_unnormalized(self.events(x)).double()
        return self.normals.logs(x).logsumexp(0).double(), log

    def log_unnormalized(self, x: Tensor, t: Position) -> Tensor:
        r"""log p̃_t (n,), −∞ where it is no number."""
        log = self.power * self.target.log_unnormalized(self.events(x))
        t = torch.as_tensor(t, dtype=log.dtype, device=log.device)
        total = log_at(self.normals.logs(x).logsumexp(0), log, t)
        return torch.where(total.isnan(), -math.inf, total)

    def advance(self, x: Tensor, t: Position, generator: torch.Generator) -> Tensor:
        t = torch.as_tensor(t, dtype=x.dtype, device=x.device).expand(len(x))
        if not self.differentiable:
            return self._slices(x, t, generator)
        self.turn = turn = (self.turn + 1) % len(self.sizes)
        place = (t.clamp(0, 1) * (STEP_SIZES - 1)).round().long()
        step = (self.step_sizes[turn, place] / t.clamp_min(1).sqrt())[:, None]
        uniform = torch.rand(step.shape, generator=generator, device=x.device, dtype=x.dtype)
        count = ((0.33 + 0.67 * uniform) * 2.4 / step).ceil().clamp_max(MAX_LEAPFROG_STEPS)

        def evaluate(rows: Tensor) -> Point:
            return differentiate(lambda x: self.log_unnormalized(x, t), rows)

        scale = self.normals.factors[turn] / WIDER
        moved = move(evaluate, evaluate(x), step, scale, count, generator)
        if self.adapting:  # by the chains that are where this scale fits
            own = self.normals.logs(x).argmax(0) == turn
            for k in place[own].unique().tolist():
                accepted = moved.acceptance[own & (place == k)].clamp_min(0.1)
                size = self.sizes[turn][k]
                size.update(float(1 / (1 / accepted).mean()))
                self.step_sizes[turn, k] = min(math.exp(size.log), 2.0)
        return moved.end.x

    def _slices(self, x: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        x, width = x.clone(), 2 * self.normals.factors[0].norm(dim=1)
        for level in t.unique().tolist():
            rows = t == level
            density = lambda u, level=level: self.log_unnormalized(u, level)  # noqa: E731
            x[rows] = Slice(density, x[rows], width, generator=generator).step()
        return x

    def fix(self) -> None:
        r"""End the adaptation: later sweeps leave p_t invariant exactly."""
        if self.adapting:
            means = [[min(math.exp(size.mean), 2.0) for size in part] for part in self.sizes]
            self.step_sizes, self.adapting = self.step_sizes.new_tensor(means), False


def log_at(A: Tensor, B: Tensor, t: Tensor) -> Tensor:
    r"""max(1 − t, 0) A + t B, where 0 · (−∞) is 0."""
    return (1 - t).clamp_min(0) * A + torch.where(t > 0, t * B, 0.0)
