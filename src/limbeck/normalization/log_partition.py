r"""`log_partition`: log Z of a target, with an error and a verdict on whether to trust it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM
from limbeck.normalization.annealing import ais
from limbeck.normalization.bridge import bridge
from limbeck.normalization.compatibility import check_target
from limbeck.normalization.densities import Densities
from limbeck.normalization.estimate import Bound, LogPartition, Verdict
from limbeck.normalization.exact import exact_log_z, place_of
from limbeck.normalization.importance import importance
from limbeck.normalization.repeatability import recorded_warnings
from limbeck.supports import Discrete

__all__ = ["METHODS", "log_partition"]

METHODS = ("auto", "bridge", "importance", "ais", "exact")

ENUMERABLE = 2**20
r"""Events that are summed without being asked."""


def log_partition(
    target: Any,
    proposal: Any = None,
    *,
    method: str = "auto",
    samples: int = 10_000,
    burn_in: int | str | None = None,
    seed: int = 0,
    kernel: str = "target",
    start: Any = None,
    second_start: Any = "auto",
    chains: int | None = None,
    thin: int = 1,
    schedule: str | int | Sequence[float] | Tensor = "2008",
    spacing: str = "linear",
    path: Any = None,
    reverse: bool = False,
    progress: bool = True,
) -> LogPartition:
    r"""Estimate log Z of an unnormalised density.

    * "bridge": samples of the target and of a proposal. The proposal need not be close: it is
      enough that both overlap.
    * "importance": samples of a proposal alone, which must cover all of the target's mass.
    * "ais": annealing along the target's path; no proposal is needed.
    * "exact": the sum over all events, where they can be counted.
    * "auto": exact up to 2²⁰ events, or else bridge.

    The result says whether it can be trusted (`z.verdict`): its state is "trustworthy", "doubtful"
    where a check failed, or "unchecked" where one could not run. Over a discrete support the
    estimate is also compared with likely events, the constant ones and those that climbing finds:
    draws must visit them as often as the estimate implies. What no method can tell is mass that
    neither the proposal, nor any chain, nor any climb has come near: give `start` or
    `second_start` events from wherever the target might have some, such as data.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.models.energy.Target`.
        proposal: A student, or a distribution with `log_prob` and `sample`. For "bridge" and
            "importance", None distils one first, by `limbeck.normalize`.
        method: "auto", "bridge", "importance", "ais" or "exact".
        samples: Samples of the target, and as many of the proposal; runs, for "ais".
        burn_in: Bridge: steps of the chains before the first draw. "auto" goes on until the chains
            have forgotten their starts, and then as long again. None is 2,000 with the target's own
            kernel, and "auto" with another. "ais" with `reverse`: the same of the chains it starts
            from.
        seed: Seeds everything; equal seeds give equal results.
        kernel: Bridge: how chains move. "target": by the target's sweeps; "metropolis": to events
            that the proposal gives, accepted or not, which is quick for a good one; "mixed": both
            in turn.
        start: Bridge: where chains begin: "proposal" (by default) for samples of it, made for that;
            "target" for what the target gives; or events (m, *shape), such as data. For "ais" with
            `reverse`, and for the chains that check "importance", events come on top of the
            target's own starts.
        second_start: Bridge: where a quarter of the chains begin, which must agree with the others:
            "auto" is "target", or "proposal" if chains start at the target's, or one half of each
            if they start at events. Events that are given come on top of these; None makes no such
            check, and the estimate is "unchecked".
        chains: Bridge: the number of chains; one for each sample by default.
        thin: Bridge: steps between two draws of a chain, where there are fewer chains.
        schedule: AIS: "2008" for 14,500 temperatures, their number, or the numbers themselves.
        spacing: AIS: how a number of temperatures is spread: "linear", "sigmoid" or "geometric".
        path: AIS: a path of your own; by default the target's. An RBM's begins at independent bits
            with about its own means, which short chains give.
        reverse: AIS: whether to anneal back from the target too, for an upper bound.
        progress: Whether to show bars, if a terminal is there.

    >>> import torch
    >>> from limbeck.models.rbm import RBM
    >>> rbm = RBM.random(30, 4, generator=torch.Generator().manual_seed(0))
    >>> log_partition(rbm).method
    'exact'
    """
    began = time.perf_counter()
    if method not in METHODS:
        raise ArgumentError.unknown("method", method, METHODS)
    samples = whole_number("samples", samples, "a whole number from 1", least=1)
    check_target(target, chains=method == "bridge")
    if method == "auto":
        method = "exact" if _events(target) <= ENUMERABLE else "bridge"
        check_target(target, chains=method == "bridge")
    if method == "exact":
        z = _exact(target, progress)
    else:
        if proposal is None and method != "ais":
            proposal = _distilled(target, seed, progress)
        densities = Densities(target, None if method == "ais" else proposal, seed)
        with recorded_warnings() as texts, densities.at_work():
            if method == "bridge":
                z = bridge(
                    densities, samples, kernel=kernel, start="proposal" if start is None else start,
                    second_start=second_start, chains=chains, thin=thin, burn_in=burn_in,
                    progress=progress,
                )  # fmt: skip
            elif method == "importance":
                origin = "target" if start is None else start
                z = importance(densities, samples, start=origin, progress=progress)
            else:
                z = ais(
                    densities, samples, schedule=schedule, spacing=spacing, path=path,
                    reverse=reverse,
                    start="target" if start is None else start,
                    burn_in=2000 if burn_in is None else burn_in, progress=progress,
                )  # fmt: skip
        verdict = z.verdict
        z.verdict = Verdict((*verdict.doubts, *texts), verdict.unchecked)
    z.seed, z.seconds = seed, time.perf_counter() - began
    return z


def _events(target: Any) -> float:
    r"""How many events an exact sum would need."""
    if isinstance(target, RBM):
        return 2.0 ** min(target.visible, target.hidden)
    support = target.support
    return math.exp(min(support.log_count, 700)) if isinstance(support, Discrete) else math.inf


def _exact(target: Any, progress: bool) -> LogPartition:
    value = exact_log_z(target, progress=progress)
    return LogPartition(value, 0.0, "exact", Verdict(), Bound(value, 0.0), Bound(value, 0.0))


def _distilled(target: Any, seed: int, progress: bool) -> Any:
    from limbeck.normalization.normalize import normalize

    device, _ = place_of(target)
    return normalize(target, seed=seed, device=device, progress=progress).student
