r"""log Z exactly, by summing over all events; and bounds on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.models.rbm import RBM, softplus
from limbeck.normalization.repeatability import EVENTS, check_repeatable, compare
from limbeck.progress import tracked
from limbeck.supports import Discrete, Support

__all__ = ["exact_log_z", "place_of"]

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


def place_of(target: Any) -> tuple[torch.device, torch.dtype]:
    r"""Where a target expects its events, and of which floating type."""
    held = (*target.parameters(), *target.buffers()) if isinstance(target, nn.Module) else ()
    like = next((t for t in held if t.is_floating_point()), torch.empty(0))
    return like.device, like.dtype


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
