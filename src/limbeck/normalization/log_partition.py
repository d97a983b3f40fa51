r"""`log_partition`: log Z of a target, with an error and a verdict on whether to trust it."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.models.rbm import RBM, softplus
from limbeck.normalization.annealing import ais
from limbeck.normalization.bridge import bridge
from limbeck.normalization.densities import (
    EVENTS,
    Densities,
    check_repeatable,
    check_target,
    compare,
    place_of,
)
from limbeck.normalization.estimate import Bound, LogPartition, Verdict
from limbeck.normalization.importance import importance
from limbeck.progress import tracked
from limbeck.supports import Discrete, Support

__all__ = ["METHODS", "exact_log_z", "log_partition"]

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


ABOUT_CODE = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
    SyntaxWarning,
)
r"""Kinds of warnings that say nothing about numbers."""


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    r"""A list that holds, afterwards, what was warned of: one text for each place in the code.

    The warnings themselves are raised again at the end, once for each place, and meet the filters
    that are set outside. A filter that hides a warning does not hide it from the list.
    """
    texts: list[str] = []
    raised: dict[tuple[type[Warning], str, int], warnings.WarningMessage] = {}
    try:
        with warnings.catch_warnings(record=True) as every:
            warnings.simplefilter("always")
            yield texts
    except BaseException:
        with contextlib.suppress(Warning):  # the error is more important than what came before
            _raise_again(every)
        raise
    for each in every:
        raised.setdefault((each.category, each.filename, each.lineno), each)
    texts += [
        f"a warning was raised while the estimate ran: {str(each.message).strip().rstrip('.')}"
        for each in raised.values()
        if not issubclass(each.category, ABOUT_CODE) and not _of_the_compiler(each.filename)
    ]
    _raise_again(list(raised.values()))


def _raise_again(every: list[warnings.WarningMessage]) -> None:
    for each in every:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _of_the_compiler(filename: str) -> bool:
    r"""Whether it comes from torch's own compiler, which warns of speed."""
    return "/torch/_" in filename.replace("\\", "/")


LIMIT = 2**25
TOGETHER = 4  # units of the other side that share a matrix product
LARGEST = 690.0  # the largest exponent in float64, nearly


def exact_log_z(
    target: Any, *, limit: int = LIMIT, block: int | None = None, progress: bool = True
) -> float:
    r"""log Z of a discrete target, by enumeration.

    Of an RBM the smaller side is enumerated, and the other summed in closed form, in float64.

    Arguments:
        target: An RBM, or any target with a discrete support.
        limit: The largest number of events that is tried, 2²⁵ by default.
        block: Events at a time; None suits the processor's cache, or the GPU.
        progress: Whether to show a bar, if a terminal is there.

    >>> round(exact_log_z(RBM([[0.0], [0.0]], [0.0, 0.0], [0.0])) / math.log(2), 9)
    3.0
    """
    limit = whole_number("limit", limit, "a whole number from 1", least=1)
    if block is not None:
        block = whole_number("block", block, "a whole number from 1", least=1)
    parts = _rbm_parts if isinstance(target, RBM) else _event_parts
    with torch.no_grad(), evaluating(target):
        log_z = torch.stack(list(parts(target, limit, block, progress))).logsumexp(0).item()
    if not math.isfinite(log_z):
        expected = "finite log densities, or −∞ at some of the events"
        raise ArgumentError("target", f"a model whose log Z is {log_z}", expected)
    return log_z


def _event_parts(target: Any, limit: int, block: int | None, progress: bool) -> Iterator[Tensor]:
    r"""The logarithm of the sum of p̃ over each block of events."""
    support = getattr(target, "support", None)
    if not isinstance(support, Discrete):
        what = repr(support) if isinstance(support, Support) else f"a {type(target).__name__}"
        raise ArgumentError("target", what, "a target with a discrete support, to enumerate")
    if (count := support.count**support.size) > limit:
        received = f"{support.count}^{support.size} events"
        raise ArgumentError("target", received, f"at most {limit:,}, or an estimate of log Z")
    device, dtype = place_of(target)
    block = block or max(1, 2**22 // support.size)  # numbers that fit anywhere
    some = support.start(EVENTS, torch.Generator().manual_seed(0)).to(device, dtype)
    before = check_repeatable(target.log_unnormalized, some, "target")
    for start in _shown(range(0, count, block), progress):
        x = support.enumerate(start, min(start + block, count), device, dtype)
        yield target.log_unnormalized(x).double().logsumexp(0)
    compare(before, target.log_unnormalized(some), "target")


def _rbm_parts(rbm: RBM, limit: int, block: int | None, progress: bool) -> Iterator[Tensor]:
    r"""The same of an RBM: Σ_h exp(b·h) Π_i (1 + exp(z_i)) over the smaller side, z = a + Wh.

    The factors of four units i are Σ_s exp(s·z) over the subsets s of them. The bits h are split
    into high and low ones, and z is a sum of what these give, so that all pairs of 2^m high and
    2^k low ones make a matrix product of two small tables of exponentials. No further exponential
    is taken, and a logarithm only when the product over units nears the end of float64's range.
    """
    few = min(rbm.visible, rbm.hidden)
    if 2**few > limit:
        received = f"{rbm.visible:,} visible and {rbm.hidden:,} hidden units"
        expected = f"at most {int(math.log2(limit))} on one side, or an estimate of log Z"
        raise ArgumentError("target", received, expected)
    W, a, b = (p.detach().double() for p in (rbm.W, rbm.a, rbm.b))
    weights, own, other = (W, a, b) if rbm.visible == few else (W.T, b, a)  # (few, many)
    padded = -len(other) % TOGETHER  # units without weights: each is a factor of two
    weights, other = F.pad(weights, (0, padded)), F.pad(other, (0, padded))
    at_once = min(few, int(math.log2(block or (2**20 if W.is_cuda else 2**16))))
    low = min(at_once, 10)
    here, there = slice(few - low, few), slice(0, few - low)
    bits = _bits(0, 2**low, low, W)
    low_z, low_own = bits @ weights[here], bits @ own[here]
    rows = 2 ** (at_once - low)
    ceilings, direct = _ceilings(other, weights[there], low_z)
    table = None if direct else _subsets(low_z).transpose(1, 2).contiguous()  # (groups, 16, 2^low)
    for start in _shown(range(0, 2 ** (few - low), rows), progress):
        bits = _bits(start, start + rows, few - low, W)
        high_z = other + bits @ weights[there]
        total = (bits @ own[there])[:, None] + low_own - padded * math.log(2)
        if table is None:
            for row, z in zip(total, high_z, strict=True):
                row += softplus(z + low_z).sum(1)
        else:
            _add_products(total, _subsets(high_z), table, ceilings)
        yield total.flatten().logsumexp(0)


def _shown(starts: Any, progress: bool) -> Any:
    return tracked(starts, "enumerating", progress)


def _bits(start: int, stop: int, size: int, like: Tensor) -> Tensor:
    r"""The binary digits of start … stop−1, (stop − start, size)."""
    number = torch.arange(start, stop, device=like.device)
    places = torch.arange(size - 1, -1, -1, device=like.device)
    return ((number[:, None] >> places) & 1).to(like.dtype)


def _subsets(z: Tensor) -> Tensor:
    r"""exp(s·z) of the subsets s of each group of units, (groups, n, 16), of z (n, units)."""
    groups = z.reshape(len(z), -1, TOGETHER)
    return (groups @ _bits(0, 2**TOGETHER, TOGETHER, z).T).exp().transpose(0, 1).contiguous()


def _ceilings(other: Tensor, high: Tensor, low_z: Tensor) -> tuple[list[float], bool]:
    r"""Bounds on log Π (1 + exp(z)) in each group, and whether exponentials leave the range."""
    above = other + high.clamp_min(0).sum(0), low_z.amax(0)
    below = other + high.clamp_max(0).sum(0), low_z.amin(0)
    sums = torch.stack([*above, *(-z for z in below)]).clamp_min(0)
    largest = sums.reshape(4, -1, TOGETHER).sum(2).amax().item()
    ceilings = softplus(above[0] + above[1]).reshape(-1, TOGETHER).sum(1).tolist()
    return ceilings, max(largest, *ceilings) > LARGEST


def _add_products(total: Tensor, high: Tensor, low: Tensor, ceilings: list[float]) -> None:
    product, factor, so_far = torch.ones_like(total), torch.empty_like(total), 0.0
    for left, right, ceiling in zip(high.unbind(), low.unbind(), ceilings, strict=True):
        if so_far + ceiling > LARGEST:
            total += product.log_()
            product.fill_(1.0)
            so_far = 0.0
        product *= torch.mm(left, right, out=factor)
        so_far += ceiling
    total += product.log_()
