r"""Parallel tempering: chains at many temperatures that exchange states, and log Z from all."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.errors import ArgumentError
from limbeck.normalization.densities import Densities, check_target
from limbeck.normalization.estimate import Estimate, LogPartition, Method, Verdict
from limbeck.normalization.paths import LinearPath, along_path, check_pairs, log_at, path_of
from limbeck.progress import tracked
from limbeck.samplers.chains import Target
from limbeck.samplers.diagnostics import SIGNIFICANT, difference, effective_size, r_hat

ADAPTATIONS = 12  # rounds in which levels are moved, at most
REJECTED = 0.4  # the share of exchanges between neighbours that levels are placed for
MAX_LEVELS = 400
MAX_ENTRIES = 2**24  # of the table of log densities of all draws at all levels
MIN_ARRIVALS = 20  # states that must have gone along all of the path
CHECKED_EVENTS = 4000  # draws of the target that checks use


@arg.checked_arguments
@dataclass(frozen=True, kw_only=True)
class Tempering(Method):
    r"""log Z by parallel tempering; no proposal is needed.

    A ladder is a number of chains, one at each level of a path from a density whose log Z is known
    to the target. Neighbours exchange their states, so that modes that are far apart at the target
    are connected at higher levels of temperature. Many independent ladders run side by side. The
    levels are placed in a burn-in such that all neighbours exchange equally often, and then stay.
    log Z is the estimate of MBAR from the draws of all levels (Shirts and Chodera, 2008).

    Arguments:
        samples: Draws at each level, of all ladders together. Default: 10,000.
        ladders: Independent ladders, from 4. Default: 50.
        levels: Their number, from 2, or "auto". Default: "auto".
        burn_in: Sweeps between the placement of levels and the first draw. Default: 100.
    """

    name: ClassVar[str] = "tempering"

    ladders: Annotated[int, arg.Whole(4)] = 50
    levels: Annotated[int, arg.Whole(2)] | arg.Auto = "auto"
    burn_in: arg.CountFromZero = 100

    def _estimate(self, densities: Densities, progress: bool) -> Estimate:
        run = along_path(densities, lambda path: self._run(densities, path, 1.0, progress))
        logs = run.log_densities()
        log_z, weights, H = mbar(logs.flatten(1))
        # the change of log Z of the target if one draw is left out, summed over each ladder
        solved = torch.linalg.solve(H[1:, 1:], torch.eye(len(H) - 1, dtype=H.dtype)[:, -1])
        solved = torch.cat([solved.new_zeros(1), solved])
        effect = (solved @ weights).reshape(logs.shape[1:]).sum(2) - solved.sum()
        size = effective_size(effect)
        error = effect.numel() * float(effect.std()) / math.sqrt(size)
        half = effect.shape[1] // 2
        drift = difference(effect[:, :half], effect[:, half:])
        rates, value, doubts = run.swap_rates(), run.path.log_z + float(log_z[-1]), run.doubts()
        integral = run.path.log_z + thermodynamic_integral(run.B - run.A, run.levels)
        if size < 100:
            doubts.append(f"{size:.0f} effective draws are too few to know the error")
        if abs(drift) > SIGNIFICANT:
            doubts.append(f"ladders still drift (z = {drift:.1f}); increase burn_in")
        if (spread := r_hat(effect)) > 1.1:
            doubts.append(f"ladders differ from one another (R-hat {spread:.2f})")
        z = LogPartition(
            value, error, self.name, Verdict(tuple(doubts)), degrees=max(size - 1, 1),
            diagnostics={
                "ess": size, "sampling_error": error, "levels": len(run.levels),
                "ladders": self.ladders, "lowest_swap_rate": min(rates),
                "arrivals": run.arrivals, "drift_z": drift, "thermodynamic_integration": integral,
            },
            samples=self.ladders * run.draws, sweeps=run.sweeps,
        )  # fmt: skip
        return z, run.events, None

    def _run(self, densities: Densities, path: LinearPath, top: float, progress: bool) -> Replicas:
        r"""Ladders with draws at all levels from t = 0 to `top` of a path."""
        replicas = self._replicas(densities, path, top, progress)
        replicas.record(math.ceil(self.samples / self.ladders), progress)
        check_pairs(path, densities, replicas.top_events())
        return replicas

    def _replicas(
        self, densities: Densities, path: LinearPath, top: float, progress: bool
    ) -> Replicas:
        r"""Ladders after their burn-in."""
        replicas = Replicas(path, self.ladders, top, densities.generator("tempering"))
        replicas.adapt(None if isinstance(self.levels, str) else self.levels, progress)
        for _ in tracked(range(self.burn_in), "burning in", progress):
            replicas.step()
        replicas.reset()
        return replicas

    @arg.checked_arguments
    def draw(
        self, target: arg.UserObject[Target], n: arg.Count, seed: arg.Seed = 0,
        progress: arg.Flag = True,
    ) -> Tensor:  # fmt: skip
        r"""Draws (n, *shape) of a target, for example to start chains from.

        Arguments:
            target: An RBM, an Energy, or anything that follows `limbeck.samplers.chains.Target`.
            n: Their number; those of a ladder are correlated.
            seed: Seeds everything. Default: 0.
            progress: Whether to show bars, if a terminal is there. Default: True.
        """
        check_target(target, chains=False)
        densities = Densities(target, None, seed)
        with densities.at_work():
            replicas = self._replicas(densities, path_of(densities), 1.0, progress)
            events = list[Tensor]()
            for _ in tracked(range(math.ceil(n / self.ladders)), "tempering", progress):
                replicas.step()
                events.append(replicas.top_events())
        return torch.cat(events)[:n]


class Replicas:
    r"""Ladders of chains, each at a level t of a path, which exchange levels with neighbours."""

    def __init__(
        self, path: LinearPath, ladders: int, top: float, generator: torch.Generator
    ) -> None:
        self.path, self.ladders, self.generator = path, ladders, generator
        self.levels = [top * (k / 11) ** 2 for k in range(12)]
        self.x: Any = path.sample(ladders * 12, generator)
        self.sweeps, self.steps = 0, 0
        self._place()

    def _place(self) -> None:
        r"""Set which chain (ladders, levels) of each ladder is at which level: in their order."""
        self.chain_at = torch.arange(len(self.levels)).repeat(self.ladders, 1)
        self.reset()

    def reset(self) -> None:
        r"""Reset counts of exchanges and arrivals."""
        count = len(self.levels)
        self.accepted = torch.zeros(count - 1, dtype=torch.float64)
        self.tried = torch.zeros(count - 1, dtype=torch.float64)
        # which chains have been at the start of the path since they were at its end
        self.fresh = torch.zeros(self.ladders, count, dtype=torch.bool)
        self.arrivals = 0

    def step(self) -> tuple[Tensor, Tensor]:
        r"""A sweep of all chains and exchanges; A and B (ladders, chains) after the sweep."""
        level_of = self.chain_at.argsort(1)
        t = torch.tensor(self.levels, dtype=torch.float64)[level_of].flatten()
        self.x = self.path.advance(self.x, t.to(self.generator.device), self.generator)
        A, B = (p.double().cpu().reshape(self.ladders, -1) for p in self.path.parts(self.x))
        if not B.lt(math.inf).all():
            expected = "numbers, or −∞ where there is no mass"
            raise ArgumentError("target", "log densities that are NaN or +∞", expected)
        self.sweeps += len(t)
        self._exchange(A, B)
        top = self.chain_at[:, -1:]
        self.arrivals += int(self.fresh.gather(1, top).sum())
        self.fresh.scatter_(1, top, False)
        self.fresh.scatter_(1, self.chain_at[:, :1], True)
        self.steps += 1
        return A, B

    def _exchange(self, A: Tensor, B: Tensor) -> None:
        r"""Exchanges between levels k and k + 1, of even k and of odd k in turn."""
        low = torch.arange(self.steps % 2, len(self.levels) - 1, 2)
        t = torch.tensor(self.levels, dtype=torch.float64)
        one, other = self.chain_at[:, low], self.chain_at[:, low + 1]
        gain = torch.zeros(one.shape, dtype=torch.float64)
        for chain, sign in ((one, 1), (other, -1)):
            a, b = A.gather(1, chain), B.gather(1, chain)
            gain += sign * (log_at(a, b, t[low + 1]) - log_at(a, b, t[low]))
        place: Any = {"generator": self.generator, "device": self.generator.device}
        accept = torch.rand(gain.shape, dtype=gain.dtype, **place).cpu() < gain.exp()
        self.chain_at[:, low] = torch.where(accept, other, one)
        self.chain_at[:, low + 1] = torch.where(accept, one, other)
        # the mean probability has less noise than the share that was accepted
        self.accepted[low] += gain.exp().clamp_max(1).nan_to_num(0.0).mean(0)
        self.tried[low] += 1

    def swap_rates(self) -> list[float]:
        return (self.accepted / self.tried.clamp_min(1)).tolist()

    def top_events(self) -> Tensor:
        r"""Where the chains at the last level are, (ladders, *shape)."""
        rows = torch.arange(self.ladders) * len(self.levels) + self.chain_at[:, -1]
        return self.path.events(self.path.select(self.x, rows.to(self.generator.device)))

    def record(self, draws: int, progress: bool) -> None:
        r"""Take draws at each level of each ladder.

        They set A and B (ladders, draws, levels) of all or some of them, and `events` (ladders,
        some draws, *shape) of the last level.
        """
        size, self.draws = self.ladders * len(self.levels) ** 2, draws
        every = math.ceil(draws / max(4, min(draws, MAX_ENTRIES // size)))
        shown = max(every, math.ceil(draws * self.ladders / CHECKED_EVENTS))
        A, B, events = list[Tensor](), list[Tensor](), list[Tensor]()
        for draw in tracked(range(draws), "tempering", progress):
            parts = self.step()
            if draw % every == every - 1 or draws < every:
                for series, part in zip((A, B), parts, strict=True):
                    series.append(part.gather(1, self.chain_at))  # in the order of the levels
            if draw % shown == shown - 1:
                events.append(self.top_events())
        self.A, self.B = torch.stack(A, 1), torch.stack(B, 1)
        self.events = torch.stack(events or [self.top_events()], 1)

    def doubts(self) -> list[str]:
        r"""Reasons not to trust that states have moved along all of the path."""
        doubts = list[str]()
        if (rate := min(self.swap_rates())) < 0.1:
            doubts.append(f"two levels exchange only {rate:.1%} of the time")
        if self.arrivals < MIN_ARRIVALS:
            states = f"{self.arrivals} state{'s' if self.arrivals != 1 else ''}"
            doubts.append(
                f"only {states} came from the start of the path to the target: "
                "chains there may depend on where they began; increase samples"
            )
        return doubts

    def log_densities(self) -> Tensor:
        r"""log p̃ of all draws at all levels, (levels, ladders, draws, levels)."""
        t = torch.tensor(self.levels, dtype=torch.float64).view(-1, 1, 1, 1)
        return log_at(self.A, self.B, t)

    def adapt(self, count: int | None, progress: bool) -> None:
        r"""Place levels so that neighbours exchange equally often; their number, too, if None."""
        for round_ in tracked(range(ADAPTATIONS), "placing levels", progress):
            for _ in range(20 if round_ < 6 else 50):
                self.step()
            rejected = [1 - rate for rate in self.swap_rates()]
            barrier = [0.0, *itertools.accumulate(max(r, 1e-3) for r in rejected)]
            wanted = count or min(max(3, math.ceil(barrier[-1] / REJECTED) + 1), MAX_LEVELS)
            if count is None and max(rejected) > 0.9:  # too far apart to know how far
                wanted = min(max(wanted, 2 * len(self.levels) - 1), MAX_LEVELS)
            if len(self.levels) == wanted and max(rejected) - min(rejected) < 0.1:
                break
            places = np.linspace(0, barrier[-1], wanted)
            levels = np.interp(places, barrier, self.levels).tolist()
            nearest = np.abs(np.subtract.outer(levels, self.levels)).argmin(1)
            chains = self.chain_at[:, torch.from_numpy(nearest)]
            rows = chains + torch.arange(self.ladders)[:, None] * len(self.levels)
            self.x = self.path.select(self.x, rows.flatten().to(self.generator.device))
            self.levels = [0.0, *levels[1:-1], self.levels[-1]]
            self._place()
        if callable(fix := getattr(self.path, "fix", None)):
            fix()


@torch.no_grad()
def mbar(
    log_p: Tensor, start: Tensor | None = None, rounds: int = 200
) -> tuple[Tensor, Tensor, Tensor]:
    r"""log Z of each level, less that of the first, from equally many draws of each of them.

    `log_p` (levels, n) has log densities of all draws at all levels. Weights (levels, n) are the
    probabilities that draws are of a level, given these. log Z is the maximum of a likelihood,
    where the weights of all levels have equal sums; it is returned with the weights and the matrix
    of second derivatives.
    """
    log_z = log_p.new_zeros(len(log_p)) if start is None else start.clone()
    gap, count = math.inf, log_p.shape[1] / len(log_p)
    for round_ in range(rounds):
        weights = (log_p - log_z[:, None]).softmax(0)
        sums = weights.sum(1)
        H = sums.diag() - weights @ weights.T
        error = float((sums / count - 1).abs().max())
        if error < 1e-12:
            break
        change = torch.linalg.lstsq(H[1:, 1:], (sums - count)[1:, None]).solution[:, 0]
        plain = (sums / count).log()
        # Newton's step where it is small, and error has fallen; else one that always leads uphill
        newton = start is not None or (round_ > 2 and error < gap and float(change.abs().max()) < 2)
        log_z = log_z.clone()
        log_z[1:] += change if newton else plain[1:] - plain[0]
        gap = error
    return log_z, weights, H


def thermodynamic_integral(slope: Tensor, levels: list[float]) -> float:
    r"""log Z of the last level less that of the first: ∫ ⟨∂log p̃_t/∂t⟩ dt, by means (…, levels).

    The trapezoid rule with its first correction: the slope of the mean is the variance.
    """
    means, variances = slope.flatten(0, 1).mean(0), slope.flatten(0, 1).var(0)
    width = torch.tensor(levels, dtype=torch.float64).diff()
    trapezoid = (width * (means[1:] + means[:-1]) / 2).sum()
    return float(trapezoid - (width.square() * variances.diff() / 12).sum())
