r"""The exact normaliser of an RBM, as a sum over the states of its smaller side."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM, softplus
from limbeck.progress import tracked

TOGETHER = 4  # units of the other side that share a matrix product
LARGEST = 690.0  # the largest exponent in float64, nearly


def exact_rbm_log_z(rbm: RBM, limit: int = 2**25) -> float:
    r"""log Z, if the smaller side has at most `limit` states."""
    return torch.stack(list(log_z_parts(rbm, limit, None, False))).logsumexp(0).item()


def log_z_parts(rbm: RBM, limit: int, block: int | None, progress: bool) -> Iterator[Tensor]:
    r"""log of parts of Σ_h exp(b·h) Π_i (1 + exp(z_i)) over the smaller side, z = a + Wh.

    The factors of four units i are Σ_s exp(s·z) over the subsets s of them. The bits h are split
    into high and low ones, so that all pairs of these make a matrix product of two small tables of
    exponentials. A logarithm is taken only when the product nears the end of float64's range.
    """
    size = min(rbm.visible, rbm.hidden)
    if 2**size > limit:
        received = f"{rbm.visible:,} visible and {rbm.hidden:,} hidden units"
        expected = f"at most {int(math.log2(limit))} on one side, or an estimate of log Z"
        raise ArgumentError("target", received, expected)
    W, a, b = (p.detach().double() for p in (rbm.W, rbm.a, rbm.b))
    weights, own, other = (W, a, b) if rbm.visible == size else (W.T, b, a)  # sides by size
    padded = -len(other) % TOGETHER  # units without weights: each is a factor of two
    weights, other = F.pad(weights, (0, padded)), F.pad(other, (0, padded))
    block = block or (2**20 if W.is_cuda else 2**16)
    at_once = min(size, int(math.log2(block)))
    low = min(at_once, 10)
    here, there = slice(size - low, size), slice(0, size - low)
    bits = _bits(0, 2**low, low, W)
    low_z, low_own = bits @ weights[here], bits @ own[here]
    rows = 2 ** (at_once - low)
    ceilings, direct = _ceilings(other, weights[there], low_z)
    table = None if direct else _subsets(low_z).transpose(1, 2).contiguous()  # (groups, 16, 2^low)
    for start in tracked(range(0, 2 ** (size - low), rows), "enumerating", progress):
        bits = _bits(start, start + rows, size - low, W)
        high_z = other + bits @ weights[there]
        total = (bits @ own[there])[:, None] + low_own - padded * math.log(2)
        if table is None:
            for row, z in zip(total, high_z, strict=True):
                row += softplus(z + low_z).sum(1)
        else:
            product, factor, so_far = torch.ones_like(total), torch.empty_like(total), 0.0
            for left, right, ceiling in zip(_subsets(high_z), table, ceilings, strict=True):
                if so_far + ceiling > LARGEST:
                    total += product.log_()
                    product.fill_(1.0)
                    so_far = 0.0
                product *= torch.mm(left, right, out=factor)
                so_far += ceiling
            total += product.log_()
        yield total.flatten().logsumexp(0) + rbm.constant


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
