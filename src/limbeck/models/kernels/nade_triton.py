r"""Triton kernels for a GPU: logits and gradients of NADE's runs, its samples, and random bits.

A program goes through its run variable by variable, with activations in registers: forwards from
the run's start for the logits, backwards from its end for the gradients.
"""

from __future__ import annotations

from collections import namedtuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from limbeck.models.checks import Maybe, Pair

STAGES = tl.constexpr(3)  # inputs whose weights are loaded ahead
ROWS, GRADIENT_ROWS = 2048, 512  # examples at once, which bounds the memory of parts
INTERPRETED = bool(triton.knobs.runtime.interpret)  # an interpreter has no machine instructions


Tensors = tuple[Tensor, Tensor, Tensor]
Shape = namedtuple("Shape", "rows units warps")  # examples, hidden units and warps of a program
FORWARD, BACKWARD, SAMPLING = Shape(4, 512, 4), Shape(32, 32, 1), Shape(4, 512, 4)


@triton.jit
def _sigmoid(a, FAST: tl.constexpr):
    if FAST:  # one instruction, to about three digits: as exact as products in TF32
        half = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * a], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 * half + 0.5
    return 1 / (1 + tl.exp(-a))


@triton.jit
def _logits(
    x, w, u, starts, out, N, I, J,
    RUN: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    k, t = tl.program_id(0), tl.program_id(1)
    n, j = tl.program_id(2) * ROWS + tl.arange(0, ROWS), t * UNITS + tl.arange(0, UNITS)
    real, inside = n < N, j < J
    at = (k * N + n)[:, None] * J + j[None, :]
    a = tl.load(starts + at, mask=real[:, None] & inside[None, :], other=0.0)
    first, last = k * RUN, min(k * RUN + RUN, I) - 1
    for i in tl.range(first, last + 1, num_stages=STAGES):
        w_row = tl.load(w + i * J + j, mask=inside, other=0.0)
        u_row = tl.load(u + i * J + j, mask=inside, other=0.0)
        on = tl.load(x + n * I + i, mask=real, other=0.0)
        z = tl.sum(_sigmoid(a, FAST) * u_row[None, :], 1)
        tl.store(out + (t * N + n) * I + i, z, mask=real)
        a += on[:, None] * w_row[None, :]


@triton.jit
def _gradients(
    g, x, w, u, ends, of_w, of_u, sums, N, I, J,
    RUN: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    k, t, s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, j = s * ROWS + tl.arange(0, ROWS), t * UNITS + tl.arange(0, UNITS)
    real, inside = n < N, j < J
    at = n[:, None] * J + j[None, :]
    both = real[:, None] & inside[None, :]
    a = tl.load(ends + k * N * J + at, mask=both, other=0.0)
    first, last = k * RUN, min(k * RUN + RUN, I) - 1
    later = tl.zeros((ROWS, UNITS), tl.float32)  # derivatives with respect to later activations
    for back in tl.range(0, last + 1 - first, num_stages=STAGES):
        i = last - back
        w_row = tl.load(w + i * J + j, mask=inside, other=0.0)
        u_row = tl.load(u + i * J + j, mask=inside, other=0.0)
        on = tl.load(x + n * I + i, mask=real, other=0.0)
        cotangent = tl.load(g + n * I + i, mask=real, other=0.0)
        a -= on[:, None] * w_row[None, :]
        h = _sigmoid(a, FAST)
        here = (s * I + i) * J + j
        tl.store(of_w + here, tl.sum(on[:, None] * later, 0), mask=inside)
        gu = cotangent[:, None] * h
        tl.store(of_u + here, tl.sum(gu, 0), mask=inside)
        later += gu * (1 - h) * u_row[None, :]
    tl.store(sums + k * N * J + at, later, mask=both)


@triton.jit
def _sample(
    uniforms, w, c, u, b, m, x, probabilities, N, I, J,
    ROWS: tl.constexpr, UNITS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    n, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, UNITS)
    real, inside = n < N, j < J
    a = tl.zeros((ROWS, UNITS), tl.float32) + tl.load(c + j, mask=inside, other=0.0)[None, :]
    w_next = tl.load(w + j, mask=inside, other=0.0)
    u_next = tl.load(u + j, mask=inside, other=0.0)
    for i in range(I):
        w_row, u_row = w_next, u_next
        ahead = min(i + 1, I - 1)
        w_next = tl.load(w + ahead * J + j, mask=inside, other=0.0)
        u_next = tl.load(u + ahead * J + j, mask=inside, other=0.0)
        chance = tl.load(uniforms + n * I + i, mask=real, other=1.0)
        z = tl.sum(_sigmoid(a, False) * u_row[None, :], 1) + tl.load(b + i)
        p = _sigmoid(z, False)
        bit = (chance < p).to(tl.float32)
        tl.store(probabilities + n * I + i, p, mask=real)
        tl.store(x + n * I + i, bit, mask=real)
        if CENTRED:
            bit -= tl.load(m + i)
        a += bit[:, None] * w_row[None, :]


def logits(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int) -> Tensor:
    r"""The logits (n, I) of runs with starts (K, n, J), without biases; as `nade_op.formula`."""
    if len(v) > ROWS:
        parts = zip(v.split(ROWS), starts.split(ROWS, 1), strict=True)
        return torch.cat([logits(*part, w, u, run) for part in parts])
    v, starts, w, u = (tensor.contiguous() for tensor in (v, starts, w, u))
    grid = _grid(len(starts), v, w, FORWARD)
    out = v.new_empty(grid[1], *v.shape)
    _logits[grid](
        v, w, u, starts, out, len(v), *w.shape,
        run, FORWARD.rows, FORWARD.units, _fast(), num_warps=FORWARD.warps,
    )  # fmt: skip
    return out[0] if len(out) == 1 else out.sum(0)


def gradients(d: Tensor, v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int) -> Tensors:
    r"""The pull-back of d (n, I) to starts, w and u."""
    if len(v) > GRADIENT_ROWS:
        split = d.split(GRADIENT_ROWS), v.split(GRADIENT_ROWS), starts.split(GRADIENT_ROWS, 1)
        parts = [gradients(*part, w, u, run) for part in zip(*split, strict=True)]
        of_starts, *sums = zip(*parts, strict=True)
        gw, gu = (torch.stack(each).sum(0) for each in sums)
        return torch.cat(of_starts, 1), gw, gu
    d, v, w, u = (tensor.contiguous() for tensor in (d, v, w, u))
    ends, full = torch.empty_like(starts), v.shape[1] // run
    v_k, w_k = v[:, : full * run].unflatten(1, (full, run)), w[: full * run].unflatten(0, (-1, run))
    torch.baddbmm(starts[:full], v_k.transpose(0, 1), w_k, out=ends[:full])
    if full < len(starts):  # the last run is shorter
        torch.addmm(starts[-1], v[:, full * run :], w[full * run :], out=ends[-1])
    grid = _grid(len(ends), v, w, BACKWARD)
    of_w, of_u = (v.new_empty(grid[2], *w.shape) for _ in range(2))  # the parts of each group
    at_starts = torch.empty_like(ends)
    _gradients[grid](
        d, v, w, u, ends, of_w, of_u, at_starts, len(v), *w.shape,
        run, BACKWARD.rows, BACKWARD.units, _fast(), num_warps=BACKWARD.warps,
    )  # fmt: skip
    gw, gu = (parts[0] if grid[2] == 1 else parts.sum(0) for parts in (of_w, of_u))
    return at_starts, gw, gu


def sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Maybe = None) -> Pair:
    r"""Exact samples (n, I) and their conditional probabilities; activations are of x − m."""
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    units = max(16, triton.next_power_of_2(w.shape[1]))
    rows = max(1, SAMPLING.rows * SAMPLING.units // units)
    _sample[(triton.cdiv(len(x), rows),)](
        uniforms.contiguous(), w.contiguous(), c, u.contiguous(), b, b if m is None else m, x,
        probabilities, *x.shape, w.shape[1], rows, units, m is not None, num_warps=SAMPLING.warps,
    )  # fmt: skip
    return x, probabilities


def _grid(runs: int, x: Tensor, w: Tensor, shape: Shape) -> tuple[int, int, int]:
    r"""Runs, tiles of hidden units, groups of examples."""
    return runs, triton.cdiv(w.shape[1], shape.units), triton.cdiv(len(x), shape.rows)


def _fast() -> bool:
    r"""Whether three digits will do: where torch's products may be rounded to TF32."""
    return torch.backends.cuda.matmul.allow_tf32 and not INTERPRETED


NUMBERS = 512  # from each of the four streams that a call of the generator gives


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
    r"""Logits made into bits in place: each is one with probability σ(logit)."""
    count = logits.numel()
    _bits[(triton.cdiv(count, 4 * NUMBERS),)](logits, seed, count, NUMBERS, num_warps=4)
    return logits
