r"""Checks of an estimate of the evidence, and of the draws that it was made from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.normalization.bridge import MIN_EFFECTIVE_DRAWS, fit_bridge
from limbeck.normalization.densities import Densities, tail_doubts
from limbeck.normalization.estimate import LogPartition
from limbeck.normalization.evidence_bridges import Affine, PosteriorSample, Side
from limbeck.normalization.evidence_students import fit_student
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.log_density import LogDensity
from limbeck.samplers.diagnostics import SIGNIFICANT, effective_size
from limbeck.samplers.hmc import HMC
from limbeck.samplers.slice import Slice

SWEPT = 2000  # draws that sweeps start from
LOCAL_CHAINS, LOCAL_SWEEPS = 64, 60  # from the highest point, and from each probe
FALSE_ALARMS = 0.005  # the share of right draws that the sweeps' check may reject


class Checks:
    r"""Reasons to distrust an estimate, and what could not be checked."""

    def __init__(self, sample: PosteriorSample, sides: Sequence[Side], z: LogPartition) -> None:
        self.sample, self.sides, self.z = sample, sides, z
        self.doubts, self.unchecked = list[str](), list[str]()
        self.counts: dict[str, Any] = {}
        self.gap, self.sweeps_done = 0.0, 0
        self.affine = Affine.of(sample.u.flatten(0, 1))

    def draws(self, stored: Draws) -> None:
        r"""Whether the draws have converged, and overlap with the students."""
        sample, (one, two) = self.sample, self.sides
        self.doubts += stored.diagnostics().reasons
        if zero := int((sample.log_p == -math.inf).sum()):
            share = f"{zero:,} of {sample.log_p.numel():,} draws"
            self.doubts.append(f"log_density is −∞ at {share}: they are not draws of it")
        if self.z.diagnostics["ess"] < MIN_EFFECTIVE_DRAWS:
            size = self.z.diagnostics["ess"]
            self.doubts.append(f"{size:.0f} effective draws are too few to know the error")
        for fit in (one.fit, two.fit):
            inside = fit.overlap * min(len(fit.f_proposal) * fit.share, fit.ess * (1 - fit.share))
            if not fit.converged or inside < 25:
                self.doubts.append(
                    f"draws and student hardly overlap (in about {inside:.2g} draws)"
                )
                break
        apart = one.fit.log_z - two.fit.log_z
        error = math.hypot(one.fit.std_error, two.fit.std_error)
        if abs(apart) > SIGNIFICANT * error:
            self.doubts.append(
                f"the two parts of the draws give estimates that differ by {apart:.2g}"
            )
            self.gap = max(self.gap, abs(apart))
        proposed = sum(len(side.proposed) for side in self.sides)
        outside = sum(int((side.proposed == -math.inf).sum()) for side in self.sides)
        self.counts |= {"chains": stored.chains, "proposals_outside": outside / proposed}
        for side in self.sides:  # mass where no draw is
            largest = float(side.ratio[side.ratio.isfinite()].max())
            beyond = side.proposed[side.proposed > largest]
            mass = float((beyond - self.z.value).exp().sum()) / len(side.proposed)
            if len(beyond) >= 3 and mass * self.z.diagnostics["ess"] > 10:
                self.doubts.append(
                    f"log_density has about {mass:.1%} of its mass where no draw is, by samples of "
                    "the student: the draws miss a part of it"
                )
                break

    def tails(self) -> None:
        r"""Whether the density can be integrated."""
        u = self.sample.u.flatten(0, 1)
        order = torch.randperm(len(u), generator=self.sample.generator(1))
        for far in (50.0, 1e6):
            z = self.affine.whiten(u[order[:200]])
            target: Any = _Whitened(self.sample.target, self.affine)  # without chains
            if reasons := tail_doubts(Densities(target), z, far):
                self.doubts += reasons
                return

    def sweeps(self, sweeps: int, probes: Tensor | None) -> None:
        r"""Whether sweeps leave the draws' distribution as it is, and lead to other mass."""
        if not sweeps:
            self.unchecked.append("the draws were not checked by sweeps (sweeps=0)")
            return
        sample = self.sample
        target = _Whitened(sample.target, self.affine)
        differentiable = sample.target.differentiable
        most = SWEPT if differentiable and sample.target.batched else 300
        step = math.ceil(sample.log_p.numel() / most)
        chains, draws, dim = sample.u[:, ::step].shape
        start = self.affine.whiten(sample.u[:, ::step]).flatten(0, 1)
        inside = target.log_unnormalized(start) > -math.inf
        owner = torch.zeros_like(sample.log_p, dtype=torch.bool)
        owner[self.sides[1].held_out] = True
        start, owner = start[inside], owner[:, ::step].flatten()[inside]
        with _quiet():
            if differentiable:
                some = start[torch.linspace(0, len(start) - 1, min(100, len(start))).long()]
                adapted = HMC(target.log_unnormalized, some, generator=sample.generator(2))
                adapted.burn_in(80)
                sampler: HMC | Slice = HMC(
                    target.log_unnormalized, start, step_size=adapted.step_size,
                    scale=adapted.scale, generator=sample.generator(3),
                )  # fmt: skip
            else:
                sampler = Slice(target.log_unnormalized, start, generator=sample.generator(3))
                sweeps = min(sweeps, 3)
            for _ in range(sweeps):
                end = sampler.step()
        self.sweeps_done = sweeps * len(start)
        if isinstance(sampler, HMC) and sampler.divergences > 0.05 * self.sweeps_done:
            share = sampler.divergences / self.sweeps_done
            self.unchecked.append(f"{share:.0%} of the sweeps that check the draws were unstable")
        before, after = self._statistics(start, owner), self._statistics(end, owner)
        change = after - before
        change = change.reshape(chains, draws, -1) if inside.all() else change[None]
        sizes = [min(effective_size(series), series.numel()) for series in change.unbind(2)]
        error = change.flatten(0, 1).std(0) / torch.tensor(sizes).sqrt()
        mean = change.flatten(0, 1).mean(0)
        scores = torch.where(mean.abs() > 1e-9, mean / error, 0.0)
        worst = int(scores.abs().argmax())
        from scipy.special import ndtri

        limit = -float(ndtri(FALSE_ALARMS / 2 / len(scores)))
        self.counts["sweeps_z"] = float(scores[worst])
        if abs(float(scores[worst])) > limit:
            names = [sample.target.coordinates.owner(index) for index in range(dim)]
            kinds = [f"the location of {name}" for name in names]
            kinds += [f"the spread of {name}" for name in names]
            kinds += ["the distance from the mean", "log_density", "the overlap with a student"]
            self.doubts.append(
                f"sweeps change {kinds[worst]} (z = {float(scores[worst]):.1f}): the draws are not "
                "of log_density (a Jacobian may be missing), or have not converged"
            )
            u = self.affine.back(end)
            log_p = sample.target.log_unnormalized(u)
            fits = [
                fit_bridge((log_p - side.log_prob(u))[None], side.proposed) for side in self.sides
            ]
            self.gap = max(self.gap, abs(sum(fit.log_z for fit in fits) / 2 - self.z.value))
        if differentiable:
            self._regions(target, start, probes)
        elif probes is not None:
            self.unchecked.append("probe= was not used: log_density has no derivatives")

    def _statistics(self, z: Tensor, owner: Tensor) -> Tensor:
        r"""Bounded or slowly growing functions (n, k) of whitened rows; `owner` is their side."""
        u = self.affine.back(z)
        log_p = self.sample.target.log_unnormalized(u)
        known = self.sample.log_p[self.sample.log_p > -math.inf]
        centre = known.median()
        scale = (known - centre).abs().median().clamp_min(1e-12)
        # of the student that was not fitted to a draw: at its own it is better than elsewhere
        tilts = [side.fit.tilt(log_p - side.log_prob(u)) for side in self.sides]
        tilt = torch.where(owner, tilts[1], tilts[0])
        square = z.square()
        rest = [square.sum(1).log1p(), ((log_p - centre) / (3 * scale)).tanh(), tilt]
        return torch.cat([z.tanh(), square.log1p(), torch.stack(rest, 1)], 1)

    def _regions(self, target: _Whitened, start: Tensor, probes: Tensor | None) -> None:
        r"""Whether chains from the highest point, and from probes, stay where no draw is."""
        peak = _climb(target, start[torch.linspace(0, len(start) - 1, 16).long()])
        points = {"the highest point": peak}
        if probes is not None:
            z = self.affine.whiten(probes)
            points |= {f"probe {number}": point for number, point in enumerate(z)}
        for number, (name, point) in enumerate(points.items()):
            if not float(target.log_unnormalized(point[None])) > -math.inf:
                raise ArgumentError("probe", f"{name}, of density zero", "a density above zero")
            with _quiet():
                generator = self.sample.generator(10 + number)
                chains = point.repeat(LOCAL_CHAINS, 1)
                sampler = HMC(target.log_unnormalized, chains, generator=generator)
                sampler.burn_in(LOCAL_SWEEPS)
                z = torch.stack([sampler.step() for _ in range(20)], 1)  # (chains, 20, dim)
            u = self.affine.back(z)
            log_p = self.sample.target.log_unnormalized(u.flatten(0, 1)).reshape(z.shape[:2])
            beyond = torch.ones_like(log_p, dtype=torch.bool)
            for side in self.sides:
                largest = float(side.ratio[side.ratio.isfinite()].max())
                beyond &= log_p - side.log_prob(u) > largest + 1
            if beyond.double().mean() < 0.5:
                continue
            mass, error = self._local_mass(u, log_p)
            # a sharp peak of little mass is no surprise, where a user points to one it is
            least = math.log(0.05 if number == 0 else 0.2 * self.z.std_error)
            if mass + 2 * error > self.z.value + least:
                share = math.exp(min(mass - self.z.value, 50.0))
                self.doubts.append(
                    f"chains from {name} stay where no draw is; the estimate lacks their mass, "
                    f"about {share:.2g} times as large"
                )
                self.gap = max(self.gap, math.log1p(share))

    def _local_mass(self, u: Tensor, log_p: Tensor) -> tuple[float, float]:
        r"""The logarithm of the mass that chains (chains, draws, dim) move in, and its error."""
        half = len(u) // 2
        rows = u[:half].flatten(0, 1)
        try:
            affine = Affine.of(rows)
        except ArgumentError:
            return math.inf, 0.0
        student = fit_student("gaussian", math.inf, affine.whiten(rows), 0)
        assert student is not None
        z = student.sample(2000, self.sample.generator(4))
        proposed = self.sample.target.log_unnormalized(affine.back(z)) - student.log_prob(z)
        at = affine.whiten(u[half:]).flatten(0, 1)
        ratio = (log_p[half:].flatten() - student.log_prob(at)).reshape(len(u) - half, -1)
        fit = fit_bridge(ratio, proposed)
        return fit.log_z + affine.log_volume, fit.std_error

    def log_posterior(self, logs: dict[str, Tensor], log_density: Tensor) -> None:
        r"""Compare the sampler's log densities with the user's, up to a constant."""
        volume = self.sample.log_p - log_density
        known = self.sample.log_p > -math.inf
        jacobian = bool((volume[known].std() > 1e-9).item())
        others = {"without the Jacobian of supports": log_density}
        if jacobian:
            others["with the Jacobian of supports"] = self.sample.log_p
        differences = {}
        for sign, given in logs.items():
            scale = 1e-3 * float(given[known].std()) + 1e-5 * float(given[known].abs().max())
            for name, other in others.items():
                difference = (given - other)[known]
                if float(difference.std()) <= scale:
                    self.counts["log_posterior"] = (
                        f"matches log_density {name}" if jacobian else "matches log_density"
                    )
                    return
                differences[sign, name] = difference
            if jacobian and float((given - log_density + volume)[known].std()) <= scale:
                self.counts["log_posterior"] = "differs by the Jacobian"
                self.doubts.append(
                    "log_density has the Jacobian of a support already, and log_posterior has not: "
                    "log_density must be the density of the parameters as they were drawn"
                )
                return
        difference = min(differences.values(), key=lambda d: float(d.std()))
        self.counts["log_posterior"] = "differs"
        why = _explanation(difference, self.sample, known)
        self.doubts.append(
            f"log_density differs from the log posterior of the draws, by more than a constant "
            f"(standard deviation {float(difference.std()):.3g}){why}"
        )


def _explanation(difference: Tensor, sample: PosteriorSample, known: Tensor) -> str:
    r"""Whether a difference is the logarithm of the volume of a transformation."""
    u = sample.u[known]
    rows = sample.target.coordinates.constrained(u)[0]
    owner = sample.target.coordinates.owner
    features = {f"{owner(k)} itself": u[:, k] for k in range(u.shape[1])}
    for k in range(rows.shape[1]):
        x, name = rows[:, k], f"column {k} of the draws"
        if (x > 0).all():
            features[f"log of {name}"] = x.log()
        if ((x > 0) & (x < 1)).all():
            features[f"log x(1 − x) of {name}"] = (x * (1 - x)).log()
    total = difference - difference.mean()
    for name, feature in features.items():
        centred = feature - feature.mean()
        slope = float(total @ centred / centred.square().sum())
        rest = total - slope * centred
        if abs(abs(slope) - 1) < 0.05 and float(rest.std()) < 0.05 * float(total.std()):
            return f": it is {'minus ' if slope < 0 else ''}{name}, so that a Jacobian is missing"
    return ""


class _Whitened:
    r"""A log density of whitened rows."""

    def __init__(self, target: LogDensity, affine: Affine) -> None:
        self.target, self.affine, self.support = target, affine, target.support

    def log_unnormalized(self, z: Tensor) -> Tensor:
        return self.target.log_unnormalized(self.affine.back(z)) + self.affine.log_volume


@torch.enable_grad()
def _climb(target: _Whitened, z: Tensor) -> Tensor:
    r"""The highest of the points (dim,) that are reached from rows by Adam."""
    x = z.clone().requires_grad_()
    best, peak = -math.inf, z[0]
    steps = 150
    optimizer = torch.optim.Adam([x], lr=0.2)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.2 * (0.5 + 0.5 * math.cos(math.pi * step / steps)) ** 2 + 1e-4
        log = target.log_unnormalized(x)
        top = int(log.argmax())
        if (value := log[top].item()) > best:
            best, peak = value, x[top].detach().clone()
        (slope,) = torch.autograd.grad(log.sum(), x)
        x.grad = -slope.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    r"""Without the samplers' warnings, which are of their own adaptation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
