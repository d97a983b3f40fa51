r"""Bridge sampling: log Z from draws of the target and of a proposal that overlaps with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError
from limbeck.normalization.densities import Densities, tail_doubts
from limbeck.normalization.estimate import LogPartition, Verdict, mean_bound
from limbeck.normalization.modes import check_modes
from limbeck.samplers.chains import KERNELS, Chains, Draws, Logs, start_events
from limbeck.samplers.diagnostics import (
    MIN_CHAINS,
    SIGNIFICANT,
    difference,
    drift,
    effective_size,
    memory,
    r_hat,
)

__all__ = ["NO_OWN_STARTS", "Bridge", "Start", "as_start", "bridge", "fit_bridge"]

NO_OWN_STARTS = "chains from the target's own starts were not compared: it has no mass there"

Start = str | Tensor
r"""Where chains begin: "proposal", "target", or events (m, *shape)."""

STARTS = ("proposal", "target")

SECOND = 500
r"""Chains from the second start that come on top of few chains with many draws."""


TOLERANCE = 1e-10
ITERATIONS = 200
ROUNDS = 20


class Bridge(NamedTuple):
    r"""The optimal bridge between samples of a target and of a proposal.

    With s₁ + s₂ = 1, f₁ = p/(s₁p + s₂q) at samples of q and f₂ = q/(s₁p + s₂q) at samples of p
    have the same mean, the overlap, which is 1 for p = q and 0 for densities apart.

    Attributes:
        log_z: The estimate of log Z.
        std_error: Its standard error, from the relative mean square error of both means.
        degrees: Degrees of freedom of the error.
        f_proposal: f₁, (n,).
        f_target: f₂, (chains, draws).
        share: s₁, the share of the target's samples, in effective ones.
        overlap: The mean of f₁ and of f₂.
        ess: The effective size of the f₂ series.
        iterations: Iterations until r changed by less than 1e-10 of itself.
        converged: Whether it did.
    """

    log_z: float
    std_error: float
    degrees: float
    f_proposal: Tensor
    f_target: Tensor
    share: float
    overlap: float
    ess: float
    iterations: int
    converged: bool

    def tilt(self, log_ratio: Tensor) -> Tensor:
        r"""s₁f₁ at any events: the probability that they came from the target."""
        return torch.sigmoid(
            log_ratio.double() - self.log_z + math.log(self.share / (1 - self.share))
        )


def fit_bridge(target: Tensor, proposal: Tensor) -> Bridge:
    r"""The bridge of log ratios log p̃ − log q at samples of the target and of the proposal.

    The equation for r = Z is mean f₁ = mean f₂, whose left side falls and right side rises with r.
    The share s₁ is ESS₁/(ESS₁ + n), with the effective size of the f₂ series itself.

    Arguments:
        target: (chains, draws) at samples of the target; +∞ where the proposal has no mass.
        proposal: (n,) at samples of the proposal; −∞ where the target has no mass.

    >>> round(fit_bridge(torch.full((4, 1), 3.0), torch.full((4,), 3.0)).log_z, 9)
    3.0
    """
    target, proposal = target.double().cpu(), proposal.double().cpu()
    n, total, size = len(proposal), 0, float(target.numel())
    for _ in range(ROUNDS):
        share = size / (size + n)
        log_z, iterations, converged = _solve(target.flatten(), proposal, share)
        total += iterations
        if not math.isfinite(log_z):  # nothing in common at all
            none = (torch.zeros_like(proposal), torch.zeros_like(target))
            return Bridge(log_z, math.inf, math.inf, *none, share, 0.0, size, total, converged)
        tilt = math.log(share / (1 - share))
        f_proposal = torch.sigmoid(proposal - log_z + tilt) / share
        f_target = torch.sigmoid(-(target - log_z + tilt)) / (1 - share)
        before, size = size, effective_size(f_target)
        if abs(size - before) <= 0.01 * before:
            break
    parts = (_relative_variance(f_proposal) / n, _relative_variance(f_target) / size)
    variance = sum(parts)
    freedom = sum(v**2 / (m - 1) for v, m in zip(parts, (n, size), strict=True) if m > 1)
    return Bridge(
        log_z,
        math.sqrt(variance),
        variance**2 / freedom if freedom and variance < math.inf else math.inf,
        f_proposal,
        f_target,
        share,
        float(f_target.mean()),
        size,
        total,
        converged,
    )


def _relative_variance(f: Tensor) -> float:
    if f.numel() < 2:
        return math.inf
    mean = float(f.mean())
    return float(f.var()) / mean**2 if mean > 0 else math.inf


def _solve(target: Tensor, proposal: Tensor, share: float) -> tuple[float, int, bool]:
    r"""The root of log mean f₁ − log mean f₂ in log r: Newton's steps, kept within a bracket."""
    tilt = math.log(share / (1 - share))
    shift = math.log(target.numel() / proposal.numel()) - tilt

    def gap(log_r: float) -> tuple[float, float]:
        one, two = proposal - log_r + tilt, target - log_r + tilt
        f1, f2 = F.logsigmoid(one), F.logsigmoid(-two)
        value = float(f1.logsumexp(0) - f2.logsumexp(0)) + shift
        slope = torch.softmax(f1, 0) @ torch.sigmoid(-one) + torch.softmax(f2, 0) @ torch.sigmoid(
            two
        )
        return value, -float(slope)

    seen = torch.cat([target, proposal])
    seen = seen[seen.isfinite()]
    if len(seen) == 0 or (target == math.inf).all():
        return math.inf, 0, False
    low, high = float(seen.min()) - abs(tilt) - 1, float(seen.max()) + abs(tilt) + 1
    width = high - low
    while gap(low)[0] < 0:
        low -= (width := 2 * width)
    while gap(high)[0] > 0:
        high += (width := 2 * width)
    log_r = float(seen.median())
    for iteration in range(1, ITERATIONS + 1):
        value, slope = gap(log_r)
        if abs(value) < 1e-15:  # also where the equation holds all along an interval
            return log_r, iteration, True
        low, high = (log_r, high) if value > 0 else (low, log_r)
        after = log_r - value / slope if slope else math.nan
        if not low <= after <= high:
            after = (low + high) / 2
        change, log_r = abs(after - log_r), after
        if change < max(TOLERANCE, 1e-14 * abs(log_r)):
            return log_r, iteration, True
    return log_r, ITERATIONS, False


FEWEST = 100
r"""Effective draws below which an error is not to be relied on."""

MIN_DRAWS_FOR_R_HAT = 10
r"""Draws of a chain from which R-hat is meaningful."""

OVERLAPPING = 50
r"""Draws of each side that must lie in the overlap."""

FORGOTTEN = 2.0
r"""A z-score of memory or drift below which chains go on as long again, and stop."""

APART = 0.5
r"""Standard deviations of log p̃ between two starts that are too much in any case."""


def bridge(
    densities: Densities,
    samples: int,
    *,
    kernel: str = "target",
    start: Any = "proposal",
    second_start: Any = "auto",
    chains: int | None = None,
    thin: int = 1,
    burn_in: int | str | None = None,
    progress: bool = True,
) -> LogPartition:
    r"""log Z by bridge sampling; the arguments are those of `log_partition`.

    The samples of the proposal that chains start from, or jump to, are other ones than those which
    enter the estimate. Draws from the two starts are taken together where they agree; where they
    do not, those from the first start count. Where chains have not mixed, the difference between
    starts, or between early and late, is counted in with the error.
    """
    how = plan(samples, kernel, start, second_start, chains, thin, burn_in)
    unchecked = []
    seconds = how.second_start or ()
    if len(seconds) > 1 and not densities.target_starts_have_mass():  # the others can do without
        rest = tuple(each for each in seconds if not isinstance(each, str) or each != "target")
        how = how._replace(second_start=rest)
        unchecked += [NO_OWN_STARTS] * (len(rest) < len(seconds))
    proposed, logs = densities.drawn(samples, "proposal")

    def forgotten(start: Logs, early: Logs, now: Logs) -> bool:
        fit = fit_bridge(now.ratio[:, None], logs.ratio)
        scores = _scores(fit, how.start, start.ratio, early.ratio, now.ratio)
        return all(abs(score) < FORGOTTEN for score in scores.values())

    first, second = draws_of(densities, how, logs.ratio, forgotten, progress)
    fit, target, x = fit_bridge(first.logs.ratio, logs.ratio), first.logs, first.x
    found, scores = _unmixed(fit, first, how.start)
    if second is not None:
        reasons, scores["starts_z"] = _disagreement(fit, first.logs, second.logs)
        found += reasons
        if not reasons and how.per_chain == 1:
            target = Logs(*(torch.cat(both) for both in zip(first.logs, second.logs, strict=True)))
            fit, x = fit_bridge(target.ratio, logs.ratio), torch.cat([first.x, second.x])
    error = fit.std_error
    if found:
        others = [first.early.ratio[:, None], *([] if second is None else [second.logs.ratio])]
        apart = max(abs(fit_bridge(each, logs.ratio).log_z - fit.log_z) for each in others)
        error = math.hypot(error, apart)
    found += _doubts(fit, target, logs, densities) + tail_doubts(densities, proposed)
    unchecked += _unchecked(how, first, second)
    spread = r_hat(fit.f_target)
    if how.per_chain >= MIN_DRAWS_FOR_R_HAT and how.chains < FEWEST and spread > 1.05:
        found.append(f"chains differ from one another (R-hat {spread:.2f})")
    modes = check_modes(densities, x, fit.log_z, fit.std_error)
    found, error = found + modes.reasons, math.hypot(error, modes.lacking)
    runs = [run for run in (first, second) if run is not None]
    tried = [run.acceptance for run in runs if not math.isnan(run.acceptance)]
    finite = bool(target.ratio.isfinite().all())
    return LogPartition(
        fit.log_z,
        error,
        "bridge",
        Verdict(tuple(found), tuple(unchecked)),
        mean_bound(logs.ratio),
        mean_bound(target.ratio, effective_size(target.ratio) if finite else None),
        {
            "ess": fit.ess,
            "sampling_error": fit.std_error,
            "overlap": fit.overlap,
            "iterations": fit.iterations,
            "chains": sum(len(run.start.ratio) for run in runs),
            "draws_per_chain": how.per_chain,
            "burn_in": first.steps,
            "acceptance": tried[0] if tried else None,
            "r_hat": None if math.isnan(spread) else spread,
            **scores,
            **modes.diagnostics,
        },
        samples=samples,
        sweeps=sum(run.sweeps for run in runs),
        degrees=fit.degrees,
    )


class Plan(NamedTuple):
    r"""How the target is drawn from; `log_partition` says what the fields mean."""

    kernel: str
    start: Start
    second_start: tuple[Start, ...] | None
    chains: int
    per_chain: int
    thin: int
    burn_in: int | None


def plan(
    samples: int,
    kernel: str,
    start: Any,
    second_start: Any,
    chains: int | None,
    thin: int,
    burn_in: int | str | None,
) -> Plan:
    r"""A plan of what the user asked for; burn_in is None where the chains decide."""
    if kernel not in KERNELS:
        raise ArgumentError.unknown("kernel", kernel, KERNELS)
    expected = f"a whole number from 1 to {samples}, the number of samples"
    chains = samples if chains is None else whole_number("chains", chains, expected, least=1)
    if chains > samples:
        raise ArgumentError("chains", chains, expected)
    thin = whole_number("thin", thin, "a whole number from 1", least=1)
    if burn_in is None:
        burn_in = 2000 if kernel == "target" else "auto"
    expected = "a whole number from 0, or 'auto'"
    steps = None if burn_in == "auto" else whole_number("burn_in", burn_in, expected, least=0)
    start = as_start(start, "start")
    # The starts that limbeck compares with; events that the user gives come on top of them.
    others: tuple[Start, ...] = STARTS
    if isinstance(start, str):
        others = tuple(name for name in STARTS if name != start)
    if second_start is None:
        others = ()
    elif not isinstance(second_start, str) or second_start != "auto":
        given = as_start(second_start, "second_start")
        others = others if isinstance(given, str) else (*others, given)
    return Plan(kernel, start, others or None, chains, math.ceil(samples / chains), thin, steps)


def as_start(start: Any, argument: str) -> Start:
    r"""A start that is known by name, or events as a tensor."""
    if isinstance(start, str):
        if start not in STARTS:
            raise ArgumentError(argument, repr(start), f"{STARTS} or events (m, *shape)")
        return start
    if start is None:
        raise ArgumentError(argument, None, f"{STARTS} or events (m, *shape)")
    return as_part(start, argument).values


def draws_of(
    densities: Densities,
    how: Plan,
    log_ratio: Tensor,
    forgotten: Callable[[Logs, Logs, Logs], bool],
    progress: bool,
) -> tuple[Draws, Draws | None]:
    r"""Draws from the first start, and from the second one if there is one.

    The second start has a quarter of the chains. Where chains have several draws each, it has some
    of its own, with one draw each.

    Arguments:
        densities: The target and the proposal.
        how: The plan.
        log_ratio: log p̃ − log q (n,) at samples of the proposal.
        forgotten: Callable[[Logs, Logs, Logs], bool]s whether chains have forgotten their start: see `draw`.
        progress: Whether to show bars.
    """
    single = how.per_chain == 1
    second = 0 if how.second_start is None else how.chains // 4 if single else SECOND
    generator = densities.generator("chains")
    x = start_events(densities, how.start, how.chains - second * single, generator)
    walk = Chains.at(densities, x, generator, progress)
    draws = walk.collect(how.kernel, how.burn_in, how.per_chain, how.thin, forgotten)
    if lost := int((draws.logs.target == -math.inf).sum()):
        received = f"chains at events of zero density ({lost:,} of {draws.logs.target.numel():,})"
        raise ArgumentError("target", received, "chains within the target's mass; see start")
    if not second or how.second_start is None:
        return draws, None
    generator = densities.generator("chains from the second start")
    others = start_events(densities, how.second_start, second, generator)
    walk = Chains.at(densities, others, generator, progress)
    walk.settle(log_ratio, draws.sweeps // len(x))
    return draws, walk.collect("mixed", 0, 1, 1, forgotten)


def _scores(
    fit: Bridge, origin: Start, start: Tensor, early: Tensor, now: Tensor
) -> dict[str, float]:
    r"""z-scores of what is left of the start, from log ratios (chains,) at three times."""
    scores = {"drift_z": drift(fit.tilt(early), fit.tilt(now))}
    if isinstance(origin, str) and origin == "proposal":
        scores["memory_z"] = memory(start, fit.tilt(now))
    return scores


def _unmixed(fit: Bridge, draws: Draws, origin: Start) -> tuple[list[str], dict[str, float]]:
    r"""What speaks against chains from one start, and the scores of the tests."""
    scores = _scores(fit, origin, draws.start.ratio, draws.early.ratio, draws.logs.ratio[:, 0])
    said = {
        "memory_z": "chains have not forgotten where they started",
        "drift_z": "chains still drift at the end of their burn-in",
    }
    found = [
        f"{said[name]} (z = {score:.1f}); a longer one may help"
        for name, score in scores.items()
        if abs(score) > SIGNIFICANT
    ]
    return found, scores


def _disagreement(fit: Bridge, one: Logs, other: Logs) -> tuple[list[str], float]:
    r"""What speaks against chains from two starts, and the z-score of their difference."""
    if (other.target == -math.inf).any():
        return ["chains from the second start have not found the target's mass"], math.inf
    z = difference(fit.tilt(one.ratio), fit.tilt(other.ratio))
    found = []
    if abs(z) > SIGNIFICANT:
        found.append(
            f"chains from two starts disagree (z = {z:.1f}): they have not mixed, or the proposal "
            "misses a part of the target"
        )
    # log p̃ itself does not enter the estimate: two starts may differ in it a little.
    gap = float(one.target.mean() - other.target.mean())
    apart = difference(one.target, other.target)
    if not found and abs(apart) > SIGNIFICANT and abs(gap) > APART * float(one.target.std()):
        found.append(f"chains from two starts disagree in log p̃, by {gap:.3g} on average")
    return found, z


def _unchecked(how: Plan, first: Draws, second: Draws | None) -> list[str]:
    r"""The checks of the chains that did not run."""
    found = []
    if first.steps < 2:
        found.append(
            f"whether chains still drift was not checked (burn_in={first.steps}); use burn_in=2 or "
            "more, or 'auto'"
        )
    elif not first.moved:
        found.append("all chains stayed where they started: nothing says that they are draws")
    elif how.chains < MIN_CHAINS and how.per_chain < MIN_DRAWS_FOR_R_HAT:
        found.append(
            f"whether chains have mixed was not checked: {how.chains} chains with {how.per_chain} "
            f"draws are too few; use {MIN_CHAINS} chains, or {MIN_DRAWS_FOR_R_HAT} draws of each"
        )
    if second is None:
        why = "second_start=None" if how.second_start is None else f"{how.chains} chains"
        found.append(f"chains from a second start were not compared ({why})")
    return found


def _doubts(fit: Bridge, target: Logs, proposal: Logs, densities: Densities) -> list[str]:
    r"""What speaks against the estimate, if the draws are the target's."""
    found = []
    if not fit.converged:
        found.append("the bridge equation was not solved")
    if not densities.exact:
        found.append("the target's sampler says that it is not exact")
    if outside := float((target.ratio == math.inf).double().mean()):
        found.append(f"the proposal has no mass at {outside:.1%} of the target's draws")
    n, size = len(proposal.ratio), fit.ess
    if min(n, size) < FEWEST:
        found.append(f"{min(n, size):.0f} effective draws are too few to know the error")
    inside = fit.overlap * min(n * fit.share, size * (1 - fit.share))
    if inside < OVERLAPPING:
        found.append(f"target and proposal hardly overlap (in about {inside:.2g} draws)")
    seen = torch.cat([target.target.flatten(), proposal.target])
    if densities.support.discrete and float(seen.max()) > fit.log_z + SIGNIFICANT * fit.std_error:
        found.append(f"log Z is above {float(seen.max()):.6g}, log p̃ of one of the events seen")
    return found
