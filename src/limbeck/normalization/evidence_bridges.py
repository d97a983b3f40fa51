r"""Draws of a posterior in two parts: a student of each, bridged with the other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.errors import ArgumentError, LimbeckError
from limbeck.normalization.bridge import BridgeFit, fit_bridge
from limbeck.normalization.estimate import Bound, LogPartition, Verdict, mean_bound
from limbeck.normalization.evidence_students import Candidate, Student, candidates
from limbeck.posteriors.log_density import LogDensity
from limbeck.progress import tracked

Part = tuple[slice, slice]  # chains and draws


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
        family, last = "", math.inf
        affine = self.target.coordinates.affine
        assert affine is not None
        known = candidates(kind, z, affine.factor, self.seed)
        label = f"fitting students to part {stream + 1} of 2 of the draws"
        for candidate in tracked(known, label, self.progress):
            # the average of both sides has six times as many draws
            new = candidate.family != family
            if best is not None and new and best[0] / math.sqrt(6) < std_error:
                break
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
