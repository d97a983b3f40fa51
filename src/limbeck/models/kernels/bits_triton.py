r"""Bits on a GPU: random numbers, the logistic function and the comparison in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["bits_"]

NUMBERS = 512
r"""Numbers from each of the four streams that a call of the generator gives."""


@triton.jit
def _bits(logits, seed, count, NUMBERS: tl.constexpr):
    key = tl.load(seed)
    lane = tl.arange(0, NUMBERS)
    first, second, third, fourth = tl.rand4x(key, tl.program_id(0) * NUMBERS + lane)
    for part in tl.static_range(4):
        chance = first
        if part == 1:
            chance = second
        if part == 2:
            chance = third
        if part == 3:
            chance = fourth
        at = (tl.program_id(0) * 4 + part) * NUMBERS + lane
        z = tl.load(logits + at, mask=at < count, other=0.0)
        tl.store(logits + at, (chance * (1 + tl.exp(-z)) < 1).to(tl.float32), mask=at < count)


def bits_(logits: Tensor, seed: Tensor) -> Tensor:
    r"""Logits made into bits in place: each is one with probability σ(logit).

    Arguments:
        logits: float32 numbers, contiguous.
        seed: One whole number on the same device, so that nobody waits for its value.
    """
    count = logits.numel()
    _bits[(triton.cdiv(count, 4 * NUMBERS),)](logits, seed, count, NUMBERS, num_warps=4)
    return logits
