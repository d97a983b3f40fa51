r"""Modes that an estimate of log Z may miss: the probability it implies for them against visits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM
from limbeck.normalization.densities import BLOCK, Densities
from limbeck.normalization.mode_search import tops
from limbeck.normalization.walk import SIGNIFICANT, starts
from limbeck.samplers.diagnostics import effective_size, weights_effective_size
from limbeck.samplers.gibbs import sweep
from limbeck.supports import Discrete

__all__ = ["ModeCheck", "check_modes"]

MAX_CONSTANT_EVENTS = 16
MAX_CLIMBED_EVENTS = 8
CLIMBS = 16
r"""Climbs from random events, and as many from draws of the estimate."""

MAX_ROUNDS = 20
r"""Rounds of a climb over all variables."""

LOCAL_CHAINS, LOCAL_SWEEPS = 64, 10
r"""Chains around each event, and their sweeps."""

LOCAL_SAMPLES = 500
r"""Samples that measure the mass around each event."""

PRIOR_CHAINS = 2.0
r"""Chains that the average over all sites counts for in the distribution of one site."""

MAX_CALLS = 2000
r"""Calls of log p̃ in a round over all sites; with more, nothing climbs or moves site by site."""

SMALLEST_GAP = 1e-3
r"""A probability whose absence changes log Z too little to matter."""


class ModeCheck(NamedTuple):
    r"""What the check of an estimate gives.

    Attributes:
        reasons: Why not to trust the estimate, in words.
        lacking: By how many nats the estimate is too low, as far as the check can tell. It may be
            above zero without a reason, where too few draws were made to visit a set.
        diagnostics: Numbers by name.
    """

    reasons: list[str]
    lacking: float
    diagnostics: dict[str, float]


class Region(NamedTuple):
    r"""A set of events, its mass, and which draws lie in it.

    Attributes:
        name: What it is, in words.
        log_mass: The logarithm of Σ p̃(x) over the set, estimated without bias or exact.
        error: The relative standard error of the mass.
        inside: Whether each draw lies in it, (n,).
        several: Whether it is made of several of the others.
    """

    name: str
    log_mass: float
    error: float
    inside: Tensor
    several: bool = False


class Finding(NamedTuple):
    r"""A region that draws visit less often than the estimate implies."""

    region: Region
    log_implied: float
    share: float
    size: float


@torch.no_grad()
def check_modes(
    densities: Densities,
    x: Tensor,
    log_z: float,
    std_error: float,
    log_weights: Tensor | None = None,
) -> ModeCheck:
    r"""Compare the probability that log Ẑ implies for likely events with visits of the draws.

    If Ẑ is right, a set A of events has the probability Σ_A p̃(x) / Ẑ, and draws of the target are
    in it that often; no probability is above 1. This holds for a discrete support only: a density
    over real numbers may exceed Z, and is not checked.

    The sets are single events, and what lies around them. The events are the constant ones and
    those where climbs from random events and from draws end. Around each of them short chains are
    run; a product of independent distributions is fitted to where they are, and A is where this
    product is as large as at the chains. Its mass is measured by importance sampling from the
    product, so without bias. A further set is around short chains from random events.

    An estimate is doubtful if a set should have been visited, by the lower end of its mass, and was
    not, in a binomial test with effective numbers of draws (z above 3.7), and if that matters: the
    difference is above 0.001 and above two standard errors of log Ẑ.

    Arguments:
        densities: The target.
        x: The draws of the target that the estimate rests on, (chains, draws, *shape).
        log_z: The estimate.
        std_error: Its standard error.
        log_weights: Logarithms of the draws' weights (chains · draws,); None for equal ones.
    """
    support = densities.support
    if not isinstance(support, Discrete) or not math.isfinite(log_z + std_error):
        return ModeCheck([], 0.0, {})
    chains, generator = x.shape[:2], densities.generator("modes")
    draws = x.flatten(0, 1).to(densities.device, densities.dtype)
    target = CountedTarget(densities)
    names, events, log_p = _likely_events(densities, target, draws, generator)
    states = _states(names, events, log_p, draws)
    around = _neighbourhoods(densities, target, names, events, log_p, draws, generator)
    series = densities.log_target(draws).cpu().reshape(chains) if log_weights is None else None
    findings, lacking = [], 0.0
    for region in [*states, *around]:
        share, size = _visits(region.inside, series, log_weights)
        log_implied = region.log_mass - log_z
        gap = math.exp(min(log_implied, 700.0)) - share
        needed = max(SMALLEST_GAP, 2 * std_error)
        lowest = log_implied - SIGNIFICANT * math.hypot(std_error, region.error)
        p = math.exp(min(lowest, 0.0))
        missed = math.exp(min(lowest, 700.0)) - share
        if missed > max(needed, SIGNIFICANT * math.sqrt(p * (1 - p) / size)):
            findings.append(Finding(region, log_implied, share, size))
        elif share or gap <= needed:
            continue
        lacking = max(lacking, math.log1p(gap))
    diagnostics: dict[str, float] = {
        "modes_checked": len(events),
        "modes_evaluations": target.evaluations,
    }
    if not findings:
        return ModeCheck([], lacking, diagnostics)
    worst = max(findings, key=lambda each: (not each.region.several, each.region.log_mass))
    return ModeCheck([_reason(worst)], lacking, diagnostics)


class CountedTarget:
    r"""A target whose evaluations are counted, with no mass where its log density is NaN."""

    def __init__(self, densities: Densities) -> None:
        self.target, self.support = densities.target, densities.support
        self.evaluations = 0

    def log_unnormalized(self, x: Tensor) -> Tensor:
        self.evaluations += len(x)
        log: Tensor = self.target.log_unnormalized(x).double()
        if (log == math.inf).any():
            received = "a log density of +∞ at some events"
            raise ArgumentError("target", received, "numbers, or −∞ where there is no mass")
        return log.nan_to_num(-math.inf, neginf=-math.inf)


def _likely_events(
    densities: Densities, target: CountedTarget, draws: Tensor, generator: torch.Generator
) -> tuple[list[str], Tensor, Tensor]:
    r"""Constant events and those that climbs lead to: names, events (m, *shape) and log p̃ (m,)."""
    support = _discrete(densities)
    device, dtype = densities.device, densities.dtype
    values = torch.tensor(support.values, device=device, dtype=dtype)
    shape = (-1,) + (1,) * len(support.shape)
    constant = values.view(shape).expand(-1, *support.shape)
    log_p = target.log_unnormalized(constant)
    if len(values) > MAX_CONSTANT_EVENTS:
        log_p, chosen = log_p.topk(MAX_CONSTANT_EVENTS)
        values, constant = values[chosen], constant[chosen]
    names = [f"the event of all {value:g}" for value in values.tolist()]
    climbed = constant[:0]
    if isinstance(densities.target, RBM) or support.size * (support.count - 1) <= MAX_CALLS:
        some = torch.randint(len(draws), (CLIMBS,), generator=generator, device=device)
        random = support.start(CLIMBS, generator, device, dtype)
        x = torch.cat([constant, random, draws[some]])
        climber = densities.target if isinstance(densities.target, RBM) else target
        climbed = _distinct(*tops(climber, x, MAX_ROUNDS), constant)
    names += [_shown(event) for event in climbed]
    events = torch.cat([constant, climbed])
    log_p = torch.cat([log_p, target.log_unnormalized(climbed)]) if len(climbed) else log_p
    possible = log_p > -math.inf
    names = [name for name, yes in zip(names, possible.tolist(), strict=True) if yes]
    return names, events[possible], log_p[possible].cpu()


def _distinct(log_p: Tensor, x: Tensor, known: Tensor) -> Tensor:
    r"""The highest of some events (n, *shape), without those close to one another or to others."""
    chosen = list(known.flatten(1))
    count, close = len(chosen), known[0].numel() // 20
    for row in log_p.argsort(descending=True).tolist():
        if len(chosen) == count + MAX_CLIMBED_EVENTS:
            break
        event = x[row].flatten().to(known)
        if all(int((event != other).sum()) > close for other in chosen):
            chosen.append(event)
    return torch.stack(chosen)[count:].reshape(-1, *known.shape[1:])


def _states(names: list[str], events: Tensor, log_p: Tensor, draws: Tensor) -> list[Region]:
    r"""Single events, and all of them together."""
    found = []
    for name, event, log in zip(names, events, log_p.tolist(), strict=True):
        inside = (draws == event).flatten(1).all(1).cpu()
        found.append(Region(name, log, 0.0, inside))
    if len(found) > 1:
        inside = torch.stack([region.inside for region in found]).any(0)
        together = f"{len(found)} events together (one is {names[int(log_p.argmax())]})"
        found.append(Region(together, float(log_p.logsumexp(0)), 0.0, inside, True))
    return found


class Neighbourhood(NamedTuple):
    r"""An event, if there is one, and the events that a product of independent sites makes likely.

    Attributes:
        log_q: Log probabilities (size, count) of the sites' values.
        floor: The smallest log probability of an event inside.
        centre: The codes (size,) of the event.
    """

    log_q: Tensor
    floor: float
    centre: Tensor | None

    def log_prob(self, codes: Tensor) -> Tensor:
        r"""The product's log probabilities (n,) of codes (n, size)."""
        rows = max(1, BLOCK // len(self.log_q))
        sites = torch.arange(len(self.log_q), device=codes.device)
        return torch.cat([self.log_q[sites, part.long()].sum(1) for part in codes.split(rows)])

    def contains(self, codes: Tensor) -> Tensor:
        r"""Whether codes (n, size) are inside, (n,)."""
        return (self.log_prob(codes) >= self.floor) | self.at_centre(codes)

    def at_centre(self, codes: Tensor) -> Tensor:
        if self.centre is None:
            return torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
        return (codes == self.centre).all(1)


def _neighbourhoods(
    densities: Densities,
    target: CountedTarget,
    names: list[str],
    events: Tensor,
    log_p: Tensor,
    draws: Tensor,
    generator: torch.Generator,
) -> list[Region]:
    r"""What lies around events, and around short chains from random events; and all of it."""
    support = _discrete(densities)
    elsewhere = starts(densities, "target", LOCAL_CHAINS, generator)
    x = torch.cat([events.repeat_interleave(LOCAL_CHAINS, 0), elsewhere])
    codes = _codes(support, _moved(densities, target, x, generator)).split(LOCAL_CHAINS)
    names = [f"{name} and the events around it" for name in names]
    names.append("the events that short chains from random starts reach")
    seen = _codes(support, draws)
    found: list[Region] = []
    fresh: list[tuple[float, float]] = []  # masses of what no neighbourhood before has, and errors
    before: list[Neighbourhood] = []
    for centre, local in zip([*_codes(support, events), None], codes, strict=True):
        around = _fitted(local, support.count, centre)
        picked = torch.multinomial(around.log_q.exp(), LOCAL_SAMPLES, True, generator=generator).T
        log = around.log_prob(picked)
        inside = (log >= around.floor) & ~around.at_centre(picked)
        other = support.decode(picked.to(densities.dtype)).reshape(-1, *support.shape)
        weights = (target.log_unnormalized(other) - log).masked_fill(~inside, -math.inf)
        exact = -math.inf if centre is None else float(log_p[len(found)])
        mass = _mass(weights.cpu(), exact)
        found.append(Region(names[len(found)], *mass, around.contains(seen).cpu()))
        for each in before:
            weights = weights.masked_fill(each.contains(picked), -math.inf)
            if centre is not None and bool(each.contains(centre[None])):
                exact = -math.inf
        fresh.append(_mass(weights.cpu(), exact))
        before.append(around)
    scale = max(mass for mass, _ in fresh)
    if len(fresh) > 1 and scale > -math.inf:
        shares = [math.exp(mass - scale) for mass, _ in fresh]
        error = math.hypot(*(s * e for s, (_, e) in zip(shares, fresh, strict=True))) / sum(shares)
        inside = torch.stack([region.inside for region in found]).any(0)
        top = max(found, key=lambda region: region.log_mass).name
        together = f"{len(found)} sets of events together (one is {top})"
        found.append(Region(together, scale + math.log(sum(shares)), error, inside, True))
    return found


def _discrete(densities: Densities) -> Discrete:
    assert isinstance(densities.support, Discrete)
    return densities.support


def _codes(support: Discrete, x: Tensor) -> Tensor:
    r"""Whole numbers (n, size) of events (n, *shape)."""
    dtype = torch.uint8 if support.count <= 256 else torch.int64
    return support.encode(x).flatten(1).round().to(dtype)


def _mass(log_weights: Tensor, exact: float) -> tuple[float, float]:
    r"""log (mean of weights + exp(exact)), and its relative standard error."""
    n = len(log_weights)
    scale = max(float(log_weights.max()), exact)
    if scale == -math.inf:
        return -math.inf, 0.0
    w = (log_weights - scale).exp()
    mean = float(w.mean()) + math.exp(exact - scale)
    return scale + math.log(mean), float(w.std()) / math.sqrt(n) / mean


def _moved(
    densities: Densities, target: CountedTarget, x: Tensor, generator: torch.Generator
) -> Tensor:
    r"""Chains (n, *shape) after a few sweeps.

    Sweeps go site by site where that is quick enough, so that chains stay around their start and a
    sampler of the user's that jumps between modes does not take them away.
    """
    support = _discrete(densities)
    if isinstance(densities.target, RBM):
        return densities.target.advance(x, LOCAL_SWEEPS, generator)
    if support.size * (support.count - 1) <= MAX_CALLS:
        known = None
        for _ in range(LOCAL_SWEEPS):
            x, known = sweep(target.log_unnormalized, x, support, generator, known=known)
        return x
    advance: Any = getattr(densities.target, "advance", None)
    return advance(x, LOCAL_SWEEPS, generator) if callable(advance) else x


def _fitted(codes: Tensor, count: int, centre: Tensor | None) -> Neighbourhood:
    r"""The neighbourhood where chains are, from their codes (n, size).

    A site's rare values are as rare as those of all sites together where the chains are too few to
    tell.
    """
    n, size = codes.shape
    seen = torch.stack([(codes == value).sum(0) for value in range(count)], 1).double()
    usual = seen.argmax(1, keepdim=True)
    rare = 1 - (float(seen.gather(1, usual).sum()) - 0.5) / (n * size)
    prior = torch.full_like(seen, rare / (count - 1)).scatter(1, usual, 1 - rare)
    log_q = ((seen + PRIOR_CHAINS * prior) / (n + PRIOR_CHAINS)).log()
    around = Neighbourhood(log_q, -math.inf, centre)
    floor = float(around.log_prob(codes).min())
    return around._replace(floor=floor - 1e-9 * abs(floor))  # rounding must not exclude it


def _visits(
    inside: Tensor, series: Tensor | None, log_weights: Tensor | None
) -> tuple[float, float]:
    r"""The share of draws in a set, and how many independent draws it is of.

    Arguments:
        inside: Whether each draw is in the set, (n,).
        series: log p̃ of the draws, (chains, draws), where they have equal weights.
        log_weights: Logarithms of their weights (n,), where they do not.
    """
    if series is None:
        assert log_weights is not None
        share = torch.softmax(log_weights.double().cpu(), 0)
        return float(share @ inside.double()), weights_effective_size(log_weights)
    size = min(effective_size(series), effective_size(inside.double().reshape(series.shape)))
    return float(inside.double().mean()), size


def _shown(event: Tensor) -> str:
    values = [f"{value:g}" for value in event.flatten()[:8].tolist()]
    more = ", …" if event.numel() > 8 else ""
    return f"the event ({', '.join(values)}{more}) that climbing leads to"


def _reason(finding: Finding) -> str:
    region, log_implied, share, size = finding
    visited = f"{share:.2%} of about {size:,.0f} independent draws are there"
    if share == 0:
        visited = f"none of about {size:,.0f} independent draws is there"
    implied = f"a probability of {math.exp(log_implied):.3g}"
    if log_implied > 0:
        implied = f"a probability above 1 (log Z is at least {region.log_mass:.6g})"
    return (
        f"the estimate implies {implied} for {region.name}, but {visited}: it misses this part of "
        "the target; start chains there (start=, second_start=), use a proposal that covers it, "
        "or anneal more slowly"
    )
