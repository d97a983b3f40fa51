r"""Modes that an estimate of log Z may miss: the probability it implies for them and visits."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM
from limbeck.normalization.densities import BLOCK, Densities
from limbeck.normalization.mode_search import tops
from limbeck.samplers.chains import ChainTarget, Density, start_events
from limbeck.samplers.diagnostics import SIGNIFICANT, effective_size, weights_effective_size
from limbeck.samplers.gibbs import sweep
from limbeck.supports import Discrete

__all__ = ["ModeCheck", "check_modes"]

LOCAL_CHAINS, LOCAL_SWEEPS, LOCAL_SAMPLES = 64, 10, 500
r"""Chains around each event, their sweeps, and samples that measure the mass around it."""

MAX_CALLS = 2000
r"""Calls of log p̃ in a round over all sites; with more, nothing climbs or moves site by site."""


class ModeCheck(NamedTuple):
    r"""The result of a check: reasons not to trust the estimate, and numbers.

    `lacking` says by how many nats the estimate is too low, as far as the check can tell. It may be
    above zero without a reason, where too few draws were made to visit a set.
    """

    reasons: list[str]
    lacking: float
    diagnostics: dict[str, float]


class Region(NamedTuple):
    r"""A set of events, its mass Σ p̃(x), and which draws lie in it."""

    name: str
    log_mass: float  # estimated without bias, or exact
    error: float  # relative standard error of the mass
    inside: Tensor  # whether each draw lies in it, (n,)
    several: bool = False  # whether it is made of several of the others


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
        log_weights: Logarithms of the draws' weights (chains · draws,). Default: equal weights.
    """
    support = densities.support
    if not isinstance(support, Discrete) or not math.isfinite(log_z + std_error):
        return ModeCheck([], 0.0, {})
    generator = densities.generator("modes")
    draws = x.flatten(0, 1).to(densities.device, densities.dtype)
    target = CountedTarget(densities.target, support)
    names, events, log_p = _likely_events(densities, target, draws, generator)
    single = [
        Region(name, log, 0.0, (draws == event).flatten(1).all(1).cpu())
        for name, event, log in zip(names, events, log_p.tolist(), strict=True)
    ]
    regions = single + _union(single, [(each.log_mass, 0.0) for each in single], "events")
    regions += _neighbourhoods(densities, target, names, events, log_p, draws, generator)
    series = densities.log_target(draws).cpu().reshape(x.shape[:2]) if log_weights is None else None
    missed, lacking = [], 0.0
    for region in regions:
        share, size = _visits(region.inside, series, log_weights)
        log_implied = region.log_mass - log_z
        gap = math.exp(min(log_implied, 700.0)) - share
        needed = max(1e-3, 2 * std_error)  # less changes log Z too little to matter
        lowest = log_implied - SIGNIFICANT * math.hypot(std_error, region.error)
        p = math.exp(min(lowest, 0.0))
        least_gap = math.exp(min(lowest, 700.0)) - share
        if least_gap > max(needed, SIGNIFICANT * math.sqrt(p * (1 - p) / size)):
            missed.append((region, log_implied, share, size))
        elif share or gap <= needed:
            continue
        lacking = max(lacking, math.log1p(gap))
    counts: dict[str, float] = {"modes_checked": len(events)}
    counts["modes_evaluations"] = target.evaluations
    if not missed:
        return ModeCheck([], lacking, counts)
    worst = max(missed, key=lambda each: (not each[0].several, each[0].log_mass))
    return ModeCheck([_reason(*worst)], lacking, counts)


class CountedTarget:
    r"""A target whose evaluations are counted, with no mass where its log density is NaN."""

    def __init__(self, target: ChainTarget, support: Discrete) -> None:
        self.target, self.support = target, support
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
    support, device, dtype = target.support, densities.device, densities.dtype
    values = torch.tensor(support.values, device=device, dtype=dtype)
    constant = values.view(-1, *(1 for _ in support.shape)).expand(-1, *support.shape)
    log_p = target.log_unnormalized(constant)
    if len(values) > 16:
        log_p, chosen = log_p.topk(16)
        values, constant = values[chosen], constant[chosen]
    names = [f"the event of all {value:g}" for value in values.tolist()]
    climbed = constant[:0]
    if isinstance(densities.target, RBM) or support.size * (support.count - 1) <= MAX_CALLS:
        some = torch.randint(len(draws), (16,), generator=generator, device=device)
        random = support.start(16, generator, device, dtype)
        climber: Density = densities.target if isinstance(densities.target, RBM) else target
        peaks = tops(climber, torch.cat([constant, random, draws[some]]), 20)
        climbed = _distinct(*peaks, constant)
    for event in climbed:
        shown = ", ".join(f"{value:g}" for value in event.flatten()[:8].tolist())
        more = ", …" if event.numel() > 8 else ""
        names.append(f"the event ({shown}{more}) that climbing leads to")
    events = torch.cat([constant, climbed])
    log_p = torch.cat([log_p, target.log_unnormalized(climbed)]) if len(climbed) else log_p
    possible = log_p > -math.inf
    names = [name for name, yes in zip(names, possible.tolist(), strict=True) if yes]
    return names, events[possible], log_p[possible].cpu()


def _distinct(log_p: Tensor, x: Tensor, known: Tensor) -> Tensor:
    r"""The 8 highest of some events (n, *shape), without those close to one another or to known."""
    chosen = list(known.flatten(1))
    count, close = len(chosen), known[0].numel() // 20
    for row in log_p.argsort(descending=True).tolist():
        if len(chosen) == count + 8:
            break
        event = x[row].flatten().to(known)
        if all(int((event != other).sum()) > close for other in chosen):
            chosen.append(event)
    return torch.stack(chosen)[count:].reshape(-1, *known.shape[1:])


class Neighbourhood(NamedTuple):
    r"""An event, if any, and the events that a product of independent sites makes likely."""

    log_q: Tensor  # log probabilities (size, count) of the sites' values
    floor: float  # the smallest log probability of an event inside
    centre: Tensor | None  # the codes (size,) of the event

    @classmethod
    def of(cls, codes: Tensor, count: int, centre: Tensor | None) -> Neighbourhood:
        r"""The neighbourhood where chains are, from their codes (n, size).

        A site's rare values are as rare as those of all sites together, which count as two chains,
        where the chains are too few to tell.
        """
        n, size = codes.shape
        seen = torch.stack([(codes == value).sum(0) for value in range(count)], 1).double()
        usual = seen.argmax(1, keepdim=True)
        rare = 1 - (float(seen.gather(1, usual).sum()) - 0.5) / (n * size)
        prior = torch.full_like(seen, rare / (count - 1)).scatter(1, usual, 1 - rare)
        around = cls(((seen + 2 * prior) / (n + 2)).log(), -math.inf, centre)
        floor = float(around.log_prob(codes).min())
        return around._replace(floor=floor - 1e-9 * abs(floor))  # rounding must not exclude it

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
    support = target.support

    def codes_of(x: Tensor) -> Tensor:
        dtype = torch.uint8 if support.count <= 256 else torch.int64
        return support.encode(x).flatten(1).round().to(dtype)

    elsewhere = start_events(densities, "target", LOCAL_CHAINS, generator)
    x = torch.cat([events.repeat_interleave(LOCAL_CHAINS, 0), elsewhere])
    codes = codes_of(_moved(densities, target, x, generator)).split(LOCAL_CHAINS)
    names = [f"{name} and the events around it" for name in names]
    names.append("the events that short chains from random starts reach")
    seen, regions = codes_of(draws), list[Region]()
    fresh: list[tuple[float, float]] = []  # masses of what no neighbourhood before has, and errors
    before: list[Neighbourhood] = []
    for centre, local in zip([*codes_of(events), None], codes, strict=True):
        around = Neighbourhood.of(local, support.count, centre)
        sampled = torch.multinomial(around.log_q.exp(), LOCAL_SAMPLES, True, generator=generator).T
        log = around.log_prob(sampled)
        inside = (log >= around.floor) & ~around.at_centre(sampled)
        other = support.decode(sampled.to(densities.dtype)).reshape(-1, *support.shape)
        weights = (target.log_unnormalized(other) - log).masked_fill(~inside, -math.inf)
        exact = -math.inf if centre is None else float(log_p[len(regions)])
        mass = _mass(weights.cpu(), exact)
        regions.append(Region(names[len(regions)], *mass, around.contains(seen).cpu()))
        for each in before:
            weights = weights.masked_fill(each.contains(sampled), -math.inf)
            if centre is not None and bool(each.contains(centre[None])):
                exact = -math.inf
        fresh.append(_mass(weights.cpu(), exact))
        before.append(around)
    return regions + _union(regions, fresh, "sets of events")


def _union(regions: list[Region], masses: list[tuple[float, float]], kind: str) -> list[Region]:
    r"""All regions as one, by the log masses and errors of what each adds; none of a single one."""
    scale = max((mass for mass, _ in masses), default=-math.inf)
    if len(regions) < 2 or scale == -math.inf:
        return []
    shares = [math.exp(mass - scale) for mass, _ in masses]
    error = math.hypot(*(s * e for s, (_, e) in zip(shares, masses, strict=True))) / sum(shares)
    inside = torch.stack([region.inside for region in regions]).any(0)
    top = max(regions, key=lambda region: region.log_mass).name
    name = f"{len(regions)} {kind} together (one is {top})"
    return [Region(name, scale + math.log(sum(shares)), error, inside, True)]


def _mass(log_weights: Tensor, exact: float) -> tuple[float, float]:
    r"""log (mean of weights + exp(exact)), and its relative standard error."""
    scale = max(float(log_weights.max()), exact)
    if scale == -math.inf:
        return -math.inf, 0.0
    w = (log_weights - scale).exp()
    mean = float(w.mean()) + math.exp(exact - scale)
    return scale + math.log(mean), float(w.std()) / math.sqrt(len(w)) / mean


def _moved(
    densities: Densities, target: CountedTarget, x: Tensor, generator: torch.Generator
) -> Tensor:
    r"""Chains (n, *shape) after a few sweeps.

    Sweeps go site by site where that is quick enough, so that chains stay around their start and a
    sampler of the user's that jumps between modes does not take them away.
    """
    model, support = densities.target, target.support
    if not isinstance(model, RBM) and support.size * (support.count - 1) <= MAX_CALLS:
        known = None
        for _ in range(LOCAL_SWEEPS):
            x, known = sweep(target.log_unnormalized, x, support, generator, known=known)
        return x
    return model.advance(x, LOCAL_SWEEPS, generator) if hasattr(model, "advance") else x


def _visits(
    inside: Tensor, series: Tensor | None, log_weights: Tensor | None
) -> tuple[float, float]:
    r"""The share of draws in a set, and the number of independent draws that they are worth.

    They have weights, or equal weights and log p̃ as a series (chains, draws).
    """
    if series is None:
        assert log_weights is not None
        share = torch.softmax(log_weights.double().cpu(), 0)
        return float(share @ inside.double()), weights_effective_size(log_weights)
    size = min(effective_size(series), effective_size(inside.double().reshape(series.shape)))
    return float(inside.double().mean()), size


def _reason(region: Region, log_implied: float, share: float, size: float) -> str:
    visited = f"{share:.2%} of about {size:,.0f} independent draws are there"
    if share == 0:
        visited = f"none of about {size:,.0f} independent draws is there"
    implied = f"a probability of {math.exp(min(log_implied, 700.0)):.3g}"
    if log_implied > 0:
        implied = f"a probability above 1 (log Z is at least {region.log_mass:.6g})"
    return (
        f"the estimate implies {implied} for {region.name}, but {visited}: it misses this part of "
        "the target; start chains there (start=, second_start=), use a proposal that covers it, "
        "or anneal more slowly"
    )
