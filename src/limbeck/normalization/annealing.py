r"""Annealed importance sampling: log Z along a path from a density whose log Z is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, LimbeckError, shown
from limbeck.models.energy import Energy, EnergyPath, Path
from limbeck.models.rbm import RBM, RBMPath, base_biases
from limbeck.normalization.bridge import fit_bridge
from limbeck.normalization.densities import EVENTS, Densities, tail_doubts
from limbeck.normalization.estimate import Estimate, Method, Start, Verdict, mean_bound
from limbeck.normalization.invariance import function_values
from limbeck.progress import tracked
from limbeck.samplers.chains import Chains, start_events
from limbeck.samplers.diagnostics import SIGNIFICANT, drift

SPACINGS = ("geometric", "linear", "sigmoid")
ACCEPTED = "'2008', a number of temperatures, or increasing numbers from 0 to 1"
CHAINS, SWEEPS = 2000, 10  # of the check of a path
LIMIT = 5.5  # a z-score that chance gives in 1 of 10⁵ checks, of a hundred statistics each
MULTIPLIER = (
    "an advance(x, sweeps, generator, beta) that leaves exp(−beta · fn / temperature) invariant, "
    "from beta = 0 (uniform) to beta = 1 (the target itself). If your beta is something "
    "else, such as a physical inverse temperature, rename that argument: without one called beta, "
    "annealing uses limbeck's own site-wise Gibbs sampling"
)

Schedule = str | int | Sequence[float] | Tensor


@arg.checked_arguments
@dataclass(frozen=True, kw_only=True)
class AIS(Method):
    r"""log Z by annealing along the target's path, all samples at once; no proposal is needed.

    The mean of the weights is an unbiased estimate of Z, and the mean of their logarithms gives a
    lower bound. Reverse runs, from the target to the start of the path, give an upper bound; both
    directions together give a bridge, with which the forward estimate must agree.

    Arguments:
        samples: The number of runs. Default: 10,000.
        schedule: "2008" for 14,500 temperatures, their number, or the numbers. Default: "2008".
        spacing: How temperatures are spaced: "linear", "sigmoid" or "geometric". Default: "linear".
        path: A `limbeck.models.energy.Path` of your own. Default: the target's; an RBM's begins at
            independent bits with the RBM's means, estimated by short chains.
        reverse: Whether to anneal back from the target too, for an upper bound. Default: False.
        start: With `reverse`, where the target's chains start: "target", or events (m, *shape),
            which are added to the target's own starts. Default: "target".
        burn_in: With `reverse`, the sweeps of these chains. Default: 2,000.
    """

    name: ClassVar[str] = "ais"

    schedule: arg.UserObject[Schedule] = "2008"
    spacing: Annotated[str, arg.Choice(*SPACINGS)] = "linear"
    path: arg.UserObject[Path | None] = None
    reverse: arg.Flag = False
    start: arg.UserObject[Start] = "target"
    burn_in: arg.CountFromZero = 2000

    def __post_init__(self) -> None:
        temperatures(self.schedule, self.spacing)
        if self.reverse:
            self._set_start("start")

    def _estimate(self, densities: Densities, progress: bool) -> Estimate:
        betas = temperatures(self.schedule, self.spacing)
        path = _path(densities.target if self.path is None else self.path, densities)
        check_path(path, densities, self.reverse)
        x = path.sample(self.samples, densities.generator("path"))
        total, x = _anneal(path, x, betas, densities.generator("annealing"), progress)
        forward = path.log_z + total
        z = self._mean_of_weights(forward, "weights of the runs")
        z.diagnostics["temperatures"] = len(betas)
        z.sweeps = self.samples * (len(betas) - 1)
        doubts, unchecked = [*z.verdict.doubts, *tail_doubts(densities, x)], []
        if self.reverse:
            backward, chain_sweeps, reasons = self._backward(densities, path, betas, progress)
            z.sweeps = 2 * z.sweeps + chain_sweeps
            z.upper_bound, both = mean_bound(backward), fit_bridge(backward[:, None], forward)
            z.diagnostics |= {"both_ways": both.log_z, "both_ways_error": both.std_error}
            doubts += reasons
            if self.burn_in == 0:
                unchecked.append(
                    "the upper bound uses chains that were never moved (burn_in=0): whether they "
                    "are draws of the target was not checked"
                )
            gap = abs(both.log_z - z.value)
            if gap > SIGNIFICANT * math.hypot(z.std_error, both.std_error):
                doubts.append(f"forward and reverse runs disagree by {gap:.3g} nats")
                z.std_error = math.hypot(z.std_error, gap)
            if z.lower_bound is not None and z.upper_bound < z.lower_bound:
                doubts.append("the upper bound is below the lower one")
        z.verdict = Verdict(tuple(doubts), tuple(unchecked))
        return z, x[:, None], forward

    def _backward(
        self, densities: Densities, path: Path | RBMPath, betas: list[float], progress: bool
    ) -> tuple[Tensor, int, list[str]]:
        r"""Log weights (n,) of runs from the target down; sweeps and doubts of their chains."""
        origin: tuple[Start, ...] = (self.start,)
        if not isinstance(self.start, str) and densities.target_starts_have_mass():
            origin = (self.start, "target")  # events add to the starts of this check
        generator = densities.generator("chains")
        x = start_events(densities, origin, self.samples, generator)
        chains = Chains.at(densities, x, generator, progress)
        chains.sweep(self.burn_in // 4)
        early = densities.log_target(chains.x).cpu()
        chains.sweep(self.burn_in - self.burn_in // 4)
        now = densities.log_target(chains.x).cpu()
        score, moved = drift(early, now), abs(float((now - early).mean()))
        total, _ = _anneal(path, chains.x, betas, generator, progress, back=True)
        doubts = []
        if abs(score) > SIGNIFICANT and moved > 0.25 * float(now.std()):
            doubts.append(
                f"the target's chains still drift at the end of their burn-in (z = {score:.1f}): "
                "the upper bound may be invalid"
            )
        return path.log_z + total, chains.sweeps_done, doubts + densities.exactness_doubts()


@arg.checked_arguments
def temperatures(
    schedule: arg.UserObject[Schedule], spacing: Annotated[str, arg.Choice(*SPACINGS)] = "linear"
) -> list[float]:
    r"""The inverse temperatures β of a schedule, from 0 to 1.

    "2008" is for Salakhutdinov and Murray's 14,500. A number of them is spread evenly ("linear"),
    closer at both ends ("sigmoid") or closer at 0 ("geometric").

    >>> temperatures(5)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if isinstance(schedule, str):
        if schedule != "2008":
            raise ArgumentError("schedule", shown(schedule), ACCEPTED)
        parts = ((0.0, 0.5, 500), (0.5, 0.9, 4000))
        early = [low + (high - low) * k / n for low, high, n in parts for k in range(n)]
        return [*early, *(0.9 + 0.1 * k / 9999 for k in range(9999)), 1.0]
    if not hasattr(schedule, "__len__") or getattr(schedule, "ndim", 1) == 0:
        count = arg.integer("schedule", schedule, ACCEPTED, least=2)
        even = [k / (count - 1) for k in range(1, count - 1)]
        if spacing == "sigmoid":
            even = [0.5 + 0.5 * math.tanh(4 * (t - 0.5)) / math.tanh(2) for t in even]
        elif spacing == "geometric":
            even = [count ** ((k + 1 - count) / (count - 1)) for k in range(1, count - 1)]
        return [0.0, *even, 1.0]
    several: Any = schedule
    betas = [arg.number("schedule", beta, ACCEPTED, lambda b: 0 <= b <= 1) for beta in several]
    rising = all(a < b for a, b in itertools.pairwise(betas))
    if len(betas) < 2 or not rising or betas[0] != 0 or betas[-1] != 1:
        first = ", ".join(f"{beta:g}" for beta in betas[:5])
        raise ArgumentError("schedule", f"({first}{', …' if len(betas) > 5 else ''})", ACCEPTED)
    return betas


def _path(source: Any, densities: Densities) -> Path | RBMPath:
    r"""The path itself, or that of a target."""
    if isinstance(source, RBM):
        # Biases near the model's own means, by chains too short to be its samples. Any start of a
        # path is right; from uniform bits it would be a longer one by far.
        generator = densities.generator("base")
        chains = source.advance(source.start(1000, generator), 200, generator)
        return source.path(base_biases(chains))
    build = getattr(source, "path", None)
    path: Path = build() if callable(build) else source
    needed = ("log_z", "sample", "log_unnormalized", "advance", "climb")
    missing = [name for name in needed if not hasattr(path, name)]
    if missing:
        what = "no path()" if build is None else f"a path without {' and '.join(missing)}"
        expected = (
            "for method='ais', a target with path(), such as an lb.RBM or an lb.Energy over a "
            "discrete support, or path=; see limbeck.models.energy.Path"
        )
        raise ArgumentError("target", f"a {type(source).__name__} with {what}", expected)
    return path


def _anneal(
    path: Path | RBMPath, x: Tensor, betas: list[float], generator: torch.Generator,
    progress: bool, back: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""The log weights (n,) of runs from β = 0 to 1, or back by reversed kernels; their ends."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    pairs = list(itertools.pairwise(betas))
    label = "annealing back" if back else "annealing"
    for low, high in tracked(pairs[::-1] if back else pairs, label, progress):
        if back:
            x = path.advance(x, high, generator, reverse=True)
            gain = path.log_unnormalized(x, high) - path.log_unnormalized(x, low)
        else:
            gain, x = path.climb(x, low, high, generator)
        total += gain.double()
    total = total.cpu()
    bad = total.isnan() | (total == math.inf)
    if bad.any() or (total == -math.inf).all():
        received = f"log weights such as {total[bad | (total == -math.inf)][0].item()}"
        raise ArgumentError("target", received, "numbers, or −∞ for some of the runs")
    return total, x


@torch.no_grad()
def check_path(path: Path | RBMPath, densities: Densities, reverse: bool) -> None:
    r"""Refuse a path that does not end at the target, or whose kernels lead elsewhere.

    Sweeps may change no mean of the path's exact draws at β = 0, nor of weighted ones at a small β.
    """
    if callable(path.log_unnormalized):
        x = path.sample(EVENTS, densities.generator("end of the path")).to(densities.dtype)
        end, log_p = path.log_unnormalized(x, 1.0).double(), densities.log_target(x)
        both = end.isfinite() & log_p.isfinite()
        scale = max(1.0, float(log_p[both].abs().max())) if both.any() else 1.0
        differ = (end - log_p)[both].abs() > 1e-3 * scale
        if differ.any() or (end.isfinite() != log_p.isfinite()).any():
            received = "a path whose log density at beta=1.0 is not that of the target"
            raise ArgumentError("path", received, "log_unnormalized(x, 1.0) equal to the target's")
    if not isinstance(path, EnergyPath) or not path.energy.tempers:
        return
    x = path.sample(8000, densities.generator("path, to check it"))
    _check_default(path.energy, x, densities)
    base, small = path.log_unnormalized(x, 0.0), 1.0
    while small > 2.0**-40:  # the largest of 1, ½, ¼, … at which weights are still good
        share = (path.log_unnormalized(x, small) - base).double().softmax(0)
        if float(1 / share.square().sum()) > len(x) / 4:
            break
        small /= 2
    for beta in (0.0, small):
        log_w = (path.log_unnormalized(x, beta) - base).double()
        for back in (False, True) if reverse else (False,):
            generator = densities.generator(f"kernels at {beta}, {back}")
            weight = log_w.softmax(0)
            moved = start = x[torch.multinomial(weight, CHAINS, True, generator=generator)]
            try:
                for _ in range(SWEEPS):
                    moved = path.advance(moved, beta, generator, reverse=back)
                densities.support.check(moved, "advance")
                before, after = function_values(densities, start, x, moved)
            except (LimbeckError, ArithmeticError) as error:
                kind = "" if isinstance(error, LimbeckError) else f"{type(error).__name__}: "
                received = f"{kind}{error} (at beta={beta:g})"
                raise ArgumentError("advance", received, MULTIPLIER) from error
            mean = weight @ before
            spread = (weight @ (before - mean).square()).sqrt()
            # The two errors are not independent where chains mix slowly: they add, at most.
            noise = (weight.square() @ (before - mean).square()).sqrt() + after.std(0) / CHAINS**0.5
            gap = (after.mean(0) - mean).abs()
            if not densities.exact:
                gap = torch.where(gap > 0.3 * spread, gap, 0.0)
            if (z := _largest(gap, noise)) > LIMIT:
                received = (
                    f"sweeps at beta={beta:.3g} that lead away from the density they should leave "
                    f"as it is (z = {z:.1f})"
                )
                raise ArgumentError("advance", received, MULTIPLIER)


def _check_default(energy: Energy, x: Tensor, densities: Densities) -> None:
    r"""Refuse an `advance` that goes elsewhere with beta=1.0 than without."""
    one, other = x[:CHAINS], x[CHAINS : 2 * CHAINS]
    plain = energy.advance(one.clone(), SWEEPS, densities.generator("kernel"))
    at_one = energy.advance_at(one.clone(), SWEEPS, densities.generator("kernel"), beta=1.0)
    if float((plain == at_one).flatten(1).all(1).double().mean()) > 0.99:  # but for rounding
        return
    # It may use random numbers in another way: other starts and numbers, and the same means.
    at_one = energy.advance_at(other.clone(), SWEEPS, densities.generator("other"), beta=1.0)
    a, b = function_values(densities, torch.cat([plain, at_one]), plain, at_one)
    error = ((a.var(0) + b.var(0)) / CHAINS).sqrt()
    if (z := _largest((a.mean(0) - b.mean(0)).abs(), error)) > LIMIT:
        received = f"chains that go elsewhere with beta=1.0 than without it (z = {z:.1f})"
        raise ArgumentError("advance", received, MULTIPLIER)


def _largest(gap: Tensor, error: Tensor) -> float:
    r"""The largest z-score."""
    z = torch.where(gap > 1e-9, gap / error, 0.0)
    return float(z.nan_to_num(0.0, math.inf).max())
