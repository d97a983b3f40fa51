r"""`log_partition`: log Z of a target, with an error and a verdict; and exact sums."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from limbeck.arguments import Count, Flag, Positive, Seed, UserObject, checked_arguments
from limbeck.errors import ArgumentError, shown
from limbeck.models.rbm import RBM, log_z_parts
from limbeck.normalization import densities
from limbeck.normalization.annealing import AIS
from limbeck.normalization.bridge import Bridge
from limbeck.normalization.elimination import Elimination, find_elimination
from limbeck.normalization.estimate import Bound, LogPartition, Method, Verdict
from limbeck.normalization.importance import Importance
from limbeck.normalization.mode_search import HURRIED
from limbeck.normalization.normalize import normalize
from limbeck.normalization.tempering import Tempering
from limbeck.progress import announce, tracked
from limbeck.samplers.chains import Target
from limbeck.supports import Discrete

ENUMERABLE = 2**20  # events that method="auto" sums exactly
DEFAULT_ERROR, DEFAULT_SECONDS = 0.01, 40.0  # of "auto", where neither is given
PILOT_SAMPLES = 1000
LATE = 1.3  # times the seconds, plus one: the verdict of a run that took longer says so
DRAWS_PER_CHAIN = 8  # of a bridge: they share a burn-in
# where "auto" distils a student if annealing would take longer than that does, by a trial of it
STUDENT_DEVICES, STUDENT_SECONDS, TRIAL_SECONDS = ("cuda",), 20.0, 5.0


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class Exact:
    r"""log Z as the sum over all events of a discrete target.

    Where there are too many and sites interact in pairs only, as in an Ising model, sites are
    summed out one after the other. That they do is found by differences of the log density, and
    compared with it at many events.

    Arguments:
        limit: The largest number of events, or of entries of a table, that is tried. Default: 2²⁵.
        block: Events at a time. Default: what suits the processor's cache, or the GPU.
    """

    name: ClassVar[str] = "exact"

    limit: Count = 2**25
    block: Count | None = None

    @checked_arguments
    def estimate(
        self, target: UserObject[Target], proposal: UserObject[object] = None, *,
        seed: Seed = 0, progress: Flag = True,
    ) -> LogPartition:  # fmt: skip
        r"""As `lb.Bridge.estimate`; the proposal and the seed are not used."""
        began = time.perf_counter()
        densities.check_target(target, chains=False)
        z = self._sum(target, find_elimination(target, self.limit), progress)
        z.seed, z.seconds = seed, time.perf_counter() - began
        return z

    def _sum(self, target: Target, sums: Elimination | None, progress: bool) -> LogPartition:
        r"""log Z by sums over one site after the other, or else over all events."""
        details: dict[str, Any] = {}
        unchecked: tuple[str, ...] = ()
        if sums is None:
            value = self._enumerated(target, progress)
        else:
            value, unchecked = sums.log_z(progress), (HURRIED,) * sums.hurried
            details = {"largest_table": sums.largest_table, "events_compared": sums.compared}
        bound = Bound(value, 0.0)
        return LogPartition(value, 0.0, "exact", Verdict((), unchecked), bound, bound, details)

    def _enumerated(self, target: Target, progress: bool) -> float:
        expected = "a target with a discrete support, to enumerate"
        support = densities.discrete_support(target, expected)
        if isinstance(target, RBM):
            parts = log_z_parts(target, self.limit, self.block, progress)
        else:
            parts = self._event_parts(target, support, progress)
        with densities.Densities(target).at_work():
            log_z = torch.stack(list(parts)).logsumexp(0).item()
        if not math.isfinite(log_z):
            expected = "finite log densities, or −∞ at some of the events"
            raise ArgumentError("target", f"a model whose log Z is {log_z}", expected)
        return log_z

    def _event_parts(self, target: Target, support: Discrete, progress: bool) -> Iterator[Tensor]:
        r"""The logarithm of the sum of p̃ over each block of events."""
        if (count := support.count**support.size) > self.limit:
            expected = f"at most {self.limit:,}, or an estimate of log Z"
            raise ArgumentError("target", f"{support.count}^{support.size} events", expected)
        block = self.block or max(1, 2**22 // support.size)  # numbers that fit anywhere
        for start in tracked(range(0, count, block), "enumerating", progress):
            end = min(start + block, count)
            x = support.enumerate(start, end, *densities.place_of(target))
            yield target.log_unnormalized(x).double().logsumexp(0)


KINDS: dict[str, type[Method] | type[Exact]] = {
    kind.name: kind for kind in (Bridge, Importance, AIS, Tempering, Exact)
}
METHODS = ("auto", *KINDS)


@checked_arguments
def log_partition(
    target: UserObject[Target], proposal: UserObject[object] = None, *,
    method: UserObject[str | Method | Exact] = "auto", std_error: Positive | None = None,
    seconds: Positive | None = None, exact: Flag = True, samples: Count | None = None,
    burn_in: UserObject[int | str | None] = None, seed: Seed = 0, progress: Flag = True,
    **settings: object,
) -> LogPartition:  # fmt: skip
    r"""Estimate log Z of an unnormalised density.

    * "ais": annealing along a path to the target; no proposal is needed.
    * "tempering": chains at many temperatures that exchange states; no proposal is needed.
    * "bridge": samples of the target and of a proposal that overlaps with it.
    * "importance": samples of a proposal alone, which must cover all of the target's mass.
    * "exact": the sum over all events, where they can be counted.
    * "auto": exact up to 2²⁰ events, or if sums over one site after the other are feasible; or
      else bridge with a proposal, and annealing without. On a GPU, where annealing would take long
      to reach `std_error`, a student is distilled for a bridge.

    `std_error` or `seconds` decide on everything else: a pilot run forecasts the cost, and numbers
    of samples and temperatures follow from it. `z.note` says what was done. Runs that are limited
    by time are not repeatable to the last bit.

    `z.verdict` says whether it can be trusted: "trustworthy", "doubtful" where a check failed, or
    "unchecked" where one could not run. No method can detect mass that neither the proposal, nor
    a chain, nor hill climbing has come near: pass events from such regions, for example data, as
    `start` or `second_start`.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.samplers.chains.Target`.
        proposal: A student, or a distribution with `log_prob` and `sample`. Default: for "bridge"
            and "importance", one is distilled first, by `limbeck.normalize`.
        method: "auto", "ais", "tempering", "bridge", "importance" or "exact", or an object such as
            `lb.Bridge(samples=2000, kernel="mixed")`. Default: "auto".
        std_error: The standard error to reach. Default: for "auto" without a proposal, 0.01.
        seconds: A limit on the time of everything; all of it is used without `std_error`. Default:
            for "auto" without a proposal, 40.
        exact: Whether "auto" may compute exact sums. Default: True.
        samples: Samples of the target and of the proposal; runs, for "ais"; draws at each level,
            for "tempering". Default: 10,000, or by `std_error` or `seconds`.
        burn_in: Sweeps of the chains before the first draw. Default: 2,000; see `lb.Bridge`.
        seed: Seeds everything; equal seeds give equal results. Default: 0.
        progress: Whether to show bars, or lines without a terminal. Default: True.
        settings: Further arguments of the objects `lb.Bridge`, `lb.Importance`, `lb.AIS`,
            `lb.Tempering` or `lb.Exact`, for a method by name. Those of another are ignored.

    >>> import torch
    >>> from limbeck.models.rbm import RBM
    >>> rbm = RBM.random(30, 4, generator=torch.Generator().manual_seed(0))
    >>> log_partition(rbm).method
    'exact'
    """
    began, sums, trial = time.monotonic(), None, False
    settings |= {"samples": samples, "burn_in": burn_in}
    budget = {"std_error": std_error, "seconds": seconds}
    if isinstance(method, str):
        if method not in METHODS:
            raise ArgumentError.unknown("method", method, METHODS)
        if method == "auto":
            densities.check_target(target, chains=False)
            half = math.inf if seconds is None else began + seconds / 2
            method, sums = feasible(target, half) if exact else ("bridge", None)
            if method == "bridge" and proposal is None:
                method, trial = "ais", std_error is not None
                given = (settings.get(name) for name in ("samples", "schedule"))
                if not any((*budget.values(), *given)):
                    budget = {"std_error": DEFAULT_ERROR, "seconds": DEFAULT_SECONDS}
        if method == "ais" and any(budget.values()):
            if seconds is not None:  # less what has passed
                budget["seconds"] = max(began + seconds - time.monotonic(), 0.1 * seconds)
            settings |= budget
        known = {field.name for kind in KINDS.values() for field in fields(kind)}
        for name in settings.keys() - known:
            names = known | {"method", "proposal", "exact", "seed", "progress"}
            raise ArgumentError.unknown_argument(name, names, "log_partition")
        method = _with_settings(method, settings, any(budget.values()))
    elif not isinstance(method, Method | Exact):
        expected = "a name, or lb.Bridge(), lb.Importance(), lb.AIS(), lb.Tempering(), lb.Exact()"
        raise ArgumentError("method", f"a {type(method).__name__}", expected)
    else:
        for name, value in (settings | (budget if isinstance(method, AIS) else {})).items():
            if value is not None:
                where = f"set it in lb.{type(method).__name__}()"
                expected = f"no such keyword with a method object: {where}"
                raise ArgumentError(name, shown(value), expected)
    if isinstance(method, AIS):
        std_error, seconds = method.std_error, seconds or method.seconds
        trial = trial and method.path is None  # along a path of the user's own it anneals
        if trial and _distilling_pays(method, target, seed, progress):
            method = _with_settings("bridge", settings, True)
    if proposal is None and isinstance(method, Bridge | Importance):
        device, _ = densities.place_of(target)
        options: dict[str, Any] = {} if seconds is None else {"seconds": 0.4 * seconds}
        options |= {"device": device, "seed": seed, "progress": progress}
        proposal = normalize(target, **options).student
    if (std_error or seconds) and not isinstance(method, AIS | Exact):
        left = math.inf if seconds is None else seconds - (time.monotonic() - began)
        method = _with_samples(method, target, proposal, std_error, left, seed, progress)
    if isinstance(method, Exact) and sums is not None:
        z = method._sum(target, sums, progress)
        z.seed = seed
    else:
        z = method.estimate(target, proposal, seed=seed, progress=progress)
    z.seconds = time.monotonic() - began
    if std_error or seconds:
        z.note = _note(z, std_error, seconds)
    return z


def _with_settings(name: str, settings: Mapping[str, object], budget: bool) -> Method | Exact:
    r"""The method by name with those of the settings that it has; None stands for its default."""
    kind = KINDS[name]
    values: dict[str, Any] = {
        name: settings[name]
        for name in settings.keys() & {field.name for field in fields(kind)}
        if settings[name] is not None or name == "second_start"
    }
    if kind is Bridge and budget:
        values = {"burn_in": "auto"} | values
    return kind(**values)


def _distilling_pays(method: AIS, target: Target, seed: int, progress: bool) -> bool:
    r"""Whether a student would be trained sooner than annealing reaches its standard error."""
    device, _ = densities.place_of(target)
    enough = method.seconds is None or method.seconds > STUDENT_SECONDS + TRIAL_SECONDS
    if device.type not in STUDENT_DEVICES or not enough or not target.support.discrete:
        return False
    trial = replace(method, seconds=TRIAL_SECONDS)
    z = trial.estimate(target, seed=seed + 2**41, progress=progress)
    wanted = method.std_error or math.inf
    return z.seconds * (z.std_error / wanted) ** 2 > STUDENT_SECONDS


def _with_samples(
    method: Method, target: Target, proposal: object, std_error: float | None, left: float,
    seed: int, progress: bool,
) -> Method:  # fmt: skip
    r"""The method with the samples that an error needs, or that some seconds allow, by a pilot.

    The pilot's samples do not enter the estimate, so that its error decides on nothing.
    """
    began, each, runs = time.perf_counter(), 1, PILOT_SAMPLES
    if isinstance(method, Bridge) and method.chains is None:
        on_gpu = densities.place_of(target)[0].type == "cuda"  # where few chains take as long
        each, runs = DRAWS_PER_CHAIN, PILOT_SAMPLES * 4 if on_gpu else PILOT_SAMPLES // 4

    def with_runs(n: int) -> Method:
        if isinstance(method, Bridge) and each > 1:
            return replace(method, samples=n * each, chains=n, thin="auto")
        return replace(method, samples=n)

    z = with_runs(runs).estimate(target, proposal, seed=seed + 2**40, progress=progress)
    took = time.perf_counter() - began
    affordable = 0.8 * max(left - took, 0.0) / took
    factor = affordable
    if std_error is not None:
        factor = min(1.2 * (z.diagnostics["sampling_error"] / std_error) ** 2, affordable)
    n = min(max(runs, math.ceil(factor * runs)), 2**22 // each)
    seconds = took * n / runs
    announce(f"{method.name}: {n * each:,} samples, at most {seconds:.0f} s", progress)
    return with_runs(n)


def _note(z: LogPartition, std_error: float | None, seconds: float | None) -> str:
    r"""What was done to reach an error or to keep within a time."""
    if seconds is not None and z.seconds > LATE * seconds + 1:
        return (
            f"It took {z.seconds:.0f} s instead of {seconds:g} s: a single evaluation of the "
            "target, or a sweep of it, takes too long."
        )
    if z.method == "exact":
        return ""
    how = f"{z.samples:,} samples after a pilot run"
    if "temperatures" in z.diagnostics:
        count, rounds = z.diagnostics["temperatures"], z.diagnostics.get("rounds", 1)
        how = f"{z.samples:,} runs of {count:,} temperatures, in {rounds} round{'s' * (rounds > 1)}"
        how += " after a pilot run"
    if std_error is not None and z.std_error > std_error:
        return f"The standard error of {std_error:g} was not reached in {z.seconds:.0f} s ({how})."
    return f"It took {how}."


def feasible(target: Target, end: float) -> tuple[str, Elimination | None]:
    r"""The method of "auto", and how to sum sites out, if sums end before a time."""
    support = target.support
    if isinstance(target, RBM):
        count = 2.0 ** min(target.visible, target.hidden)
    else:
        count = math.exp(min(support.log_count, 700)) if isinstance(support, Discrete) else math.inf
    if count <= ENUMERABLE:
        late = end < math.inf and _time_of(target, count, end) > end - time.monotonic()
        return "bridge" if late else "exact", None
    sums = find_elimination(target, ENUMERABLE, end)
    return "exact" if sums is not None else "bridge", sums


@torch.no_grad()
def _time_of(target: Target, count: float, end: float) -> float:
    r"""A forecast of the seconds that many evaluations take."""
    support, n, block = target.support, densities.EVENTS, 2**22 // target.support.size
    while True:
        x = support.start(n, torch.Generator().manual_seed(0)).to(*densities.place_of(target))
        began = time.monotonic()
        target.log_unnormalized(x)
        took = time.monotonic() - began
        if n >= min(block, count) or took > 0.02 * (end - began):
            return took * max(count / n, 1.0)
        n = min(8 * n, block)


@checked_arguments
def exact_log_z(
    target: UserObject[Target], *, limit: Count = 2**25, block: Count | None = None,
    progress: Flag = True,
) -> float:  # fmt: skip
    r"""log Z of a discrete target, by enumeration, or by sums over one site after the other.

    The latter is for sites that interact in pairs only; see `lb.Exact`. Of an RBM the smaller side
    is enumerated, and the other summed in closed form, in float64.

    Arguments:
        target: An RBM, or any target with a discrete support.
        limit: The largest number of events, or of entries of a table, that is tried. Default: 2²⁵.
        block: Events at a time. Default: what suits the processor's cache, or the GPU.
        progress: Whether to show a bar, if a terminal is there. Default: True.

    >>> round(exact_log_z(RBM([[0.0], [0.0]], [0.0, 0.0], [0.0])) / math.log(2), 9)
    3.0
    """
    method = Exact(limit=limit, block=block)
    return method._sum(target, find_elimination(target, limit), progress).value
