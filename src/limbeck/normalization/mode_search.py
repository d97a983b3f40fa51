r"""Modes of a target by hill climbing, and whether an estimate of log Z misses any."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM, softplus
from limbeck.normalization.densities import BLOCK, Densities, chosen_rows, discrete_support
from limbeck.normalization.regions import MAX_SIZE, RealSearch, Region, measured, union
from limbeck.samplers.chains import Target, start_events
from limbeck.samplers.diagnostics import SIGNIFICANT, effective_size, weights_effective_size
from limbeck.supports import Discrete
from limbeck.text import listed

LOCAL_CHAINS, LOCAL_SWEEPS = 64, 10  # around each event
SINGULAR = (
    "log p̃ rises so steeply towards a point that its integral seems to be infinite, or to lie "
    "within a millionth of the samples' spread"
)
HURRIED = "the time was up before all likely events were searched for: allow more seconds"
CROWDED = 5.0  # a z-score of too many visits; of all regions, chance gives one in 10⁴ estimates
MAX_CALLS = 2000  # of log p̃ in a round over all sites; with more, nothing moves site by site
MAX_CHECKED = 2**16  # draws whose visits are counted
MAX_REGION_ERROR = 0.5  # of a mass; with more, one or two of the samples of it decide
RANDOM_NUMBERS = 2**24  # of random events, from the highest of which climbs start


@torch.no_grad()
def climb(target: Target, tries: int = 20, seed: int = 0) -> tuple[float, Tensor]:
    r"""A large log p̃(x) of a discrete target, at an event x (*shape), both of which it returns.

    No change of one variable of x improves it. Climbs start from the event of all first values, and
    from `tries` of the target's own chains after a few sweeps.
    """
    support = discrete_support(target, "a target with a discrete support")
    densities = Densities(target, seed=seed)
    generator = densities.generator("climbs")
    first = torch.zeros(1, *support.shape, device=densities.device, dtype=densities.dtype)
    x = support.decode(first)
    if tries:
        chains = start_events(densities, "target", tries, generator)
        x = torch.cat([x, target.advance(chains, LOCAL_SWEEPS, generator).to(x)])
    value, x = tops(target, x)
    top = int(value.nan_to_num(-math.inf, math.inf).argmax())
    if not math.isfinite(highest := value[top].item()):
        expected = "a target with a finite log p̃ near some event to start from"
        raise ArgumentError("target", f"{highest} as the largest log p̃(x)", expected)
    return highest, x[top].clone()


@torch.no_grad()
def tops(target: Target | ModeSearch, x: Tensor, rounds: int = 1000) -> tuple[Tensor, Tensor]:
    r"""log p̃ (n,) and the events where climbs from events (n, *shape), site by site, end."""
    if isinstance(target, RBM):
        return _climb_rbm(target, x, rounds)
    support = target.support
    assert isinstance(support, Discrete)

    def log_p(codes: Tensor) -> Tensor:
        return target.log_unnormalized(support.decode(codes).reshape(-1, *support.shape))

    def turn_each(codes: Tensor) -> Tensor:
        value, first = log_p(codes), codes
        for site in range(support.size):
            for turn in range(1, support.count):
                other = codes.clone()
                other[:, site] = (first[:, site] + turn) % support.count
                log = log_p(other)
                better = log > value + _noise(value)
                value = torch.where(better, log, value)
                codes = torch.where(better[:, None], other, codes)
        return codes

    codes = _until_still(turn_each, support.encode(x).flatten(1), rounds)
    return log_p(codes).double(), support.decode(codes).reshape(x.shape)


def _climb_rbm(rbm: RBM, x: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    r"""The same of an RBM, in float64, and first by alternate steps of all bits at once."""
    W, a, b = (p.detach().double() for p in (rbm.W, rbm.a, rbm.b))

    def turn_all(x: Tensor) -> Tensor:
        # x·(a + Wq) + b·q + entropy(q) is at most log p̃(x), and equal at q = p(h | x): what
        # raises it at this q raises log p̃
        slope = a + torch.sigmoid(x @ W + b) @ W.T
        return torch.where(slope.abs() > 1e-9, (slope > 0).double(), x)

    def turn_each(x: Tensor) -> Tensor:
        x, activation = x.clone(), x @ W + b
        hidden = softplus(activation).sum(1)
        sites = promising_sites(x, activation, hidden)
        for i, weights, bias in zip(sites.tolist(), W[sites], a[sites], strict=True):
            change = 1 - 2 * x[:, i]  # of this bit, if it turns
            turned = torch.addcmul(activation, change[:, None], weights)
            turned_hidden = softplus(turned).sum(1)
            better = turned_hidden - hidden + change * bias > _noise(hidden)
            hidden = torch.where(better, turned_hidden, hidden)
            activation = torch.where(better[:, None], turned, activation)
            x[:, i] += better * change
        return x

    def promising_sites(x: Tensor, activation: Tensor, hidden: Tensor) -> Tensor:
        # sites that gain in some row if they turn alone: after steps of all bits, few
        gains = torch.zeros_like(a, dtype=torch.bool)
        size = max(1, (2**17 if W.device.type == "cpu" else BLOCK) // activation.numel())
        for start in range(0, len(a), size):
            part = slice(start, start + size)
            change = 1 - 2 * x[:, part]  # (rows, sites)
            turned = torch.addcmul(activation[:, None], change[..., None], W[part])
            gain = softplus(turned).sum(2) - hidden[:, None] + change * a[part]
            gains[part] = (gain > _noise(hidden)[:, None]).any(0)
        return gains.nonzero().flatten()

    x = _until_still(turn_each, _until_still(turn_all, x.double(), rounds), rounds)
    return x @ a + softplus(x @ W + b).sum(1) + rbm.constant, x.to(rbm.W.dtype)


def _until_still(round_of: Callable[[Tensor], Tensor], x: Tensor, rounds: int) -> Tensor:
    r"""Rounds of the rows that still move."""
    x, rows = x.clone(), torch.arange(len(x), device=x.device)
    for _ in range(rounds):
        if not len(rows):
            break
        before = x[rows]
        x[rows] = after = round_of(before)
        rows = rows[(after != before).any(1)]
    return x


def _noise(value: Tensor) -> Tensor:
    r"""What rounding may add to log p̃; less is no gain, or a climb might go in circles."""
    return 8 * torch.finfo(value.dtype).eps * value.abs().nan_to_num(0, 0, 0).clamp_min(1)


@torch.no_grad()
def check_modes(
    densities: Densities, x: Tensor, log_z: float, std_error: float,
    log_weights: Tensor | None = None, given: Tensor | None = None,
) -> tuple[list[str], list[str], float, dict[str, int]]:  # fmt: skip
    r"""Compare the probability that log Ẑ implies for likely events with visits of the draws.

    If Ẑ is right, a set A of events has the probability Σ_A p̃(x) / Ẑ, and draws x (chains, draws,
    *shape) are in it that often, by `log_weights` (chains · draws,) if they have any: a binomial
    test with effective numbers of draws. Over real numbers the sets are boxes.

    It returns reasons not to trust the estimate, checks that there was no time for, the nats that
    it is too low by (above 0 also where draws are too few), and counts by name.
    """
    support = densities.support
    if not math.isfinite(log_z + std_error) or (not support.discrete and support.size > MAX_SIZE):
        return [], [], 0.0, {}
    x = x[: max(1, MAX_CHECKED // x.shape[1])]
    draws = x.flatten(0, 1).to(densities.device, densities.dtype)
    log_weights = None if log_weights is None else log_weights[: len(draws)]
    kind: type[ModeSearch | RealSearch] = ModeSearch if support.discrete else RealSearch
    search = kind(densities, draws, given)
    regions, count = search.regions()
    reasons = [SINGULAR] if search.singular else []
    unchecked = [HURRIED] if search.hurried else []
    if log_weights is None:
        effective = effective_size(densities.log_target(draws).cpu().reshape(x.shape[:2]))
    else:
        effective = weights_effective_size(log_weights)
        weights = torch.softmax(log_weights.double().cpu(), 0)
    missed, crowded, lacking, needed = [], [], 0.0, max(1e-3, 2 * std_error)
    for region in regions:
        if region.error > MAX_REGION_ERROR:
            continue
        inside = region.inside.double()
        if log_weights is None:
            share = float(inside.mean())
            size = min(effective, effective_size(inside.reshape(x.shape[:2])))
        else:
            share, size = min(float(weights @ inside), 1.0), effective
        log_implied = region.log_mass - log_z
        gap = math.exp(min(log_implied, 700.0)) - share
        uncertain = SIGNIFICANT * math.hypot(std_error, region.error)
        lowest, highest = log_implied - uncertain, math.exp(min(log_implied + uncertain, 0.0))
        p = math.exp(min(lowest, 0.0))
        least_gap = math.exp(min(lowest, 700.0)) - share
        implied_error = math.sqrt(p * (1 - p) / size)
        share_error = math.sqrt(share * (1 - share) / size)
        visits = region, log_implied, share, size
        # a normal distribution is too wide for no visit at all, of which chance gives 1 in 10⁴
        unvisited = share == 0 and -size * math.log1p(-min(p, 0.999999)) > 9.2
        # less than needed changes log Z too little to matter
        if least_gap > needed and (unvisited or least_gap > SIGNIFICANT * implied_error):
            missed.append(visits)
        elif region.error == 0 and share - highest > max(needed, CROWDED * share_error):
            crowded.append(visits)  # where the mass is exact: an estimate of it may be low
        elif share or gap <= needed:
            continue
        lacking = max(lacking, math.log1p(gap))
    counts = {"modes_checked": count, "modes_evaluations": search.evaluations}
    if not missed and not crowded:
        return reasons, unchecked, lacking, counts
    region, log_implied, share, size = min(
        missed or crowded, key=lambda m: (m[0].several, -m[0].log_mass)
    )
    draws_text = f"of about {size:,.0f} independent draws"
    visited = f"{share:.2%} {draws_text} are there" if share else f"none {draws_text} is there"
    implied = f"a probability of {math.exp(min(log_implied, 700.0)):.3g}"
    if log_implied > 0:
        implied = f"a probability above 1 (log Z is at least {region.log_mass:.6g})"
    advice = (
        "it misses this part of the target; start chains there (start=, second_start=), use a "
        "proposal that covers it, or anneal more slowly"
    )
    if not missed:
        advice = "the draws are not the target's, or log Z is too high"
    reason = f"the estimate implies {implied} for {region.name}, but {visited}: {advice}"
    return [*reasons, reason], unchecked, lacking, counts


class ModeSearch:
    r"""Regions where a target has mass. It counts evaluations; NaN as a log density is no mass."""

    def __init__(self, densities: Densities, draws: Tensor, given: Tensor | None = None) -> None:
        self.densities, self.draws, self.given = densities, draws, given
        self.support = support = discrete_support(densities.target, "a discrete target")
        self.generator, self.evaluations = densities.generator("modes"), 0
        self.rbm = densities.target if isinstance(densities.target, RBM) else None
        self.sites_are_few = support.size * (support.count - 1) <= MAX_CALLS
        self.hurried = False  # whether something was left out for lack of time
        self.singular = False

    def log_unnormalized(self, x: Tensor) -> Tensor:
        self.evaluations += len(x)
        log: Tensor = self.densities.target.log_unnormalized(x).double()
        if (log == math.inf).any():
            expected = "numbers, or −∞ where there is no mass"
            raise ArgumentError("target", "a log density of +∞ at some events", expected)
        return log.nan_to_num(-math.inf, neginf=-math.inf)

    def regions(self) -> tuple[list[Region], int]:
        r"""Likely events, what lies around them, unions; and the number of events."""
        names, events, log_p = self.likely_events()
        regions = [
            Region(name, log_mass, 0.0, (self.draws == event).flatten(1).all(1).cpu())
            for name, event, log_mass in zip(names, events, log_p, strict=True)
        ]
        regions += union(regions, [(region.log_mass, 0.0) for region in regions], "events")
        return regions + self.neighbourhoods(names, events, log_p), len(events)

    def likely_events(self) -> tuple[list[str], Tensor, list[float]]:
        r"""Constant events and those that climbs lead to: names, events (m, *shape) and log p̃."""
        support, draws = self.support, self.draws
        values = draws.new_tensor(support.values)
        constant = values.view(-1, *(1 for _ in support.shape)).expand(-1, *support.shape)
        log_p = self.log_unnormalized(constant)
        if len(values) > 16:
            log_p, chosen = log_p.topk(16)
            values, constant = values[chosen], constant[chosen]
        names = [f"the event of all {value:g}" for value in values.tolist()]
        climbed = constant[:0]
        began, random = time.monotonic(), self._high_events(64)
        calls = support.size * (support.count - 1) * 2 if self.rbm is None else 10
        if calls * (time.monotonic() - began) > self.densities.time_left():
            self.hurried = self.rbm is not None or self.sites_are_few
        elif self.rbm is not None or self.sites_are_few:
            some = chosen_rows(draws, 16, self.generator)
            every = 20 * support.count**support.size  # so many draws reach nearly all events
            random = self._high_events(min(RANDOM_NUMBERS // support.size, every))
            starts = [constant, random, some, *self._images(some)]
            if self.given is not None:
                starts.append(chosen_rows(self.given.to(draws), 16, self.generator))
            if self.rbm is not None:
                starts.append(self._of_hidden_units(self.rbm, some))
            x = torch.cat(starts)
            for _ in range(20 if self.rbm is None else 1):
                before, (value, x) = x, tops(self.rbm or self, x, 20 if self.rbm else 1)
                if still := torch.equal(before, x) or self.densities.time_left() < 0:
                    break
            self.hurried = not still and self.rbm is None
            climbed = _distinct(value, x, constant)
        for event in climbed:
            shown = listed([f"{value:g}" for value in event.flatten().tolist()])
            names.append(f"the event ({shown}) found by hill climbing")
        if len(climbed):
            log_p = torch.cat([log_p, self.log_unnormalized(climbed)])
        possible = log_p > -math.inf
        names = list(itertools.compress(names, possible.tolist()))
        return names, torch.cat([constant, climbed])[possible], log_p[possible].tolist()

    def _high_events(self, count: int) -> Tensor:
        r"""The highest 16 of random events: a narrow peak in a flat density is found by chance."""
        like, time_left = self.draws, self.densities.time_left
        best, half, left = like[:0], time_left() / 2, count
        while left and (not len(best) or time_left() >= half):
            n = min(left, max(64, RANDOM_NUMBERS // self.support.size // 16))
            x = self.support.start(n, self.generator, like.device, like.dtype)
            x, left = torch.cat([best, x]), left - n
            best = x[self.log_unnormalized(x).topk(min(16, len(x))).indices]
        return best

    def _of_hidden_units(self, rbm: RBM, some: Tensor) -> Tensor:
        r"""The likeliest events given hidden units: one, all, random, and not the draws'."""
        W, a, b = (p.detach() for p in (rbm.W, rbm.a, rbm.b))
        single, shape = torch.eye(len(b)).to(W), (MAX_CALLS // 2, len(b))
        h = torch.randint(2, shape, generator=self.generator, device=W.device).to(W)
        h = torch.cat([single, 1 - single, 0 * h[:1], 0 * h[:1] + 1, h, (some @ W + b <= 0).to(W)])
        h = h.unique(dim=0)
        if len(h) > 32:
            log = h @ b + softplus(a + h @ W.T).sum(1)
            h = torch.cat([h[log.topk(16).indices], chosen_rows(h, 16, self.generator)])
        return (a + h @ W.T > 0).to(some)

    def _images(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Events (n, *shape) with all values reversed, and with other values in cyclic order.

        Where a symmetry relates modes, the images of draws of one lie in the others.
        """
        support, codes = self.support, self.support.encode(x)
        shape = (len(x), *(1 for _ in support.shape))
        shift = torch.randint(support.count, shape, generator=self.generator, device=x.device)
        return support.decode(support.count - 1 - codes), support.decode(
            (codes + shift) % support.count
        )

    def neighbourhoods(self, names: list[str], events: Tensor, log_p: list[float]) -> list[Region]:
        r"""What lies around events, and around short chains from random events; and all of it."""
        support, target = self.support, self.densities.target
        elsewhere = start_events(self.densities, "target", LOCAL_CHAINS, self.generator)
        move = getattr(target, "advance", None)
        if self.rbm is None and self.sites_are_few:  # a user's sampler may jump between modes
            if not isinstance(target, Energy):
                target = Energy(lambda x: -self.log_unnormalized(x), support)
            move = target.sites
        if move is None:
            return []
        elsewhere = move(elsewhere, 1, self.generator)  # the first one may look for couplings
        began = time.monotonic()
        elsewhere = move(elsewhere, 1, self.generator)
        rounds = min(support.size // LOCAL_CHAINS, 4)  # more draws where there are more sites
        took = (LOCAL_SWEEPS + 3 * rounds) * max(time.monotonic() - began, 1e-9)
        affordable = self.densities.time_left() / took - 1
        if affordable < len(events):
            self.hurried = True
            if affordable < 0:
                return []
            likely = sorted(range(len(events)), key=lambda k: -log_p[k])[: int(affordable)]
            names, log_p = [names[k] for k in likely], [log_p[k] for k in likely]
            events = events[likely]
        x = torch.cat([events.repeat_interleave(LOCAL_CHAINS, 0), elsewhere])
        x = move(x, LOCAL_SWEEPS, self.generator)
        draws = [self._codes(x)]
        for _ in range(rounds):
            x = move(x, 3, self.generator)
            draws.append(self._codes(x))
        chains = torch.stack(draws, 1).flatten(0, 1).split(LOCAL_CHAINS * len(draws))
        names = [f"{name} and the events around it" for name in names]
        names.append("the events that chains from random starts reach")
        centres = self._codes(events)
        around = [
            Neighbourhood.of(local, support.count, centres[k : k + 1])
            for k, local in enumerate(chains)
        ]

        def sample(near: Neighbourhood) -> tuple[Tensor, Tensor]:
            # a product of independent sites; its samples measure the mass
            codes = torch.multinomial(near.log_q.exp(), 500, True, generator=self.generator).T
            log = near.log_prob(codes)
            inside = (log >= near.floor) & ~near.at_centre(codes)
            events = support.decode(codes.to(x.dtype)).reshape(-1, *support.shape)
            return codes, (self.log_unnormalized(events) - log).masked_fill(~inside, -math.inf)

        exact = [*log_p, -math.inf]
        return measured(names, around, exact, self._codes(self.draws), sample, "sets of events")

    def _codes(self, x: Tensor) -> Tensor:
        dtype = torch.uint8 if self.support.count <= 256 else torch.int64
        return self.support.encode(x).flatten(1).round().to(dtype)


def _distinct(log_p: Tensor, x: Tensor, known: Tensor) -> Tensor:
    r"""The 8 highest of events (n, *shape), without those close to one another or to known."""
    chosen = list(known.flatten(1))
    count, close = len(chosen), known[0].numel() // 20
    for event in x[log_p.argsort(descending=True)].flatten(1).to(known):
        if len(chosen) == count + 8:
            break
        if all(int((event != other).sum()) > close for other in chosen):
            chosen.append(event)
    return torch.stack(chosen)[count:].reshape(-1, *known.shape[1:])


class Neighbourhood(NamedTuple):
    r"""An event, if any, and the events that a product of independent sites makes likely."""

    log_q: Tensor  # log probabilities (size, count) of the sites' values
    floor: float  # the smallest log probability of an event inside
    centre: Tensor  # the codes (1, size) of the event, or (0, size)

    @classmethod
    def of(cls, codes: Tensor, count: int, centre: Tensor) -> Neighbourhood:
        r"""The neighbourhood where chains are, from their codes (n, size)."""
        n, size = codes.shape
        seen = torch.stack([(codes == value).sum(0) for value in range(count)], 1).double()
        usual = seen.argmax(1, keepdim=True)
        # the prior counts as two chains: a site's rare values are as rare as those of all sites
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
        return (codes[:, None] == self.centre).all(2).any(1)
