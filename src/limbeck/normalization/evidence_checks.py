r"""Checks of an estimate of the evidence, and of the draws that it was made from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.normalization.bridge import MIN_EFFECTIVE_DRAWS, fit_bridge
from limbeck.normalization.densities import Densities, tail_doubts
from limbeck.normalization.estimate import LogPartition
from limbeck.normalization.evidence_students import StudentT
from limbeck.posteriors.draws import Draws, spread
from limbeck.progress import tracked
from limbeck.samplers.diagnostics import SIGNIFICANT, effective_size
from limbeck.samplers.hmc import HMC, differentiate
from limbeck.samplers.slice import Slice
from limbeck.teachers.keys import row_keys

if TYPE_CHECKING:
    from limbeck.normalization.evidence import PosteriorSample, Side

MAX_REPEATED = 0.1  # the share of draws that may be equal to others
SWEPT = 2000  # draws that sweeps start from
LOCAL_CHAINS, LOCAL_SWEEPS = 64, 60  # from the highest point, and from each probe
FALSE_ALARMS = 0.005  # the share of right draws that the sweeps' check may reject


class Checks:
    r"""Reasons to distrust an estimate, and what could not be checked."""

    def __init__(self, sample: PosteriorSample, sides: Sequence[Side], z: LogPartition) -> None:
        self.sample, self.sides, self.z = sample, sides, z
        self.doubts, self.unchecked, self.gap = list[str](), list[str](), 0.0

    def draws(self, stored: Draws) -> None:
        r"""Whether the draws have converged, and overlap with the students."""
        sample, (one, two) = self.sample, self.sides
        self.doubts += stored.diagnostics().reasons
        if zero := int((sample.log_p == -math.inf).sum()):
            share = f"{zero:,} of {sample.log_p.numel():,} draws"
            self.doubts.append(f"log_density is −∞ at {share}: they are not draws of it")
        keys = row_keys(sample.z.flatten(0, 1))[:, 0]
        keys = keys[np.append(True, keys[1:] != keys[:-1])]  # a chain may stay where it is
        if (repeated := 1 - len(np.unique(keys)) / len(keys)) > MAX_REPEATED:
            self.doubts.append(
                f"{repeated:.0%} of the draws are equal to others, which are not their neighbours: "
                "they were copied or resampled, so errors are larger than stated"
            )
        if (size := self.z.diagnostics["ess"]) < MIN_EFFECTIVE_DRAWS:
            self.doubts.append(f"{size:.0f} effective draws are too few to know the error")
        if (inside := min(one.fit.inside, two.fit.inside)) < 25:
            self.doubts.append(f"draws and student hardly overlap (in about {inside:.2g} draws)")
        apart = one.fit.log_z - two.fit.log_z
        error = math.hypot(one.fit.std_error, two.fit.std_error)
        if abs(apart) > SIGNIFICANT * error:
            self.doubts.append(
                f"the two parts of the draws give estimates that differ by {apart:.2g}"
            )
            self.gap = max(self.gap, abs(apart))
        proposed = sum(len(side.proposed) for side in self.sides)
        outside = sum(int((side.proposed == -math.inf).sum()) for side in self.sides)
        self.z.diagnostics |= {"chains": stored.chains, "proposals_outside": outside / proposed}
        for side in self.sides:  # mass where no draw is
            largest = float(side.ratio[side.ratio.isfinite()].max())
            beyond = side.proposed[side.proposed > largest]
            mass = float((beyond - self.z.value).exp().sum()) / len(side.proposed)
            if len(beyond) >= 3 and mass * size > 10:
                self.doubts.append(
                    f"log_density has about {mass:.1%} of its mass where no draw is, by samples of "
                    "the student: the draws miss a part of it"
                )
                break

    def balance(self) -> None:
        r"""Whether draws and weighted samples of the students agree, as on the weights of modes."""
        for stream, side in enumerate(self.sides):
            proposed = side.student.sample(
                len(side.proposed), self.sample.generator(100 + stream)
            )  # as bridged
            one, two = (
                torch.cat([z.tanh(), z.square().log1p()], -1).double()
                for z in (proposed, self.sample.z[side.held_out])
            )
            scores = side.fit.imbalance(one, two)
            largest = float(scores.abs().max())
            if largest > -float(torch.special.ndtri(one.new_tensor(1e-4 / len(scores)))):
                self.doubts.append(
                    f"draws and weighted samples of the student differ (z = {largest:.1f}): the "
                    "draws may be of another density, or have wrong weights of modes"
                )
                break

    def tails(self) -> None:
        r"""Whether the density can be integrated."""
        z = self.sample.z.flatten(0, 1)
        z = z[torch.randperm(len(z), generator=self.sample.generator(1))[:200]]
        target: Any = self.sample.target  # without chains
        reasons = [tail_doubts(Densities(target), z, far) for far in (50.0, 1e6)]
        self.doubts += reasons[0] or reasons[1]

    def sweeps(self, sweeps: int, probes: Tensor | None) -> None:
        r"""Whether sweeps leave the draws' distribution as it is, and lead to other mass."""
        if not sweeps:
            self.unchecked.append("the draws were not checked by sweeps (sweeps=0)")
            return
        sample = self.sample
        log_density = sample.target.log_unnormalized
        differentiable = sample.target.differentiable
        most = SWEPT if differentiable and sample.target.batched else 300
        step = math.ceil(sample.log_p.numel() / most)
        chains, draws, dim = sample.z[:, ::step].shape
        inside = sample.log_p[:, ::step].flatten() > -math.inf
        owner = torch.zeros_like(sample.log_p, dtype=torch.bool)
        owner[self.sides[1].held_out] = True
        start, owner = sample.z[:, ::step].flatten(0, 1)[inside], owner[:, ::step].flatten()[inside]
        with warnings.catch_warnings(action="ignore"):  # of adaptation
            if differentiable:
                some = start[spread(len(start), 100)]
                adapted = HMC(log_density, some, generator=sample.generator(2)).burn_in(80)
                sampler: HMC | Slice = HMC(
                    log_density, start, step_size=adapted.step_size, scale=adapted.scale,
                    generator=sample.generator(3),
                )  # fmt: skip
            else:
                sampler = Slice(log_density, start, generator=sample.generator(3))
                sweeps = min(sweeps, 3)
            for _ in tracked(range(sweeps), "sweeps that check the draws", sample.progress):
                end = sampler.step()
        self.z.sweeps = sweeps * len(start)
        if isinstance(sampler, HMC) and sampler.divergences > 0.05 * self.z.sweeps:
            share = sampler.divergences / self.z.sweeps
            self.unchecked.append(f"{share:.0%} of the sweeps that check the draws were unstable")
        change = self._statistics(end, owner) - self._statistics(start, owner)
        series = change.reshape(chains, draws, -1) if inside.all() else change[None]
        sizes = [min(effective_size(each), each.numel()) for each in series.unbind(2)]
        mean, error = change.mean(0), change.std(0) / torch.tensor(sizes).sqrt()
        scores = torch.where(mean.abs() > 1e-9, mean / error, 0.0)
        worst = int(scores.abs().argmax())
        self.z.diagnostics["sweeps_z"] = score = float(scores[worst])
        limit = -float(torch.special.ndtri(scores.new_tensor(FALSE_ALARMS / 2 / len(scores))))
        if abs(score) > limit:
            names = [sample.target.coordinates.owner(index) for index in range(dim)]
            kinds = [f"the location of {name}" for name in names]
            kinds += [f"the spread of {name}" for name in names]
            kinds += ["the distance from the mean", "log_density", "the overlap with a student"]
            self.doubts.append(
                f"sweeps change {kinds[worst]} (z = {score:.1f}): the draws are not "
                "of log_density (a Jacobian may be missing), or have not converged"
            )
            ratios = [log_density(end) - side.student.log_prob(end) for side in self.sides]
            pairs = zip(ratios, self.sides, strict=True)
            again = sum(fit_bridge(ratio[None], side.proposed).log_z for ratio, side in pairs) / 2
            self.gap = max(self.gap, abs(again - self.z.value))
        if differentiable:
            self._regions(start, probes)
        elif probes is not None:
            self.unchecked.append("probe= was not used: log_density has no derivatives")

    def _statistics(self, z: Tensor, owner: Tensor) -> Tensor:
        r"""Bounded or slowly growing functions (n, k) of whitened rows; `owner` is their side."""
        log_p = self.sample.target.log_unnormalized(z)
        known = self.sample.log_p[self.sample.log_p > -math.inf]
        centre = known.median()
        scale = (known - centre).abs().median().clamp_min(1e-12)
        # of the student that was not fitted to a draw: at its own it is better than elsewhere
        tilts = [side.fit.tilt(log_p - side.student.log_prob(z)) for side in self.sides]
        tilt = torch.where(owner, tilts[1], tilts[0])
        square = z.square()
        rest = [square.sum(1).log1p(), ((log_p - centre) / (3 * scale)).tanh(), tilt]
        return torch.cat([z.tanh(), square.log1p(), torch.stack(rest, 1)], 1)

    def _regions(self, start: Tensor, probes: Tensor | None) -> None:
        r"""Whether chains from the highest point, and from probes, stay where no draw is."""
        log_density = self.sample.target.log_unnormalized
        points = [("the highest point", _climb(log_density, start[spread(len(start), 16)]))]
        for number, point in enumerate(() if probes is None else probes):
            if not float(log_density(point[None])) > -math.inf:
                received = f"point {number}, of density zero"
                raise ArgumentError("probe", received, "a density above zero")
            points.append((f"probe {number}", point))
        shown = tracked(points, "chains from the highest point and probes", self.sample.progress)
        for number, (name, point) in enumerate(shown):
            with warnings.catch_warnings(action="ignore"):  # of adaptation
                generator = self.sample.generator(10 + number)
                sampler = HMC(log_density, point.repeat(LOCAL_CHAINS, 1), generator=generator)
                sampler.burn_in(LOCAL_SWEEPS)
                z = torch.stack([sampler.step() for _ in range(20)], 1)  # (chains, 20, dim)
            rows = z.flatten(0, 1)
            log_p = log_density(rows)
            beyond = torch.ones_like(log_p, dtype=torch.bool)
            for side in self.sides:
                largest = float(side.ratio[side.ratio.isfinite()].max())
                beyond &= log_p - side.student.log_prob(rows) > largest + 1
            if beyond.double().mean() < 0.5:
                continue
            mass, error = self._local_mass(z, log_p.reshape(z.shape[:2]))
            # a sharp peak of little mass is no surprise, where a user points to one it is
            least = math.log(0.05 if number == 0 else 0.2 * self.z.std_error)
            if mass + 2 * error > self.z.value + least:
                share = math.exp(min(mass - self.z.value, 50.0))
                self.doubts.append(
                    f"chains from {name} stay where no draw is; the estimate lacks their mass, "
                    f"about {share:.2g} times as large"
                )
                self.gap = max(self.gap, math.log1p(share))

    def _local_mass(self, z: Tensor, log_p: Tensor) -> tuple[float, float]:
        r"""The logarithm of the mass that chains (chains, draws, dim) move in, and its error."""
        half = len(z) // 2
        try:
            student = StudentT(z[:half].flatten(0, 1), math.inf)
        except torch.linalg.LinAlgError:
            return math.inf, 0.0
        log_q = student.log_prob(z[half:].flatten(0, 1)).reshape(len(z) - half, -1)
        fit = fit_bridge(log_p[half:] - log_q, self.sample.log_ratio(student, 2000, 4))
        return fit.log_z, fit.std_error

    def log_posterior(self, logs: Sequence[Tensor], log_density: Tensor) -> None:
        r"""Compare the sampler's log densities with the user's at draws, up to a constant."""
        known = self.sample.log_p > -math.inf
        volume = (self.sample.log_p - log_density)[known]
        volume, jacobian = volume - volume.mean(), bool(volume.std() > 1e-9)
        gap = math.inf
        for given in logs:
            scale = 1e-3 * float(given[known].std()) + 1e-5 * float(given[known].abs().max())
            difference = (given - log_density)[known]
            difference = difference - difference.mean()
            for name, rest in {"without": difference, "with": difference - volume}.items():
                if (apart := float(rest.std())) <= scale:
                    of_supports = f" {name} the Jacobian of supports" if jacobian else ""
                    self.z.diagnostics["log_posterior"] = f"matches log_density{of_supports}"
                    return
                gap = min(gap, apart)
        self.z.diagnostics["log_posterior"] = "differs"
        self.doubts.append(
            f"log_density differs from the log posterior of the draws, by more than a constant "
            f"(standard deviation {gap:.3g}): a Jacobian may be missing or one too many, or it is "
            "of another model"
        )


def _climb(log_density: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    r"""The highest of the points (dim,) that are reached from rows by Adam."""
    x, best, peak = z.clone(), -math.inf, z[0]
    optimizer = torch.optim.Adam([x], lr=0.2, maximize=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150, eta_min=1e-4)
    for _ in range(150):
        _, log, x.grad = differentiate(log_density, x)
        if (value := log.max().item()) > best:
            best, peak = value, x[log.argmax()].clone()
        optimizer.step()
        schedule.step()
    return peak
