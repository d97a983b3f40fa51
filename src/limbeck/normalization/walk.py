r"""Chains on a target, from any start, moved by its own sweeps, by a proposal, or by both."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.normalization.densities import Densities, Logs
from limbeck.progress import tracked
from limbeck.samplers.diagnostics import effective_size

__all__ = [
    "KERNELS",
    "MIN_CHAINS",
    "NO_OWN_STARTS",
    "SIGNIFICANT",
    "Walk",
    "acceptance_rate",
    "difference",
    "drift",
    "memory",
    "settle",
    "starts",
    "target_starts_have_mass",
]

SIGNIFICANT = 3.7
r"""A z-score that chance gives in 1 of 5,000 tests."""

MIN_CHAINS = 20
r"""Chains below which only their own series can say something."""

FEW_WEIGHTS = 10


def difference(one: Tensor, other: Tensor) -> float:
    r"""The difference between the means of two groups of chains (chains, draws), over its error."""
    one, other = one.double(), other.double()  # rounding of single precision is not a difference
    gap, variance = float(one.mean() - other.mean()), 0.0
    for group in (one, other):
        if group.numel() < 2:
            return 0.0
        variance += float(group.var()) / effective_size(group)
    return _over(gap, math.sqrt(variance), max(float(one.abs().max()), float(other.abs().max())))


def drift(before: Tensor, after: Tensor) -> float:
    r"""The mean change of chains (chains,) between two times, over its error."""
    if len(before) < MIN_CHAINS:
        return 0.0
    change = after.double() - before.double()
    error = float(change.std()) / math.sqrt(len(change))
    return _over(float(change.mean()), error, float(after.abs().max()))


def memory(log_weights: Tensor, now: Tensor) -> float:
    r"""Whether chains (chains,) would be elsewhere now, had they begun at draws of the target.

    Chains that begin at samples of q, weighted by p/q of where they began, stand for chains that
    begin at p, and these stay at p. So the weighted mean less the plain mean is what is left of the
    start. It is given over its error were all forgotten; with less than ten weights that count,
    nothing can be said.
    """
    if len(now) < MIN_CHAINS or not log_weights.isfinite().any():
        return 0.0
    now = now.double()  # rounding of single precision is not a difference
    share = torch.softmax(log_weights.double(), 0)
    if float(1 / share.square().sum()) < FEW_WEIGHTS:
        return 0.0
    left = float(share @ now - now.mean())
    error = float((share - 1 / len(now)).norm() * now.std())
    return _over(left, error, float(now.abs().max()))


def _over(gap: float, error: float, scale: float) -> float:
    if abs(gap) <= 1e-12 * scale:  # what rounding makes of nothing
        return 0.0
    return gap / error if error else math.copysign(math.inf, gap)


KERNELS = ("target", "metropolis", "mixed")

AT_ONCE = 20
r"""Sweeps between two movements of the progress bar."""

BUFFER = 2**15
r"""Samples that a proposal is asked for at once, where so many will be needed."""

JUMPS, MOST_JUMPS = 5, 300
r"""Accepted jumps that a chain should have had to settle, and jumps tried at most."""

NO_OWN_STARTS = "chains from the target's own starts were not compared: it has no mass there"

SETTLE = 50
r"""Sweeps before the first of them, at least."""


class Walk:
    r"""Chains on a target. Every move leaves the target invariant.

    Arguments:
        densities: The target, and the proposal if chains jump.
        x: Where they begin, (chains, *shape).
        generator: The source of randomness, on the chains' device.
        progress: Whether sweeps show a bar.
    """

    def __init__(
        self, densities: Densities, x: Tensor, generator: torch.Generator, progress: bool = False
    ) -> None:
        self.densities, self.x, self.generator, self.progress = densities, x, generator, progress
        self.sweeps = self.tried = 0
        self.accepted = torch.zeros((), dtype=torch.int64, device=x.device)
        self._logs: Logs | None = None
        self._waiting: list[Tensor] = []

    def logs(self) -> Logs:
        r"""Log densities where the chains are, (chains,)."""
        if self._logs is None:
            self._logs = self.densities.logs(self.x)
        return self._logs

    @property
    def acceptance(self) -> float:
        return int(self.accepted) / self.tried if self.tried else math.nan

    def go(self, kernel: str, steps: int) -> None:
        r"""So many steps: sweeps, jumps, or pairs of a jump and a sweep."""
        if kernel == "target":
            self.sweep(steps)
            return
        for ahead in tracked(range(steps, 0, -1), "moving chains", self.progress):
            self.jump(ahead)
            if kernel == "mixed":
                self.advance(1)

    def sweep(self, count: int) -> None:
        r"""The same, in pieces with a bar."""
        pieces = [AT_ONCE] * (count // AT_ONCE) + [count % AT_ONCE] * (count % AT_ONCE > 0)
        for piece in tracked(pieces, "moving chains", self.progress):
            self.advance(piece)

    def jump(self, ahead: int = 1) -> None:
        r"""A step of independence Metropolis, of so many: to an event of the proposal, or not."""
        y = self._proposed(ahead)
        here, there = self.logs(), self.densities.logs(y)
        uniform = torch.rand(len(y), generator=self.generator, device=y.device, dtype=torch.float64)
        # Events without mass are left at once, those without density in the proposal never.
        better = (there.ratio - here.ratio).exp() > uniform
        taken = better & (here.ratio < math.inf) | (here.target == -math.inf)
        shape = (-1,) + (1,) * (y.dim() - 1)
        self.x = torch.where(taken.view(shape), y, self.x)
        pairs = zip(there, here, strict=True)
        self._logs = Logs(*(torch.where(taken, new, old) for new, old in pairs))
        self.tried += len(y)
        self.accepted += taken.sum()

    def advance(self, sweeps: int) -> None:
        r"""So many sweeps of the target's own, in one go."""
        moved = self.densities.target.advance(self.x, sweeps, self.generator)
        if not isinstance(moved, Tensor) or moved.shape != self.x.shape:
            received = f"chains of shape {tuple(getattr(moved, 'shape', ()))} from advance"
            raise ArgumentError("target", received, f"the shape given, {tuple(self.x.shape)}")
        self.x, self._logs = moved, None
        self.sweeps += sweeps * len(moved)

    def _proposed(self, ahead: int) -> Tensor:
        if not self._waiting:
            n = len(self.x)
            rounds = min(ahead, max(1, BUFFER // n))
            self._waiting = list(self.densities.sample(rounds * n, self.generator).split(n))
        return self._waiting.pop()


def settle(walk: Walk, log_ratio: Tensor, sweeps: int = 0) -> None:
    r"""Let chains that begin anywhere forget it, with the proposal's help.

    Sweeps first, so that they fall into the modes that are near. Then jumps between sweeps: they
    take chains from one mode to another, but not out of one that the proposal fails to cover.

    Arguments:
        walk: The chains at their start.
        log_ratio: log p̃ − log q (n,) at samples of the proposal, which say how often jumps succeed.
        sweeps: The sweeps that chains should get, at least.
    """
    rounds = math.ceil(JUMPS / max(acceptance_rate(log_ratio), JUMPS / MOST_JUMPS))
    walk.sweep(max(SETTLE, sweeps // 2))
    each = max(1, sweeps // (2 * rounds))
    for ahead in tracked(range(rounds, 0, -1), "settling chains", walk.progress):
        walk.jump(ahead)
        walk.advance(each)


def starts(
    densities: Densities,
    start: str | Tensor | tuple[str | Tensor, ...],
    n: int,
    generator: torch.Generator,
) -> Tensor:
    r"""Events (n, *shape) that chains begin at.

    Arguments:
        densities: The target and the proposal.
        start: "proposal" for samples of it, "target" for what the target (or its support) gives
            chains to start from, or events (m, *shape) to choose from at random; several of these
            for an equal part of the chains each.
        n: How many.
        generator: The source of randomness.
    """
    if isinstance(start, tuple):
        sizes = [(n + place) // len(start) for place in reversed(range(len(start)))]
        parts = zip(start, sizes, strict=True)
        return torch.cat([starts(densities, each, k, generator) for each, k in parts if k])
    support, target = densities.support, densities.target
    device, dtype = densities.device, densities.dtype
    if isinstance(start, Tensor):
        rows = start.detach() if start.is_floating_point() else start.to(dtype)
        support.check(rows, "start")
        if not len(rows):
            raise ArgumentError("start", "no events", "one or more")
        chosen = torch.randint(len(rows), (n,), generator=generator, device=generator.device)
        return rows.to(device, dtype)[chosen]
    if start == "proposal":
        return densities.sample(n, generator)
    if start != "target":
        raise ArgumentError("start", repr(start), "'proposal', 'target' or events (m, *shape)")
    if not callable(getattr(target, "start", None)):
        return _within_mass(densities, support.start(n, generator, device, dtype))
    x = support.check(target.start(n, generator), "target.start")
    if len(x) != n:
        raise ArgumentError("target", f"{len(x)} events from start({n})", f"{n} events")
    return _within_mass(densities, x.to(device, dtype))


def _within_mass(densities: Densities, x: Tensor) -> Tensor:
    r"""Starts over real numbers without those of density zero, where no slice can be taken."""
    if densities.support.discrete:
        return x
    inside = (densities.log_target(x) > -math.inf).nonzero()[:, 0]
    if len(inside) in (0, len(x)):
        return x
    return x[inside[torch.arange(len(x), device=x.device) % len(inside)]]


def target_starts_have_mass(densities: Densities) -> bool:
    r"""Whether chains can begin at the target's own starts: the density is above zero at some."""
    if densities.support.discrete:
        return True
    x = starts(densities, "target", SETTLE, densities.generator("look at the starts"))
    return bool((densities.log_target(x) > -math.inf).any())


def acceptance_rate(log_ratio: Tensor) -> float:
    r"""What independence Metropolis will accept, ⟨min(1, w(y)/w(x))⟩, from weights at samples of q.

    >>> round(acceptance_rate(torch.zeros(5)), 6)
    1.0
    """
    log_w = log_ratio.double().sort().values
    log_w = log_w[log_w > -math.inf]
    n = len(log_ratio)
    below = log_w.logcumsumexp(0) - log_w  # Σ w(y)/w(x) over y up to x
    above = torch.arange(len(log_w) - 1, -1, -1, dtype=torch.float64)
    return float(torch.softmax(log_w, 0) @ (below.exp() + above)) / n
