r"""Draws of a posterior in two parts: a student of each, bridged with the other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.normalization.bridge import BridgeFit, fit_bridge
from limbeck.normalization.estimate import Bound, LogPartition, Verdict, mean_bound
from limbeck.normalization.evidence_students import Student, candidates, fit_student
from limbeck.posteriors.log_density import LogDensity
from limbeck.samplers.diagnostics import effective_size

Part = tuple[slice, slice]  # chains and draws


class Affine(NamedTuple):
    r"""Rows u = mean + factor z."""

    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, u: Tensor) -> Affine:
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


class Side(NamedTuple):
    r"""A student of one part of the draws, bridged with the other."""

    name: str
    student: Student  # of whitened rows
    affine: Affine
    fit: BridgeFit
    ratio: Tensor  # log p̃/q at all draws (chains, draws)
    held_out: Part
    proposed: Tensor  # log p̃/q at samples of q

    def log_prob(self, u: Tensor) -> Tensor:
        z = self.affine.whiten(u)
        log = self.student.log_prob(z.reshape(-1, z.shape[-1])) - self.affine.log_volume
        return log.reshape(u.shape[:-1])


class PosteriorSample:
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
    ) -> Side:
        r"""Choose and fit a student on one part of the draws, and bridge it with the other."""
        u = self.u[fitted].flatten(0, 1)
        affine = Affine.of(u)
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
        return Side(name, student, affine, fit, ratio, held_out, proposed)

    def _choose(
        self, z: Tensor, log_p: Tensor, kind: str, std_error: float, stream: int, affine: Affine
    ) -> tuple[str, Student]:
        r"""The student with the least error of a bridge, by a third of the part that it is of."""
        cut = len(z) - len(z) // 3
        best: tuple[float, str, float, Student] | None = None
        family, last = "", math.inf
        for number, (name, setting) in enumerate(candidates(kind, z)):
            # the average of both sides has six times as many draws
            if best is not None and name != family and best[0] / math.sqrt(6) < std_error:
                break
            if name == family == "mixture" and last == math.inf:  # so are more components
                continue
            last = last if name == family else math.inf
            family = name
            student = fit_student(name, setting, z[:cut], self.seed + number, affine.factor)
            if student is None:
                continue
            proposals = student.sample(len(z), self.generator(200 + stream))
            ratio = self.target.log_unnormalized(affine.back(proposals)) + affine.log_volume
            fit = fit_bridge(
                (log_p[cut:] - student.log_prob(z[cut:]))[None], ratio - student.log_prob(proposals)
            )
            if best is None or fit.std_error < 0.95 * best[0]:
                best = fit.std_error, name, setting, student
            last = fit.std_error if fit.std_error < 0.95 * last else math.inf
        if best is None:
            received = f"{len(z)} draws that no student ({kind}) could be fitted to"
            raise ArgumentError("student", received, "more draws, or another student")
        _, name, setting, student = best
        if name in ("gaussian", "student_t", "autoregressive"):  # others may come out otherwise
            student = fit_student(name, setting, z, self.seed, affine.factor) or student
        suffix = f" ({setting:g})" if name in ("mixture", "radial", "student_t") else ""
        return name + suffix, student


def average(sides: Sequence[Side]) -> LogPartition:
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


def _variances(side: Side) -> tuple[float, float]:
    r"""The variances of log Z that come from samples of the student, and from the draws."""
    fit = side.fit
    sizes = len(fit.f_proposal), fit.ess
    series = fit.f_proposal, fit.f_target
    one, two = (
        float(f.var()) / float(f.mean()) ** 2 / n if f.mean() > 0 else math.inf
        for f, n in zip(series, sizes, strict=True)
    )
    return one, two


def _upper(side: Side) -> Bound:
    ratio = side.ratio[side.held_out]
    finite = bool(ratio.isfinite().all())
    return mean_bound(ratio, effective_size(ratio) if finite else None)
