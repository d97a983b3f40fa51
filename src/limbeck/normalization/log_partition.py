r"""`log_partition`: log Z of a target, with an error and a verdict; and exact sums."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from limbeck.arguments import Count, Flag, Seed, UserObject, checked_arguments, choice
from limbeck.errors import ArgumentError, shown
from limbeck.evaluation import evaluating
from limbeck.models.rbm import RBM
from limbeck.models.rbm_sums import log_z_parts
from limbeck.normalization import densities
from limbeck.normalization.annealing import AIS
from limbeck.normalization.bridge import Bridge
from limbeck.normalization.elimination import find_elimination
from limbeck.normalization.estimate import Bound, LogPartition, Method, Verdict
from limbeck.normalization.importance import Importance
from limbeck.normalization.normalize import normalize
from limbeck.progress import tracked
from limbeck.samplers.chains import ChainTarget
from limbeck.supports import Discrete

ENUMERABLE = 2**20  # events that method="auto" sums exactly


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
        self, target: UserObject[ChainTarget], proposal: UserObject[object] = None, *,
        seed: Seed = 0, progress: Flag = True,
    ) -> LogPartition:  # fmt: skip
        r"""As `lb.Bridge.estimate`; the proposal and the seed are not used."""
        began = time.perf_counter()
        densities.check_target(target, chains=False)
        sums, details = find_elimination(target, self.limit), dict[str, Any]()
        if sums is None:
            value = exact_log_z(target, limit=self.limit, block=self.block, progress=progress)
        else:
            value = sums.log_z(progress)
            details = {"largest_table": sums.largest_table, "events_compared": sums.compared}
        bound, seconds = Bound(value, 0.0), time.perf_counter() - began
        results = value, 0.0, "exact", Verdict(), bound, bound, details
        return LogPartition(*results, 0, 0, seed, seconds)


KINDS: dict[str, type[Method] | type[Exact]] = {
    kind.name: kind for kind in (Bridge, Importance, AIS, Exact)
}
METHODS = ("auto", *KINDS)


@checked_arguments
def log_partition(
    target: UserObject[ChainTarget], proposal: UserObject[object] = None, *,
    method: UserObject[str | Method | Exact] = "auto", samples: Count | None = None,
    burn_in: UserObject[int | str | None] = None, seed: Seed = 0, progress: Flag = True,
    **settings: object,
) -> LogPartition:  # fmt: skip
    r"""Estimate log Z of an unnormalised density.

    * "bridge": samples of the target and of a proposal that overlaps with it.
    * "importance": samples of a proposal alone, which must cover all of the target's mass.
    * "ais": annealing along the target's path; no proposal is needed.
    * "exact": the sum over all events, where they can be counted.
    * "auto": exact up to 2²⁰ events, or if sums over one site after the other are feasible; or
      else bridge.

    `z.verdict` says whether it can be trusted: "trustworthy", "doubtful" where a check failed, or
    "unchecked" where one could not run. No method can detect mass that neither the proposal, nor
    a chain, nor hill climbing has come near: pass events from such regions, for example data, as
    `start` or `second_start`.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.models.energy.Target`.
        proposal: A student, or a distribution with `log_prob` and `sample`. Default: for "bridge"
            and "importance", one is distilled first, by `limbeck.normalize`.
        method: "auto", "bridge", "importance", "ais" or "exact", or an object such as
            `lb.Bridge(samples=2000, kernel="mixed")`. Default: "auto".
        samples: Samples of the target and of the proposal; runs, for "ais". Default: 10,000.
        burn_in: Sweeps of the chains before the first draw. Default: 2,000; see `lb.Bridge`.
        seed: Seeds everything; equal seeds give equal results. Default: 0.
        progress: Whether to show bars, if a terminal is there. Default: True.
        settings: Further arguments of the objects `lb.Bridge`, `lb.Importance`, `lb.AIS` or
            `lb.Exact`, for a method by name. Those of another method are ignored.

    >>> import torch
    >>> from limbeck.models.rbm import RBM
    >>> rbm = RBM.random(30, 4, generator=torch.Generator().manual_seed(0))
    >>> log_partition(rbm).method
    'exact'
    """
    began = time.perf_counter()
    settings |= {"samples": samples, "burn_in": burn_in}
    if isinstance(method, str):
        choice("method", method, METHODS)
        if method == "auto":
            densities.check_target(target, chains=False)
            method = choose_method(target)
        known = {field.name for kind in KINDS.values() for field in fields(kind)}
        for name in settings.keys() - known:
            names = known | {"method", "proposal", "seed", "progress"}
            raise ArgumentError.unknown_argument(name, names, "log_partition")
        values: dict[str, Any] = {  # those that are None have their defaults
            name: settings[name]
            for name in settings.keys() & {field.name for field in fields(KINDS[method])}
            if settings[name] is not None or name == "second_start"
        }
        method = KINDS[method](**values)
    elif not isinstance(method, Method | Exact):
        expected = "a name, or lb.Bridge(), lb.Importance(), lb.AIS() or lb.Exact()"
        raise ArgumentError("method", f"a {type(method).__name__}", expected)
    elif unused := {name: value for name, value in settings.items() if value is not None}:
        name, value = next(iter(unused.items()))
        expected = f"no such keyword beside a method object: set it in lb.{type(method).__name__}()"
        raise ArgumentError(name, shown(value), expected)
    if proposal is None and isinstance(method, Bridge | Importance):
        densities.check_target(target, chains=method.name == "bridge")
        device, _ = densities.place_of(target)
        proposal = normalize(target, seed=seed, device=device, progress=progress).student
    z = method.estimate(target, proposal, seed=seed, progress=progress)
    z.seconds = time.perf_counter() - began
    return z


def choose_method(target: ChainTarget) -> str:
    r"""The method that "auto" stands for: "exact" where few events are to be summed."""
    if isinstance(target, RBM):
        return "exact" if 2 ** min(target.visible, target.hidden) <= ENUMERABLE else "bridge"
    support = target.support
    count = math.exp(min(support.log_count, 700)) if isinstance(support, Discrete) else math.inf
    small = count <= ENUMERABLE or find_elimination(target, ENUMERABLE) is not None
    return "exact" if small else "bridge"


@checked_arguments
def exact_log_z(
    target: UserObject[ChainTarget], *, limit: Count = 2**25, block: Count | None = None,
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
    settings = Exact(limit=limit, block=block)
    if (sums := find_elimination(target, limit)) is not None:
        return sums.log_z(progress)
    if isinstance(target, RBM):
        parts = log_z_parts(target, limit, block, progress)
    else:
        parts = _event_parts(target, settings, progress)
    with torch.no_grad(), evaluating(target):
        log_z = torch.stack(list(parts)).logsumexp(0).item()
    if not math.isfinite(log_z):
        expected = "finite log densities, or −∞ at some of the events"
        raise ArgumentError("target", f"a model whose log Z is {log_z}", expected)
    return log_z


def _event_parts(target: ChainTarget, settings: Exact, progress: bool) -> Iterator[Tensor]:
    r"""The logarithm of the sum of p̃ over each block of events."""
    support = densities.discrete_support(target, "a target with a discrete support, to enumerate")
    if (count := support.count**support.size) > settings.limit:
        expected = f"at most {settings.limit:,}, or an estimate of log Z"
        raise ArgumentError("target", f"{support.count}^{support.size} events", expected)
    device, dtype = densities.place_of(target)
    block = settings.block or max(1, 2**22 // support.size)  # numbers that fit anywhere
    repeated = support.start(densities.EVENTS, torch.Generator().manual_seed(0)).to(device, dtype)
    before = densities.check_repeatable(target.log_unnormalized, repeated, "target")
    for start in tracked(range(0, count, block), "enumerating", progress):
        x = support.enumerate(start, min(start + block, count), device, dtype)
        yield target.log_unnormalized(x).double().logsumexp(0)
    densities.compare(before, target.log_unnormalized(repeated), "target")
