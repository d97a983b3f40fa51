r"""Triton kernels for a GPU: NADE's logits, gradients and samples, its runs, and random bits.

One matrix product carries the activations into all blocks of inputs at once: with X̄[k, n, i] = x_ni
for i before block k and zero after, they are c + X̄ w. From there a program goes through its block
input by input, with activations in registers: forwards for the logits, backwards for the gradients.
What a block adds to the gradient of earlier rows of w is X̄ᵀ D, with D its sums of derivatives.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from limbeck.models.checks import Maybe, Pair

FEW, SHORT, LONG = 64, 32, 64  # up to so many examples blocks are short: more programs at once
STAGES = tl.constexpr(3)  # inputs whose weights are loaded ahead
ROWS, GRADIENT_ROWS = 2048, 512  # examples at once, which bounds the memory of carries and parts
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
    x, w, u, b, carry, out, N, I, J,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    k, t = tl.program_id(0), tl.program_id(1)
    n, j = tl.program_id(2) * ROWS + tl.arange(0, ROWS), t * UNITS + tl.arange(0, UNITS)
    real, inside = n < N, j < J
    at = (k * N + n)[:, None] * J + j[None, :]
    a = tl.load(carry + at, mask=real[:, None] & inside[None, :], other=0.0)
    first, last = k * BLOCK, min(k * BLOCK + BLOCK, I) - 1
    for i in tl.range(first, last + 1, num_stages=STAGES):
        w_row = tl.load(w + i * J + j, mask=inside, other=0.0)
        u_row = tl.load(u + i * J + j, mask=inside, other=0.0)
        on = tl.load(x + n * I + i, mask=real, other=0.0)
        z = tl.sum(_sigmoid(a, FAST) * u_row[None, :], 1)
        z += tl.load(b + i + 0 * n, mask=t + 0 * n == 0, other=0.0)
        tl.store(out + (t * N + n) * I + i, z, mask=real)
        a += on[:, None] * w_row[None, :]


@triton.jit
def _gradients(
    g, x, w, u, carry, of_w, of_u, sums, N, I, J,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    k, t, s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, j = s * ROWS + tl.arange(0, ROWS), t * UNITS + tl.arange(0, UNITS)
    real, inside = n < N, j < J
    at = n[:, None] * J + j[None, :]
    both = real[:, None] & inside[None, :]
    a = tl.load(carry + (k + 1) * N * J + at, mask=both, other=0.0)  # at the block's end
    first, last = k * BLOCK, min(k * BLOCK + BLOCK, I) - 1
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


def block_of(x: Tensor) -> int:
    r"""The number of inputs in a block, for examples x."""
    return SHORT if len(x) <= FEW else LONG


def carry_shape(x: Tensor, w: Tensor) -> tuple[int, ...]:
    r"""The shape of the carries that `logits` gives."""
    blocks = triton.cdiv(x.shape[1], block_of(x))
    return (0,) if len(x) > GRADIENT_ROWS else (blocks + 1, len(x), w.shape[1])


def carries(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    r"""The activations at the start of each block and at the end, (blocks + 1, n, J)."""
    return torch.addmm(c, _before(x), w).view(-1, len(x), w.shape[1])


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Pair:
    r"""Logits (n, I), and carries for `gradients`: none of more than `GRADIENT_ROWS` examples."""
    x, w = x.contiguous(), w.contiguous()
    if len(x) > ROWS:
        z = torch.cat([logits(part, w, c, u, b)[0] for part in x.split(ROWS)])
        return z, x.new_empty(0)
    carry = carries(x, w, c)
    z = run_logits(x, carry[:-1], w, u, b, block_of(x))
    return z, carry if len(x) <= GRADIENT_ROWS else x.new_empty(0)


def gradients(
    g: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, carry: Tensor, wants_x: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""What cotangents g (n, I) of the logits give for x, w, c, u and b; for x if wanted."""
    g, x, w, u = g.contiguous(), x.contiguous(), w.contiguous(), u.contiguous()
    if len(x) > GRADIENT_ROWS:
        chunks = zip(g.split(GRADIENT_ROWS), x.split(GRADIENT_ROWS), strict=True)
        none = x.new_empty(0)  # blocks of the parts are others
        parts = [gradients(*chunk, w, c, u, none, wants_x) for chunk in chunks]
        of_x, *of_parameters = zip(*parts, strict=True)
        gw, gc, gu, gb = (torch.stack(chunk).sum(0) for chunk in of_parameters)
        return torch.cat(of_x), gw, gc, gu, gb
    if not carry.numel():
        carry = carries(x, w, c)
    sums, gw, gu = _pull_blocks(g, x, w, u, carry, block_of(x))
    later = sums.flatten(0, 1)
    gw.addmm_(_before(x)[: len(later)].t(), later)
    gx = _input_grad(g, x, w, u, carry, sums) if wants_x else x.new_empty(0)
    return gx, gw, later.sum(0), gu, g.sum(0)


def _pull_blocks(g: Tensor, x: Tensor, w: Tensor, u: Tensor, ends: Tensor, block: int) -> Tensors:
    r"""The pull-back of g (n, I) within blocks: to the activations at their starts, to w and u."""
    grid = _grid(len(ends) - 1, x, w, BACKWARD)
    of_w, of_u = (x.new_empty(grid[2], *w.shape) for _ in range(2))  # the parts of each group
    at_starts = torch.empty_like(ends[1:])
    _gradients[grid](
        g, x, w, u, ends, of_w, of_u, at_starts, len(x), *w.shape,
        block, BACKWARD.rows, BACKWARD.units, _fast(), num_warps=BACKWARD.warps,
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


def _input_grad(g: Tensor, x: Tensor, w: Tensor, u: Tensor, carry: Tensor, sums: Tensor) -> Tensor:
    r"""The gradient (n, I) with respect to x, block by block: Σ_j w_ij Σ_{i' > i} ∂/∂a_i'j."""
    later, gx = torch.zeros_like(sums[0]), []
    blocks = [rows.split(block_of(x), dim) for rows, dim in ((w, 0), (u, 0), (x, 1), (g, 1))]
    for start, last, (w_k, u_k, x_k, g_k) in zip(
        carry[:-1].flip(0), sums.flip(0), list(zip(*blocks, strict=True))[::-1], strict=True
    ):
        steps = x_k[:, :, None] * w_k
        h = (start[:, None] + steps.cumsum(1) - steps).sigmoid()
        ga = g_k[:, :, None] * h * (1 - h) * u_k
        after = later[:, None] + ga.flip(1).cumsum(1).flip(1) - ga
        gx.append((after * w_k).sum(2))
        later = later + last
    return torch.cat(gx[::-1], 1)


def _grid(blocks: int, x: Tensor, w: Tensor, shape: Shape) -> tuple[int, int, int]:
    r"""Blocks of inputs, tiles of hidden units, groups of examples."""
    return blocks, triton.cdiv(w.shape[1], shape.units), triton.cdiv(len(x), shape.rows)


def _fast() -> bool:
    r"""Whether three digits will do: where torch's products may be rounded to TF32."""
    return torch.backends.cuda.matmul.allow_tf32 and not INTERPRETED


def _before(x: Tensor) -> Tensor:
    r"""X̄, ((blocks + 1) · n, I): the inputs before each block and the end, and zeros."""
    return (x * _earlier(x.shape[1], block_of(x), x.dtype, x.device)).flatten(0, 1)


@cache
def _earlier(inputs: int, block: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    starts = torch.arange(0, inputs + block, block, device=device)
    return (torch.arange(inputs, device=device) < starts[:, None, None]).to(dtype)


def run_logits(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, b: Tensor, run: int) -> Tensor:
    r"""The logits (n, I) of runs with starts (K, n, J), a run to a block; as `segments.logits`."""
    if len(v) > ROWS:
        parts = zip(v.split(ROWS), starts.split(ROWS, 1), strict=True)
        return torch.cat([run_logits(*part, w, u, b, run) for part in parts])
    v, starts, w, u = (tensor.contiguous() for tensor in (v, starts, w, u))
    grid = _grid(len(starts), v, w, FORWARD)
    out = v.new_empty(grid[1], *v.shape)
    _logits[grid](
        v, w, u, b, starts, out, len(v), *w.shape,
        run, FORWARD.rows, FORWARD.units, _fast(), num_warps=FORWARD.warps,
    )  # fmt: skip
    return out[0] if len(out) == 1 else out.sum(0)


def run_gradients(d: Tensor, v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int) -> Tensors:
    r"""The pull-back of d (n, I) to starts, w and u."""
    if len(v) > ROWS:
        parts = zip(d.split(ROWS), v.split(ROWS), starts.split(ROWS, 1), strict=True)
        at_starts, gw, gu = zip(*[run_gradients(*part, w, u, run) for part in parts], strict=True)
        return torch.cat(at_starts, 1), torch.stack(gw).sum(0), torch.stack(gu).sum(0)
    d, v, w, u = (tensor.contiguous() for tensor in (d, v, w, u))
    ends = v.new_empty(len(starts) + 1, *starts.shape[1:])  # the kernel looks for them from 1 on
    full = v.shape[1] // run
    v_k, w_k = v[:, : full * run].unflatten(1, (full, run)), w[: full * run].unflatten(0, (-1, run))
    torch.baddbmm(starts[:full], v_k.transpose(0, 1), w_k, out=ends[1 : full + 1])
    if full < len(starts):  # the last run is shorter
        torch.addmm(starts[-1], v[:, full * run :], w[full * run :], out=ends[-1])
    return _pull_blocks(d, v, w, u, ends, run)


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
