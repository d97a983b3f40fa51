r"""Annealed importance sampling: log Z along a path from a density whose log Z is known."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, shown
from limbeck.models.energy import Path
from limbeck.normalization.densities import EVENTS, Densities
from limbeck.normalization.estimate import Estimate, Method, Start, log_mean
from limbeck.normalization.paths import along_path, check_pairs
from limbeck.progress import announce, tracked
from limbeck.samplers.diagnostics import weights_effective_size

PILOT_RUNS = 200
MAX_PILOT_STEPS = 3000
MIN_RUNS = 200  # of an estimate: fewer do not show how heavy the tail of the weights is
ENOUGH_RUNS = 1000  # for intervals that cover; fewer only where sweeps of so many take longer
ENOUGH_WEIGHTS = 120  # effective ones, somewhat more than a trustworthy estimate needs
MAX_NUMBERS = 2**24  # variables of all runs of a round
MAX_RUNS = 2**18  # of a round: with more time, each of them is better
OVERHEAD = 20_000  # variables whose sweep takes as long as the calls of it
CHECKING = 0.15  # the share of the time that is left for checks of the estimate, at least
CHECKS = 1000, 15  # chains and sweeps that these may take


@arg.checked_arguments
@dataclass(frozen=True, kw_only=True)
class AIS(Method):
    r"""log Z by annealing along a path to the target, all samples at once; without a proposal.

    The mean of the weights is an unbiased estimate of Z, and the mean of their logarithms gives a
    lower bound.

    With `std_error` or `seconds`, a pilot run measures how much weights vary along the path. It
    decides on the temperatures and on the number of runs, which are then new ones.

    Arguments:
        samples: The number of runs. Default: 10,000, or by `std_error` or `seconds`.
        schedule: "2008" for 14,500 temperatures, or their number. Default: "2008", or by
            `std_error` or `seconds`.
        spacing: How temperatures are spaced: "linear", or "adaptive", by a pilot run, such that
            each adds as much to the variance. Default: "linear".
        path: A `limbeck.models.energy.Path` of your own. Default: `target.path()`, if there is
            one; from independent sites, as if couplings averaged out, or of an RBM with the means
            of short chains; over real numbers, from a normal distribution that is fitted to these.
        start: Events (m, *shape), such as data, from which the search for modes that no run reached
            starts too. Default: "target", the starts that it has anyway.
        std_error: The standard error to reach. Default: none.
        seconds: A limit on the time of the whole estimate; all of it is used without `std_error`.
            Default: none.
    """

    name: ClassVar[str] = "ais"

    samples: arg.Count | None = None  # type: ignore[assignment]
    schedule: Annotated[int, arg.Whole(2)] | Annotated[str, arg.Choice("2008")] | None = None
    spacing: Annotated[str, arg.Choice("adaptive", "linear")] = "linear"
    path: arg.UserObject[Path | None] = None
    start: arg.UserObject[Start] = "target"
    std_error: arg.Positive | None = None
    seconds: arg.Positive | None = None

    def __post_init__(self) -> None:
        if self.std_error is None and self.seconds is None:
            self._set("samples", self.samples or 10_000)
            self._set("schedule", self.schedule or "2008")
        else:
            for name, value in (("samples", self.samples), ("schedule", self.schedule)):
                if value:
                    expected = "nothing with std_error and seconds, which determine it"
                    raise ArgumentError(name, shown(value), expected)
        self._set_start("start")

    def _estimate(self, densities: Densities, progress: bool) -> Estimate:
        path = _fixed_path(densities, self.path)
        if path is not None:
            return self._annealed(densities, path, progress)
        return along_path(densities, lambda path: self._annealed(densities, path, progress))

    def _annealed(self, densities: Densities, path: Any, progress: bool) -> Estimate:
        betas = [] if self.schedule is None else temperatures(self.schedule)
        annealing = Annealing(path, densities, progress)
        if self.spacing == "adaptive" or self.schedule is None:
            annealing.pilot(densities.time_left())
        if self.schedule is None:
            forecast = annealing.rounds(self.std_error, densities.deadline)
        else:
            betas = annealing.at(len(betas) - 1) if self.spacing == "adaptive" else betas
            annealing.run(self.samples or 0, betas)
            forecast = {}
        z = self._mean_of_weights(annealing.log_weights, "weights of the runs")
        z.diagnostics |= {"temperatures": annealing.steps + 1} | forecast
        z.sweeps = annealing.sweeps
        return z, annealing.x[:, None], annealing.log_weights


def temperatures(schedule: str | int) -> list[float]:
    r"""The inverse temperatures β of a schedule, from 0 to 1.

    "2008" is for Salakhutdinov and Murray's 14,500. A number of them is spread evenly.

    >>> temperatures(5)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if isinstance(schedule, str):
        parts = ((0.0, 0.5, 500), (0.5, 0.9, 4000))
        early = [low + (high - low) * k / n for low, high, n in parts for k in range(n)]
        return [*early, *(0.9 + 0.1 * k / 9999 for k in range(9999)), 1.0]
    return [k / (schedule - 1) for k in range(schedule)]


def _fixed_path(densities: Densities, given: Any) -> Any:
    r"""The path of the user's or of the target's own, if it ends at the target; or else None."""
    target = densities.target
    build = getattr(target if given is None else given, "path", None)
    if given is None and not callable(build):
        return None
    path: Path = build() if callable(build) else given
    needed = ("log_z", "sample", "log_unnormalized", "climb")
    if missing := [name for name in needed if not hasattr(path, name)]:
        received = f"a {type(path).__name__} without {' and '.join(missing)}"
        raise ArgumentError("path", received, "a path; see limbeck.models.energy.Path")
    if not callable(path.log_unnormalized):
        return path
    x = path.sample(EVENTS, densities.generator("end of the path")).to(densities.dtype)
    end, log_p = path.log_unnormalized(x, 1.0).double(), densities.log_target(x)
    both = end.isfinite() & log_p.isfinite()
    scale = max(1.0, float(log_p[both].abs().max())) if both.any() else 1.0
    differ = (end - log_p)[both].abs() > 1e-3 * scale
    if differ.any() or (end.isfinite() != log_p.isfinite()).any():
        received = "a path whose log density at beta=1.0 is not that of the target"
        raise ArgumentError("path", received, "log_unnormalized(x, 1.0) equal to the target's")
    return path


class Annealing:
    r"""Runs along a path, from the density at its start to the target.

    Attributes:
        betas, lengths: Places β on the path, and the shares of its length that lie before them.
        log_weights, x: Log weights (n,) and ends (n, *shape) of all runs for the estimate.
        steps: Steps of the longest run.
        sweeps: Sweeps of single chains.
    """

    def __init__(self, path: Any, densities: Densities, progress: bool) -> None:
        self.path, self.densities, self.progress = path, densities, progress
        self.betas, self.lengths = [0.0, 1.0], [0.0, 1.0]
        self.variance = math.nan  # of the log weight of a run, times its number of steps
        self.seconds_per_step = [0.0, 0.0]  # of any number of chains, and of each chain
        self.steps, self.sweeps, self.rounds_done = 0, 0, 0
        self.log_weights, self.x = torch.empty(0, dtype=torch.float64), torch.empty(0)

    def at(self, steps: int) -> list[float]:
        r"""Places β such that the parts of the path between them have equal lengths."""
        even = np.linspace(0, 1, steps + 1)
        return [0.0, *np.interp(even, self.lengths, self.betas)[1:-1].tolist(), 1.0]

    def pilot(self, seconds: float = math.inf) -> None:
        r"""Measure the length of the path, and choose places of equal distances on it.

        Runs that are too short are far from equilibrium, and underestimate the length: they become
        longer until their weights vary little, or until it stays the same.
        """
        took, steps, before = list[tuple[int, float]](), 48, math.inf
        while True:
            began, n = time.monotonic(), PILOT_RUNS * (1 + (len(took) == 1))
            gains, deadline = list[Tensor](), began + seconds / 12
            self._anneal(n, self.at(steps), f"pilot {steps}", "pilot run", deadline, gains)
            took.append((n, (time.monotonic() - began) / len(gains)))
            spread = self._fit_lengths(gains)
            hurried = len(gains) < steps
            late = time.monotonic() - began > seconds / 6  # even a few steps take longer
            if late or (len(took) > 1 and (spread < 1 or hurried or steps >= MAX_PILOT_STEPS)):
                break
            if self.variance < 1.3 * before and len(took) > 2:
                break
            before, steps = self.variance, 4 * steps
        one, other = took[0], took[min(1, len(took) - 1)]
        each = other[1] / other[0]
        if len(took) > 1:
            each = min(each, max(other[1] - one[1], 0.1 * other[1]) / (other[0] - one[0]))
        self.seconds_per_step = [max(other[1] - each * other[0], 0.0), each]
        if callable(fix := getattr(self.path, "fix", None)):
            fix()

    def _fit_lengths(self, gains: list[Tensor]) -> float:
        r"""Lengths of parts of the path from the gains (n,) of log weights at each step.

        A part of m steps adds its variance v, with the covariance with the part before, to that of
        the whole. Over m·r steps it would add v / r, so the sum is least where √(m v) is equal.
        It returns the variance of the log weights.
        """
        total = torch.stack(gains).double().cpu()
        total = total[:, total.isfinite().all(0)]
        m = max(1, len(total) // 24)
        parts = [part.sum(0) for part in total.split(m)]
        if total.shape[1] < 20:  # nearly all runs ended where the target has no mass
            self.variance = 1.0
            return math.inf
        lengths, before = list[float](), torch.zeros_like(parts[0])
        for part, rows in zip(parts, total.split(m), strict=True):
            joint = torch.cov(torch.stack([before, part]))
            v = max(float(joint[1, 1] + 2 * joint[0, 1]), float(joint[1, 1]) / 2)
            lengths.append(math.sqrt(len(rows) * v))
            before = part
        whole = sum(lengths)
        spread = float(total.sum(0).var())
        self.variance = max(whole**2, spread * len(total))
        even = 0.05 * whole / len(lengths) + 1e-12  # no part is left out
        sums = [0.0, *itertools.accumulate(length + even for length in lengths)]
        places = self.used
        self.betas = [places[min(k * m, len(places) - 1)] for k in range(len(sums))]
        self.lengths = [value / sums[-1] for value in sums]
        return spread

    def rounds(self, std_error: float | None, limit: float) -> dict[str, Any]:
        r"""Runs until the mean weight has a standard error, or until a time on the monotonic clock.

        The first round has numbers of runs and steps that the pilot forecasts to be enough; later
        ones add what is lacking.
        """
        end, left = limit, limit - time.monotonic()
        if limit < math.inf:
            checks = max(self._time(*CHECKS), 1.2 * self.densities.search_seconds)
            end -= left * min(max(CHECKING, checks / left), 0.5)
        n, steps, forecast = self._plan(std_error, end)
        error = math.inf
        for _ in range(10):
            if self.rounds_done:
                left = end - time.monotonic()
                enough = weights_effective_size(self.log_weights) / ENOUGH_WEIGHTS
                wanted = 0.0 if std_error is None else 1.1 * (error / std_error) ** 2
                reached = std_error is None or error <= std_error
                if (reached and enough > 1) or left < 0.1 * self._time(100, steps):
                    break
                lacking = len(self.log_weights) * (max(wanted, 1.1 / enough) - 1)
                n = max(100, math.ceil(min(lacking, self._most_runs(steps, left))))
            announce(
                f"annealing: {n:,} runs of {steps:,} temperatures, about "
                f"{self._time(n, steps):.0f} s; forecast ±{forecast:.2g}",
                self.progress and self._time(n, steps) > 5,
            )
            self.run(n, self.at(steps), end)
            error = log_mean(self.log_weights)[1]
        return {"forecast_error": forecast, "rounds": self.rounds_done}

    def _time(self, n: int, steps: int) -> float:
        return steps * (self.seconds_per_step[0] + self.seconds_per_step[1] * n)

    def _most_runs(self, steps: int, seconds: float) -> float:
        return (seconds / steps - self.seconds_per_step[0]) / self.seconds_per_step[1]

    def _plan(self, std_error: float | None, end: float) -> tuple[int, int, float]:
        r"""The number of runs and of steps, and the standard error that these should have."""
        size, left = self.densities.support.size, max(end - time.monotonic(), 0.01)
        most = max(MIN_RUNS, min(MAX_NUMBERS // size, MAX_RUNS))
        least = min(max(MIN_RUNS, OVERHEAD // size), ENOUGH_RUNS)
        best, longest = None, left / max(self._time(MIN_RUNS, 1), 1e-9) / 1.2
        for steps in sorted({math.ceil(8 * 1.2**k) for k in range(70)}):
            relative = math.expm1(min(self.variance / steps, 100.0))  # of weights, if log-normal
            if MIN_RUNS / (1 + relative) < 1.2 * ENOUGH_WEIGHTS and steps < longest:
                continue
            n = 0.0
            if std_error is not None:
                n = min(max(least, 1.15 * relative / std_error**2), 1e9)
                # by numbers that do not depend on the clock, so that runs can be repeated
                cost = steps * (OVERHEAD / size + n)
            if std_error is None or self._time(int(n), steps) > left:
                n = min(self._most_runs(steps, left), most)
                cost = 1e30 * relative / max(n, 1e-9)  # any plan that reaches the error is better
            if n >= MIN_RUNS and (best is None or cost < best[0]):
                best = cost, min(int(n), most), steps, math.sqrt(relative / n)
        if best is None:  # even the shortest runs take longer
            steps = max(2, int(left / max(self._time(MIN_RUNS, 1), 1e-9)))
            return MIN_RUNS, steps, math.inf
        return best[1:]

    def run(self, n: int, betas: list[float], end: float = math.inf) -> None:
        r"""Add n runs to those of the estimate."""
        stream = f"annealing {self.rounds_done}" if self.rounds_done else "annealing"
        total, x = self._anneal(n, betas, stream, "annealing", end)
        self.rounds_done += 1
        self.steps = max(self.steps, len(self.used) - 1)
        self.log_weights = torch.cat([self.log_weights, self.path.log_z + total])
        self.x = torch.cat([self.x.to(x), x]) if self.x.numel() else x

    def _anneal(
        self, n: int, betas: list[float], stream: str, label: str, end: float,
        gains: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        r"""The log weights (n,) of runs from β = 0 to 1 in given steps, and their ends.

        Steps become longer where those that are left would take longer than until `end`.
        """
        x = self.path.sample(n, self.densities.generator(f"{stream}: start"))
        generator = self.densities.generator(stream)
        total = torch.zeros(n, dtype=torch.float64, device=generator.device)
        began, place, self.used = time.monotonic(), 0, [0.0]
        for done in tracked(range(len(betas) - 1), label, self.progress):
            stride = 1
            if end < math.inf and done:
                now = time.monotonic()
                affordable = max(1.0, (end - now) * done / (now - began))
                stride = max(1, math.ceil((len(betas) - 1 - place) / affordable))
            after = min(place + stride, len(betas) - 1)
            gain, x = self.path.climb(x, betas[place], betas[after], generator)
            total += gain
            place = after
            self.used.append(betas[place])
            self.sweeps += n
            if gains is not None:
                gains.append(gain)
            if place == len(betas) - 1:
                break
        total = total.cpu()
        bad = total.isnan() | (total == math.inf)
        if bad.any() or (total == -math.inf).all():
            received = f"log weights such as {total[bad | (total == -math.inf)][0].item()}"
            raise ArgumentError("target", received, "numbers, or −∞ for some of the runs")
        x = self.path.events(x) if hasattr(self.path, "events") else x
        check_pairs(self.path, self.densities, x)
        return total, x
