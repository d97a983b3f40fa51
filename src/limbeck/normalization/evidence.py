r"""`log_evidence`: draws of a posterior in two parts, a student of each bridged with the other."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import as_part, as_parts, label
from limbeck.errors import ArgumentError, LimbeckError, rename_argument
from limbeck.normalization.bridge import BridgeFit, fit_bridge
from limbeck.normalization.densities import check_repeatable
from limbeck.normalization.estimate import Bound, LogPartition, mean_bound, recorded_warnings
from limbeck.normalization.evidence_checks import Checks
from limbeck.normalization.evidence_students import STUDENTS, Candidate, Student, candidates
from limbeck.posteriors.coordinates import Coordinates
from limbeck.posteriors.draws import Draws, is_whole
from limbeck.posteriors.log_density import LogDensity
from limbeck.posteriors.read import LAYOUTS, as_draws
from limbeck.progress import tracked
from limbeck.verdict import Verdict

Part = tuple[slice, slice]  # chains and draws


@arg.checked_arguments
def log_evidence(
    log_density: arg.Function[Callable[..., Any]], draws: arg.UserObject[Any], *,
    support: arg.UserObject[Any] = None,
    student: Annotated[str, arg.Choice("auto", *STUDENTS)] = "auto",
    samples: arg.Count | arg.Auto = "auto", sweeps: arg.CountFromZero = 10,
    probe: arg.UserObject[Any] = None, log_posterior: arg.UserObject[Any] = None,
    std_error: arg.Positive = 0.005, var_names: arg.Text | arg.Items[Sequence[str]] | None = None,
    burn_in: arg.CountFromZero = 0, thin: arg.Count = 1,
    layout: Annotated[str, arg.Choice(*LAYOUTS, "auto")] = "auto", seed: arg.Seed = 0,
    progress: arg.Flag = True,
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
        student: "gaussian", "student_t", "autoregressive", "radial", "mixture", "flow" (needs
            zuko), or "auto", which tries them in turn, by the error of a bridge with draws that
            they were not fitted to. Default: "auto".
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
        progress: Whether to show bars, or lines without a terminal. Default: True.

    >>> draws = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> e = log_evidence(lambda x: -x.square().sum() / 2, draws)  # log 2π is 1.8379
    >>> abs(e.value - 1.8379) < 4.5 * e.std_error, e.verdict.state
    (True, 'trustworthy')
    """
    began = time.perf_counter()
    with recorded_warnings() as texts, torch.no_grad():
        with rename_argument("posterior", "draws"):
            stored = as_draws(draws, var_names=var_names, burn_in=burn_in, thin=thin, layout=layout)
        if not isinstance(stored, Draws):
            raise ArgumentError("draws", f"a {type(draws).__name__}", "stored draws, not a stream")
        coordinates = Coordinates(stored.structure, support)
        _check_draws(stored, coordinates)
        rows = stored.flat.detach().cpu().double()
        target = LogDensity(log_density, stored.structure, coordinates, rows, stored.dtype)
        log_density_at = target.at_draws(rows)
        for name in target.unused(rows):
            expected = "variables that log_density depends on; var_names=['~name'] leaves one out"
            raise ArgumentError(name, "a variable that log_density does not depend on", expected)
        z = coordinates.whiten(rows)
        check_repeatable(target.log_unnormalized, z, "log_density")
        log_p = log_density_at + coordinates.constrained(z)[1]
        shape = (stored.chains, stored.per_chain)
        z = z.reshape(*shape, -1)
        sample = PosteriorSample(target, z, log_p.reshape(shape), seed, progress)
        count = max(stored.count, 2000) if isinstance(samples, str) else samples
        sides = [sample.bridged(*parts, student, count, std_error) for parts in sample.halves()]
        e = average(sides)
        checks = Checks(sample, sides, e)
        checks.draws(stored)
        checks.balance()
        checks.tails()
        checks.sweeps(sweeps, None if probe is None else _probes(probe, stored, coordinates))
        logs = _sampler_logs(log_posterior, draws, stored, slice(burn_in, None, thin))
        if logs is not None:
            checks.log_posterior(logs, log_density_at.reshape(shape))
    e.std_error = math.hypot(e.std_error, checks.gap)
    e.verdict = Verdict((*checks.doubts, *texts), tuple(checks.unchecked))
    e.samples, e.seed, e.seconds = stored.count, seed, time.perf_counter() - began
    return e


def _check_draws(draws: Draws, coordinates: Coordinates) -> None:
    r"""Refuse variables that are constant or discrete, and too few draws."""
    need = 2 * max(20, 2 * draws.structure.dim)
    if draws.count < need:
        received = f"{draws.count} draws of {draws.structure.dim} numbers"
        raise ArgumentError("draws", received, f"at least {need}, to split them into two parts")
    for name, part in draws.parts.items():
        if is_whole(part):
            expected = "a continuous variable; sum discrete ones out of log_density"
            raise ArgumentError(label("draws", name), "whole numbers", expected)
    for index in coordinates.plain_columns:  # others, as a triangle's zeros, may be constant
        series = draws.series(index)
        values = len(series.unique())
        if values < min(20, draws.count / 10):
            name, place = draws.structure.place(index)
            where = label("draws", name) + (f"[..., {', '.join(map(str, place))}]" if place else "")
            received = f"only {values} different values" if values > 1 else "a constant"
            expected = "a continuous variable; var_names=['~name'] leaves one out"
            raise ArgumentError(where, received, expected)


def _probes(probe: Any, stored: Draws, coordinates: Coordinates) -> Tensor:
    r"""Points of a user as unconstrained rows (m, dim)."""
    parts = {name: part.values.double().cpu() for name, part in as_parts(probe, "probe").items()}
    with rename_argument("draws", "probe"):
        rows = stored.structure.flatten(parts).reshape(-1, stored.structure.dim)
        return coordinates.unconstrained(rows)


def _sampler_logs(given: Any, draws: Any, stored: Draws, time_: slice) -> list[Tensor] | None:
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
    return [logs] if own else [logs, -logs]


class Side(NamedTuple):
    r"""A student of one part of the draws, bridged with the other."""

    name: str
    student: Student
    fit: BridgeFit
    ratio: Tensor  # log p̃/q at all draws (chains, draws)
    held_out: Part
    proposed: Tensor  # log p̃/q at samples of q


class PosteriorSample:
    r"""Draws in whitened coordinates (chains, draws, dim), with log p̃ (chains, draws)."""

    def __init__(
        self, target: LogDensity, z: Tensor, log_p: Tensor, seed: int, progress: bool
    ) -> None:
        self.target, self.z, self.log_p, self.progress = target, z, log_p, progress
        # of its own for each set of draws, so that estimates of two models are independent
        digest = hashlib.sha256(z.numpy().tobytes() + str(seed).encode()).digest()
        self.seed = int.from_bytes(digest[:6], "little")

    def generator(self, purpose: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + purpose)

    def halves(self) -> list[tuple[Part, Part]]:
        r"""The part that a student is fitted to, and the other; then the same exchanged."""
        chains, draws, _ = self.z.shape
        everything, cut = slice(None), (chains if chains >= 4 else draws) // 2
        ends = slice(cut), slice(cut, None)
        one, two = ((end, everything) if chains >= 4 else (everything, end) for end in ends)
        return [(one, two), (two, one)]

    def bridged(
        self, fitted: Part, held_out: Part, kind: str, samples: int, std_error: float
    ) -> Side:
        r"""Choose and fit a student on one part of the draws, and bridge it with the other."""
        stream = 1 if fitted[0].start or fitted[1].start else 0
        name, student = self._choose(fitted, kind, std_error, stream)
        proposed = self.log_ratio(student, samples, 100 + stream)
        if not proposed.isfinite().any():
            received = f"zero at all {samples:,} samples of a student of the draws"
            raise ArgumentError("log_density", received, "a density with mass near the draws")
        log_q = student.log_prob(self.z.flatten(0, 1)).reshape(self.log_p.shape)
        ratio = self.log_p - log_q
        return Side(name, student, fit_bridge(ratio[held_out], proposed), ratio, held_out, proposed)

    def log_ratio(self, student: Student, samples: int, purpose: int) -> Tensor:
        r"""log p̃/q at samples of a student."""
        z = student.sample(samples, self.generator(purpose))
        return self.target.log_unnormalized(z) - student.log_prob(z)

    def _choose(
        self, fitted: Part, kind: str, std_error: float, stream: int
    ) -> tuple[str, Student]:
        r"""The student with the least error of a bridge, by a third of the part that it is of."""
        z, log_p = self.z[fitted].flatten(0, 1), self.log_p[fitted].flatten()
        cut = len(z) - len(z) // 3
        best: tuple[float, Candidate, Student] | None = None
        family, last, tried = "", math.inf, list[str]()
        affine = self.target.coordinates.affine
        assert affine is not None
        known = candidates(kind, z, affine.factor, self.seed)
        label = f"fitting students to part {stream + 1} of 2 of the draws"
        for candidate in tracked(known, label, self.progress):
            # the average of both sides has six times as many draws
            new = candidate.family != family
            if best is not None and new and best[0] / math.sqrt(6) < std_error:
                break
            if best is not None and new and tried.index(best[1].family) < len(tried) - 3:
                break  # three others were no better
            tried += [candidate.family] if new else []
            if not new and family == "mixture" and last == math.inf:  # so are more components
                continue
            last, family = math.inf if new else last, candidate.family
            try:
                student = candidate.fit(z[:cut])
            except (LimbeckError, torch.linalg.LinAlgError):
                continue
            held_out = (log_p[cut:] - student.log_prob(z[cut:]))[None]
            error = fit_bridge(held_out, self.log_ratio(student, len(z), 200 + stream)).std_error
            if best is None or error < 0.95 * best[0]:
                best = error, candidate, student
            last = error if error < 0.95 * last else math.inf
        if best is None:
            received = f"{len(z)} draws that no student ({kind}) could be fitted to"
            raise ArgumentError("student", received, "more draws, or another student")
        _, candidate, student = best
        if candidate.family in ("gaussian", "student_t", "autoregressive"):
            with suppress(LimbeckError, torch.linalg.LinAlgError):
                again = candidate.fit(z)  # others may come out otherwise with more draws
                if self.log_ratio(again, 200, 300 + stream).isfinite().any():  # it has not diverged
                    student = again
        return candidate.name, student


def average(sides: Sequence[Side]) -> LogPartition:
    r"""The mean of the two estimates.

    The errors of both have a common part: what a student learnt by chance from its own draws, seen
    at the others, is symmetric in the two parts. It is small if the students agree, and all if
    their differences from the target are unrelated: the correlation of the f₂ of both tells.
    """
    fits = [side.fit for side in sides]
    parts = [fit.variances for fit in fits]
    series = torch.stack([1 - side.fit.tilt(side.ratio).flatten() for side in sides])
    agreement = float(torch.corrcoef(series)[0, 1]) if (series.std(1) > 0).all() else 0.0
    common = (1 - min(max(agreement, 0.0), 1.0)) * math.sqrt(parts[0][1] * parts[1][1])
    variance = (sum(map(sum, parts)) + 2 * common) / 4
    error = math.sqrt(variance) if math.isfinite(variance) else math.inf
    lower = [mean_bound(side.proposed) for side in sides]
    upper = [mean_bound(side.ratio[side.held_out]) for side in sides]
    low, high = (
        Bound(sum(pair) / 2, math.hypot(*(bound.std_error for bound in pair)) / 2)
        for pair in (lower, upper)
    )
    return LogPartition(
        sum(fit.log_z for fit in fits) / 2, error, "bridge", Verdict(), low, high,
        {
            "student": " and ".join(dict.fromkeys(side.name for side in sides)),
            "ess": sum(fit.ess for fit in fits), "sampling_error": error,
            "overlap": sum(fit.overlap for fit in fits) / 2,
        },
        degrees=min(fit.degrees for fit in fits), quantity="log evidence",
    )  # fmt: skip
