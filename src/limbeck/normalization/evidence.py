r"""`log_evidence`: the normaliser of a posterior, from draws of it."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import (
    Auto,
    Choice,
    Count,
    CountFromZero,
    Flag,
    Function,
    Items,
    Positive,
    Seed,
    Text,
    UserObject,
    checked_arguments,
)
from limbeck.arrays import as_part, label
from limbeck.errors import ArgumentError, rename_argument
from limbeck.normalization.bridge import MIN_EFFECTIVE_DRAWS, BridgeFit, fit_bridge
from limbeck.normalization.densities import Densities, check_repeatable, tail_doubts
from limbeck.normalization.estimate import (
    Bound,
    LogPartition,
    Verdict,
    mean_bound,
    recorded_warnings,
)
from limbeck.normalization.evidence_students import STUDENTS, Student, candidates, fit_student
from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Draws, is_whole
from limbeck.posteriors.log_density import LogDensity
from limbeck.posteriors.read import LAYOUTS, as_draws
from limbeck.samplers.diagnostics import SIGNIFICANT, effective_size
from limbeck.samplers.hmc import HMC
from limbeck.samplers.slice import Slice

SWEPT = 2000  # draws that sweeps start from
LOCAL_CHAINS, LOCAL_SWEEPS = 64, 60  # from the highest point, and from each probe
FALSE_ALARMS = 0.005  # the share of right draws that the sweeps' check may reject
Part = tuple[slice, slice]  # chains and draws


@checked_arguments
def log_evidence(
    log_density: Function[Callable[..., Any]], draws: UserObject[Any], *,
    support: UserObject[Any] = None, student: Annotated[str, Choice("auto", *STUDENTS)] = "auto",
    samples: Count | Auto = "auto", sweeps: CountFromZero = 10, probe: UserObject[Any] = None,
    log_posterior: UserObject[Any] = None, std_error: Positive = 0.005,
    var_names: Text | Items[Sequence[str]] | None = None, burn_in: CountFromZero = 0,
    thin: Count = 1, layout: Annotated[str, Choice(*LAYOUTS, "auto")] = "auto", seed: Seed = 0,
    progress: Flag = True,
) -> LogPartition:  # fmt: skip
    r"""Estimate the log evidence of a model: log ∫ p(data, θ) dθ, from draws of its posterior.

    Draws are split into two parts, by chain or by time. A student is fitted to each, and bridged
    with the other part; the two estimates are averaged. `log_density` needs all constants of
    likelihood and prior, and a proper prior: no estimate can notice that they are left out.

    Sweeps of HMC from the draws (slice sampling, if autograd cannot differentiate `log_density`)
    must leave their distribution as it is: draws that are shifted, too narrow or not converged are
    "doubtful". A mode that no draw is in can only be noticed with `probe`.

    Arguments:
        log_density: log p(data, θ) of the parameters as they were drawn: a vector, or a dict of
            tensors; of one draw, or (n,) of n draws. −∞ is allowed.
        draws: An array (draw, dim) or (chain, draw, dim), a dict of arrays (chain, draw, ...), an
            ArviZ object, or what else `lb.as_draws` reads.
        support: By name, the supports of variables that are not real: "positive", a pair (low,
            high), "unit_interval", "simplex", "ordered", or a `torch.distributions` constraint. Of
            vectors: one for all, or by position. Default: None, real.
        student: "gaussian", "student_t", "radial", "mixture", "flow" (needs zuko), or "auto", which
            tries them in turn, by the error of a bridge with draws that they were not fitted to.
            Default: "auto".
        samples: Samples of each student. Default: "auto", as many as there are draws, and 2,000.
        sweeps: Sweeps that check the draws. Without them the estimate is "unchecked". Default: 10.
        probe: Points like draws, (m, dim) or a dict of (m, ...), in regions that draws may have
            missed. Default: None.
        log_posterior: The log densities (chain, draw) that the sampler had at the draws, to compare
            with `log_density`. Default: None, "lp" of the sample_stats of an ArviZ object.
        std_error: The standard error below which no further student is tried. Default: 0.005.
        var_names: Variables to use, or, as "~name", to drop. Default: all.
        burn_in: Number of draws to drop at the start of each chain. Default: 0.
        thin: Take every `thin`-th draw of each chain. Default: 1.
        layout: What the first axes are; see `lb.as_draws`. Default: "auto".
        seed: Seeds everything; equal seeds give equal results. Default: 0.
        progress: Whether to show bars, if a terminal is there. Default: True.

    >>> draws = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> e = log_evidence(lambda x: -x.square().sum() / 2, draws)  # log 2π is 1.8379
    >>> abs(e.value - 1.8379) < 4.5 * e.std_error, e.verdict.state
    (True, 'trustworthy')
    """
    began = time.perf_counter()
    with rename_argument("posterior", "draws"):
        stored = as_draws(draws, var_names=var_names, burn_in=burn_in, thin=thin, layout=layout)
    if not isinstance(stored, Draws):
        raise ArgumentError("draws", f"a {type(draws).__name__}", "stored draws, not a stream")
    _check_draws(stored)
    rows = stored.flat.detach().cpu().double()
    coordinates = Coordinates(stored.structure, support)
    with recorded_warnings() as texts, torch.no_grad():
        u = coordinates.unconstrained(rows)
        target = LogDensity(log_density, stored.structure, coordinates, rows, stored.dtype)
        check_repeatable(target.log_unnormalized, u, "log_density")
        log_density_at = target.at_draws(rows)
        if unused := target.unused(rows):
            name = unused[0]
            expected = "variables that log_density depends on; var_names=['~name'] leaves one out"
            raise ArgumentError(name, "a variable that log_density does not depend on", expected)
        log_p = log_density_at + coordinates.constrained(u)[1]
        shape = (stored.chains, stored.per_chain)
        sample = _Sample(target, u.reshape(*shape, -1), log_p.reshape(shape), seed)
        count = max(stored.count, 2000) if isinstance(samples, str) else samples
        sides = [sample.bridged(*parts, student, count, std_error) for parts in sample.halves()]
        z = _average(sides)
        checks = _Checks(sample, sides, z)
        checks.draws(stored)
        checks.tails()
        points = None if probe is None else _probes(probe, stored, coordinates)
        checks.sweeps(sweeps, points)
        logs = _sampler_logs(log_posterior, draws, stored, slice(burn_in, None, thin))
        if logs is not None:
            checks.log_posterior(logs, log_density_at.reshape(shape))
    z.std_error = math.hypot(z.std_error, checks.gap)
    z.verdict = Verdict((*checks.doubts, *texts), tuple(checks.unchecked))
    z.diagnostics |= checks.counts
    z.samples, z.sweeps = stored.count, checks.sweeps_done
    z.seed, z.seconds = seed, time.perf_counter() - began
    return z


def _check_draws(draws: Draws) -> None:
    r"""Refuse variables that are constant or discrete, and too few draws."""
    need = 2 * max(20, 2 * draws.structure.dim)
    if draws.count < need:
        received = f"{draws.count} draws of {draws.structure.dim} numbers"
        raise ArgumentError("draws", received, f"at least {need}, to split them into two parts")
    for name, part in draws.parts.items():
        if is_whole(part):
            expected = "a continuous variable; sum discrete ones out of log_density"
            raise ArgumentError(label("draws", name), "whole numbers", expected)
    for index in range(draws.structure.dim):
        series = draws.series(index)
        values = len(series.unique())
        if values < min(20, draws.count / 10):
            name, place = draws.structure.place(index)
            where = label("draws", name) + (f"[..., {', '.join(map(str, place))}]" if place else "")
            received = f"only {values} different values" if values > 1 else "a constant"
            expected = "a continuous variable; var_names=['~name'] leaves one out"
            raise ArgumentError(where, received, expected)


class _Affine(NamedTuple):
    r"""Rows u = mean + factor z."""

    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, u: Tensor) -> _Affine:
        r"""By which rows u (n, dim) have the mean 0 and the covariance 1."""
        mean = u.mean(0)
        covariance = (u - mean).T @ (u - mean) / len(u)
        scale = covariance.diagonal().sqrt()
        correlation = covariance / scale.outer(scale)
        factor, failed = torch.linalg.cholesky_ex(correlation)
        if failed or float(factor.diagonal().min()) < 1e-6:
            received = "variables of which some are linear functions of others"
            raise ArgumentError("draws", received, "free parameters; see var_names and support")
        return cls(mean, scale[:, None] * factor)

    def whiten(self, u: Tensor) -> Tensor:
        flat = (u - self.mean).reshape(-1, len(self.mean))
        return torch.linalg.solve_triangular(self.factor, flat.T, upper=False).T.reshape(u.shape)

    def back(self, z: Tensor) -> Tensor:
        return self.mean + z @ self.factor.T

    @property
    def log_volume(self) -> float:
        return float(self.factor.diagonal().log().sum())


class _Side(NamedTuple):
    r"""A student of one part of the draws, bridged with the other."""

    name: str
    student: Student  # of whitened rows
    affine: _Affine
    fit: BridgeFit
    ratio: Tensor  # log p̃/q at all draws (chains, draws)
    held_out: Part
    proposed: Tensor  # log p̃/q at samples of q

    def log_prob(self, u: Tensor) -> Tensor:
        z = self.affine.whiten(u)
        log = self.student.log_prob(z.reshape(-1, z.shape[-1])) - self.affine.log_volume
        return log.reshape(u.shape[:-1])


class _Sample:
    r"""Draws in unconstrained coordinates (chains, draws, dim), with log p̃ (chains, draws)."""

    def __init__(self, target: LogDensity, u: Tensor, log_p: Tensor, seed: int) -> None:
        self.target, self.u, self.log_p = target, u, log_p
        # of its own for each set of draws, so that estimates of two models are independent
        digest = hashlib.sha256(u.numpy().tobytes() + str(seed).encode()).digest()
        self.seed = int.from_bytes(digest[:6], "little")

    def generator(self, purpose: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + purpose)

    def halves(self) -> list[tuple[Part, Part]]:
        r"""The part that a student is fitted to, and the other; then the same exchanged."""
        chains, draws, _ = self.u.shape
        everything = slice(None)
        if chains >= 4:
            cut = chains // 2
            parts = (slice(cut), everything), (slice(cut, None), everything)
        else:
            cut = draws // 2
            parts = (everything, slice(cut)), (everything, slice(cut, None))
        return [parts, parts[::-1]]

    def bridged(
        self, fitted: Part, held_out: Part, kind: str, samples: int, std_error: float
    ) -> _Side:
        r"""Choose and fit a student on one part of the draws, and bridge it with the other."""
        u = self.u[fitted].flatten(0, 1)
        affine = _Affine.of(u)
        stream = 1 if fitted[0].start or fitted[1].start else 0
        name, student = self._choose(
            affine.whiten(u),
            self.log_p[fitted].flatten() + affine.log_volume,
            kind,
            std_error,
            stream,
            affine,
        )
        z = student.sample(samples, self.generator(100 + stream))
        proposed = self.target.log_unnormalized(affine.back(z)) + affine.log_volume
        proposed = proposed - student.log_prob(z)
        z = affine.whiten(self.u.flatten(0, 1))
        ratio = (self.log_p.flatten() + affine.log_volume - student.log_prob(z)).reshape(
            self.log_p.shape
        )
        if not proposed.isfinite().any():
            received = f"zero at all {samples:,} samples of a student of the draws"
            raise ArgumentError("log_density", received, "a density with mass near the draws")
        fit = fit_bridge(ratio[held_out], proposed)
        return _Side(name, student, affine, fit, ratio, held_out, proposed)

    def _choose(
        self, z: Tensor, log_p: Tensor, kind: str, std_error: float, stream: int, affine: _Affine
    ) -> tuple[str, Student]:
        r"""The student with the least error of a bridge, by a third of the part that it is of."""
        cut = len(z) - len(z) // 3
        best: tuple[float, str, float, Student] | None = None
        family, worse = "", False
        for number, (name, setting) in enumerate(candidates(kind, z)):
            # the average of both sides has six times as many draws
            if best is not None and name != family and best[0] / math.sqrt(6) < std_error:
                break
            if name == family == "mixture" and worse:  # so are more components
                continue
            family = name
            student = fit_student(name, setting, z[:cut], self.seed + number, affine.factor)
            if student is None:
                continue
            proposals = student.sample(len(z), self.generator(200 + stream))
            ratio = self.target.log_unnormalized(affine.back(proposals)) + affine.log_volume
            fit = fit_bridge(
                (log_p[cut:] - student.log_prob(z[cut:]))[None], ratio - student.log_prob(proposals)
            )
            worse = best is not None and not fit.std_error < 0.95 * best[0]
            if not worse and math.isfinite(fit.std_error):
                best = fit.std_error, name, setting, student
        if best is None:
            received = f"{len(z)} draws that no student ({kind}) could be fitted to"
            raise ArgumentError("student", received, "more draws, or another student")
        _, name, setting, student = best
        if name != "flow":
            student = fit_student(name, setting, z, self.seed, affine.factor) or student
        number = f" ({setting:g})" if name in ("mixture", "radial", "student_t") else ""
        return name + number, student


def _average(sides: Sequence[_Side]) -> LogPartition:
    r"""The mean of the two estimates.

    The errors of both have a common part: what a student learnt by chance from its own draws, seen
    at the others, is symmetric in the two parts. It is small if the students agree, and all if
    their differences from the target are unrelated: the correlation of the f₂ of both tells.
    """
    fits = [side.fit for side in sides]
    parts = [_variances(side) for side in sides]
    series = torch.stack([1 - side.fit.tilt(side.ratio).flatten() for side in sides])
    agreement = float(torch.corrcoef(series)[0, 1]) if (series.std(1) > 0).all() else 0.0
    common = (1 - min(max(agreement, 0.0), 1.0)) * math.sqrt(parts[0][1] * parts[1][1])
    variance = (sum(map(sum, parts)) + 2 * common) / 4
    error = math.sqrt(variance) if math.isfinite(variance) else math.inf
    lower = [mean_bound(side.proposed) for side in sides]
    upper = [_upper(side) for side in sides]
    bounds = [
        Bound(sum(pair) / 2, math.hypot(*(bound.std_error for bound in pair)) / 2)
        for pair in (lower, upper)
    ]
    return LogPartition(
        sum(fit.log_z for fit in fits) / 2, error, "bridge", Verdict(), *bounds,
        {
            "student": " and ".join(dict.fromkeys(side.name for side in sides)),
            "ess": sum(fit.ess for fit in fits), "sampling_error": error,
            "overlap": sum(fit.overlap for fit in fits) / 2,
        },
        degrees=min(fit.degrees for fit in fits), quantity="log evidence",
    )  # fmt: skip


def _variances(side: _Side) -> tuple[float, float]:
    r"""The variances of log Z that come from samples of the student, and from the draws."""
    fit = side.fit
    sizes = len(fit.f_proposal), fit.ess
    series = fit.f_proposal, fit.f_target
    one, two = (
        float(f.var()) / float(f.mean()) ** 2 / n if f.mean() > 0 else math.inf
        for f, n in zip(series, sizes, strict=True)
    )
    return one, two


def _upper(side: _Side) -> Bound:
    ratio = side.ratio[side.held_out]
    finite = bool(ratio.isfinite().all())
    return mean_bound(ratio, effective_size(ratio) if finite else None)


class _Checks:
    r"""Reasons to distrust an estimate, and what could not be checked."""

    def __init__(self, sample: _Sample, sides: Sequence[_Side], z: LogPartition) -> None:
        self.sample, self.sides, self.z = sample, sides, z
        self.doubts, self.unchecked = list[str](), list[str]()
        self.counts: dict[str, Any] = {}
        self.gap, self.sweeps_done = 0.0, 0
        self.affine = _Affine.of(sample.u.flatten(0, 1))

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
            target = _Whitened(self.sample.target, self.affine)
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
                few = start[torch.linspace(0, len(start) - 1, min(100, len(start))).long()]
                adapted = HMC(target.log_unnormalized, few, generator=sample.generator(2)).burn_in(
                    80
                )
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
            self.unchecked.append(
                f"{share:.0%} of the trajectories that check the draws were unstable"
            )
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
            kinds += [
                "the distance from the mean",
                "log_density",
                "the overlap with a student",
            ]
            self.doubts.append(
                f"sweeps from the draws change {kinds[worst]} (z = {float(scores[worst]):.1f}): they "
                "are not draws of log_density (a Jacobian or a constraint may be missing in it), or "
                "chains have not converged"
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
                raise ArgumentError(
                    "probe", f"{name}, where the density is zero", "a density above zero"
                )
            with _quiet():
                generator = self.sample.generator(10 + number)
                chains = point.repeat(LOCAL_CHAINS, 1)
                sampler = HMC(target.log_unnormalized, chains, generator=generator)
                sampler.burn_in(LOCAL_SWEEPS)
                z = torch.stack([sampler.step() for _ in range(20)], 1)  # (chains, 20, dim)
            u, log_p = (
                self.affine.back(z),
                target.log_unnormalized(z.flatten(0, 1)).reshape(z.shape[:2]),
            )
            log_p = log_p - self.affine.log_volume
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
                    f"chains from {name} stay where no draw is; the mass there is about {share:.2g} "
                    "times that of the estimate, which lacks it"
                )
                self.gap = max(self.gap, math.log1p(share))

    def _local_mass(self, u: Tensor, log_p: Tensor) -> tuple[float, float]:
        r"""The logarithm of the mass that chains (chains, draws, dim) move in, and its error."""
        half = len(u) // 2
        rows = u[:half].flatten(0, 1)
        try:
            affine = _Affine.of(rows)
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


def _explanation(difference: Tensor, sample: _Sample, known: Tensor) -> str:
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

    def __init__(self, target: LogDensity, affine: _Affine) -> None:
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


def _probes(probe: Any, stored: Draws, coordinates: Coordinates) -> Tensor:
    r"""Points of a user as unconstrained rows (m, dim)."""
    structure, expected = stored.structure, f"points (m, ...) like draws, of {stored.structure}"
    parts = probe if isinstance(probe, dict) else {"": probe}
    if set(parts) != set(structure.names):
        raise ArgumentError("probe", f"points of {', '.join(map(repr, parts))}", expected)
    tensors = {}
    for name, shape in zip(structure.names, structure.shapes, strict=True):
        tensor = as_part(parts[name], label("probe", name)).values.double().cpu()
        tensor = tensor[None] if tuple(tensor.shape) == shape else tensor
        if tensor.shape[1:] != shape:
            raise ArgumentError(label("probe", name), f"shape {tuple(tensor.shape)}", expected)
        tensors[name] = tensor
    with rename_argument("draws", "probe"):
        return coordinates.unconstrained(structure.flatten(structure.pack(tensors)))


def _sampler_logs(given: Any, draws: Any, stored: Draws, time_: slice) -> dict[str, Tensor] | None:
    r"""The sampler's log densities (chain, draw), and with the other sign if limbeck found them."""
    shape, own = (stored.chains, stored.per_chain), given is not None
    if not own:
        if isinstance(draws, Tensor | np.ndarray):
            return None
        try:
            stats = draws["sample_stats"]
            name = next(name for name in ("lp", "lp__", "log_density") if name in stats)
            given = np.asarray(stats[name].values)[:, time_]
        except Exception:  # objects have their own ways to say that there is no such thing
            return None
    logs = as_part(given, "log_posterior").values.double().cpu()
    if logs.numel() != stored.count:
        if not own:
            return None
        expected = f"shape {shape}, one for each draw"
        raise ArgumentError("log_posterior", f"shape {tuple(logs.shape)}", expected)
    logs = logs.reshape(shape)
    return {"plus": logs} if own else {"plus": logs, "minus": -logs}
