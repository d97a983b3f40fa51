r"""NADE in plain torch, in blocks of inputs: values, derivatives and samples in bounded memory.

One matrix product carries the activations a of all rows from a block into the next. Inside a
block they change only behind inputs that are not zero: a row with k of these has k + 1 states
h = σ(a), which are rows of one matrix. The pull-back recomputes the states, block by block.
R{·} is the derivative along a direction v of x and the parameters (appendix C), for products with
the Hessian in linear time.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.models.checks import Maybe, Pair

BLOCK = 28  # inputs in a block: larger products with more, more calls with fewer
NUMBERS = {"cpu": 2**20, "cuda": 2**26}  # activations at a time: to stay in cache, to fill a GPU
R_NUMBERS = 2**23  # activations at a time in R products


def formula(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""z_i = Σ_j u_ij σ(c_j + Σ_{i' < i} w_i'j x_i'), (n, I), of x (n, I), w and u (I, J), c (J,).

    `period` inputs stand for one variable, and are summed over only all together.
    """
    steps = (x.unsqueeze(2) * w).unflatten(1, (-1, period)).sum(2)  # (n, variables, J)
    sums = steps[:, :-1].cumsum(1)
    a = torch.cat([torch.zeros_like(steps[:, :1]), sums], 1).repeat_interleave(period, 1) + c
    return (a.sigmoid() * u).sum(2)


def log_prob(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Maybe = None) -> Tensor:
    r"""log p(x), (n,). With means m (I,) activations are those of x − m."""
    z = formula(x if m is None else x - m, w, c, u) + b
    return (x * z - F.softplus(z)).sum(1)


class _States(NamedTuple):
    r"""The different states of some rows in a block of B inputs."""

    row: Tensor  # of each state, (states,)
    behind: Tensor  # whether it comes behind an input of the block, as a number, (states, B)
    before: Tensor  # the inputs of the block that it comes behind, zero elsewhere, (states, B)
    place: Tensor  # the index of an input's state in a flattened (states, B) matrix, (rows, B)


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""z_i = Σ_j u_ij σ(a_ij), without biases, (n, I); as `formula`."""
    z = torch.empty_like(x)
    with torch.autocast(x.device.type, enabled=False):
        for rows in _chunks(x, _block(period) * w.shape[1]):
            a = c.repeat(len(x[rows]), 1)
            for block in _blocks(x, period):
                states = _states(x[rows, block], period)
                h = torch.addmm(a[states.row], states.before, w[block]).sigmoid_()
                z[rows, block] = (h @ u[block].T).take(states.place)
                a.addmm_(x[rows, block], w[block])
    return z


def pull(
    d: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1, wants_x: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""The pull-back of d (n, I) through `logits`: to x, (0,) if not wanted, and to w, c, u."""
    gx = torch.empty_like(x) if wants_x else x.new_empty(0)
    gw, gc, gu = (torch.zeros_like(parameter) for parameter in (w, c, u))
    blocks = _blocks(x, period)
    with torch.autocast(x.device.type, enabled=False):
        for rows in _chunks(x, _block(period) * w.shape[1]):
            starts = w.new_empty(len(blocks), len(x[rows]), w.shape[1])
            starts[0] = c
            for k, block in enumerate(blocks[:-1]):
                torch.addmm(starts[k], x[rows, block], w[block], out=starts[k + 1])
            later = torch.zeros_like(starts[0])  # Σ ∂L/∂a over the blocks behind
            for k, block in reversed(list(enumerate(blocks))):
                states = _states(x[rows, block], period, separate=wants_x)
                h = torch.addmm(starts[k][states.row], states.before, w[block]).sigmoid_()
                at_z = torch.zeros_like(states.before)
                at_z.put_(states.place, d[rows, block])
                gu[block].addmm_(at_z.T, h)
                at_a = at_z @ u[block]
                torch.ops.aten.sigmoid_backward.grad_input(at_a, h, grad_input=at_a)
                gw[block].addmm_(states.before.T, at_a).addmm_(x[rows, block].T, later)
                if wants_x:
                    inside = (at_a @ w[block].T).mul_(states.behind)
                    gx[rows, block] = (later @ w[block].T).index_add_(0, states.row, inside)
                later.index_add_(0, states.row, at_a)
            gc += later.sum(0)
    return gx, gw, gc, gu


def sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Maybe = None) -> Pair:
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities."""
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    with torch.autocast(uniforms.device.type, enabled=False):
        for rows in _chunks(uniforms, w.shape[1]):
            a = c.repeat(len(uniforms[rows]), 1)
            h = a.sigmoid()
            limits = uniforms[rows].T.contiguous()  # (I, rows): one input's lie side by side
            drawn, odds = torch.empty_like(limits), torch.empty_like(limits)
            for i, weights in enumerate(w):
                torch.addmv(b[i], h, u[i], out=odds[i]).sigmoid_()
                torch.lt(limits[i], odds[i], out=drawn[i])
                if m is not None or uniforms.device.type != "cpu":
                    y = drawn[i] if m is None else drawn[i] - m[i]
                    torch.sigmoid(a.addr_(y, weights), out=h)
                else:  # only activations of rows that drew a one are computed again
                    ones = drawn[i].nonzero().squeeze(1)
                    changed = a.index_select(0, ones).add_(weights)
                    a.index_copy_(0, ones, changed)
                    h.index_copy_(0, ones, changed.sigmoid_())
            x[rows], probabilities[rows] = drawn.T, odds.T
    return x, probabilities


def _states(x: Tensor, period: int, separate: bool = False) -> _States:
    r"""The states of a block x (rows, B); `separate`, and on a GPU, B in each row."""
    rows, inputs = x.shape
    starts = torch.ones(rows, inputs // period, dtype=torch.bool, device=x.device)
    if x.device.type != "cpu" or separate:
        number = state = torch.arange(starts.numel(), device=x.device)
    else:
        starts[:, 1:] = x.ne(0).unflatten(1, (-1, period)).any(2)[:, :-1]
        number = starts.flatten().nonzero().squeeze(1)
        state = starts.flatten().cumsum(0).sub_(1)
    row = number.div(starts.shape[1], rounding_mode="floor")
    first = number.remainder(starts.shape[1]).mul_(period)  # each state's first input
    position = torch.arange(inputs, device=x.device)
    behind = (first.unsqueeze(1) > position).to(x.dtype)
    place = state.view(rows, -1).repeat_interleave(period, 1) * inputs + position
    return _States(row, behind, x[row] * behind, place)


def _block(period: int) -> int:
    return max(BLOCK // period, 1) * period


def _blocks(x: Tensor, period: int) -> list[slice]:
    size, inputs = _block(period), x.shape[1]
    return [slice(i, min(i + size, inputs)) for i in range(0, inputs, size)]


def _chunks(x: Tensor, numbers: int) -> Iterator[slice]:
    r"""Blocks of rows, if each row needs so many numbers."""
    rows = max(NUMBERS.get(x.device.type, NUMBERS["cpu"]) // numbers, 1)
    return (slice(r, r + rows) for r in range(0, len(x), rows))


# v, in parts of the shapes of the variables; None is zero
Direction = namedtuple("Direction", "x w c u b", defaults=[None, None, None, None, None])
# R{·} of each log p(x_n), (n,), and of the gradient of Σ_n g_n log p(x_n)
Products = namedtuple("Products", "value x w c u b")


def r_products(
    x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, v: Direction,
    g: Tensor | None = None, m: Tensor | None = None,
) -> Products:  # fmt: skip
    r"""H v, with the Hessian H of Σ_n g_n log p(x_n) (by default g = 1) in x and parameters."""
    y = x if m is None else x - m
    z, rz = r_logits(y, w, c, u, v)
    z, rz = z + b, rz if v.b is None else rz + v.b
    p = z.sigmoid()
    d, rd = x - p, -p * (1 - p) * rz  # ∂L/∂b
    value = d * rz
    if v.x is not None:
        rd, value = rd + v.x, value + v.x * z
    value = value.sum(1)
    weight = torch.ones_like(value).unsqueeze(1) if g is None else g.unsqueeze(1)
    rx, rw, rc, ru = r_pull(weight * d, weight * rd, y, w, c, u, v)
    return Products(value, rx + weight * rz, rw, rc, ru, (weight * rd).sum(0))


def r_logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, v: Direction, period: int = 1) -> Pair:
    r"""z without biases and R{z}, both (n, I): the forward phase."""
    if len(chunks := _r_chunks(x, w, v)) > 1:
        parts = [r_logits(x[rows], w, c, u, part, period) for rows, part in chunks]
        z, rz = map(torch.cat, zip(*parts, strict=True))
        return z, rz
    logits, changes = [], []
    a, ra = _first(x, c, v)
    for rows in _blocks(x, period):
        h, rh = _r_states(x, w, v, rows, period, a, ra)
        a, ra = _r_carry(x, w, v, rows, a, ra)
        logits.append((h * u[rows]).sum(2))
        change = (rh * u[rows]).sum(2)
        changes.append(change if v.u is None else change + (h * v.u[rows]).sum(2))
    return torch.cat(logits, 1), torch.cat(changes, 1)


def r_pull(
    d: Tensor, rd: Tensor | None, x: Tensor, w: Tensor, c: Tensor, u: Tensor, v: Direction,
    period: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    r"""R{·} of the pull-back of d (n, I), with R{d} = rd, to x, w, c and u: the backward phase."""
    if len(chunks := _r_chunks(x, w, v)) > 1:
        parts = [
            r_pull(d[rows], None if rd is None else rd[rows], x[rows], w, c, u, part, period)
            for rows, part in chunks
        ]
        for_x, *sums = zip(*parts, strict=True)
        for_w, for_c, for_u = (torch.stack(terms).sum(0) for terms in sums)
        return torch.cat(for_x), for_w, for_c, for_u
    blocks = _blocks(x, period)
    starts = [_first(x, c, v)]
    for rows in blocks[:-1]:
        starts.append(_r_carry(x, w, v, rows, *starts[-1]))
    s = rs = torch.zeros_like(starts[0][0])  # Σ ∂/∂a over the blocks behind, and its R{·}
    products = []
    for rows, start in reversed(list(zip(blocks, starts, strict=True))):
        h, rh = _r_states(x, w, v, rows, period, *start)
        at_z, r_at_z = d[:, rows].unsqueeze(2), None if rd is None else rd[:, rows].unsqueeze(2)
        at_u = at_z * h
        r_at_u = at_z * rh if r_at_z is None else r_at_z * h + at_z * rh
        at_a = at_u * u[rows] * (1 - h)
        r_at_a = r_at_u * u[rows] * (1 - h) - at_u * u[rows] * rh
        if v.u is not None:
            r_at_a = r_at_a + at_u * v.u[rows] * (1 - h)
        before = _before(rows, period, x)
        later = s.unsqueeze(1) + before.T @ at_a  # Σ_{i' > i} ∂/∂a_i', (n, B, J)
        r_later = rs.unsqueeze(1) + before.T @ r_at_a
        rx = (r_later * w[rows]).sum(2)
        rw = (r_later * x[:, rows].unsqueeze(2)).sum(0)
        if v.w is not None:
            rx = rx + (later * v.w[rows]).sum(2)
        if v.x is not None:
            rw = rw + (later * v.x[:, rows].unsqueeze(2)).sum(0)
        products.append((rx, rw, r_at_u.sum(0)))
        s, rs = s + at_a.sum(1), rs + r_at_a.sum(1)
    of_x, of_w, of_u = zip(*reversed(products), strict=True)
    return torch.cat(of_x, 1), torch.cat(of_w), rs.sum(0), torch.cat(of_u)


def _first(x: Tensor, c: Tensor, v: Direction) -> tuple[Tensor, Tensor]:
    r"""The first activations (n, J) and their R{·}."""
    a = c.expand(len(x), -1)
    return a, torch.zeros_like(a) if v.c is None else v.c.expand(len(x), -1)


def _r_carry(x: Tensor, w: Tensor, v: Direction, rows: slice, a: Tensor, ra: Tensor) -> Pair:
    r"""Activations and their R{·} behind a block."""
    if v.w is not None:
        ra = ra + x[:, rows] @ v.w[rows]
    if v.x is not None:
        ra = ra + v.x[:, rows] @ w[rows]
    return a + x[:, rows] @ w[rows], ra


def _r_states(
    x: Tensor, w: Tensor, v: Direction, rows: slice, period: int, a: Tensor, ra: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The states h of a block of B inputs and their R{·}, (n, B, J)."""
    before = _before(rows, period, x)
    earlier = before * x[:, rows].unsqueeze(1)  # (n, B, B)
    h = (a.unsqueeze(1) + earlier @ w[rows]).sigmoid()
    inside = ra.unsqueeze(1)
    if v.w is not None:
        inside = inside + earlier @ v.w[rows]
    if v.x is not None:
        inside = inside + (before * v.x[:, rows].unsqueeze(1)) @ w[rows]
    return h, h * (1 - h) * inside


def _before(rows: slice, period: int, like: Tensor) -> Tensor:
    r"""(B, B): whether the variable of input i' comes before that of input i."""
    variable = torch.arange(rows.stop - rows.start, device=like.device) // period
    return (variable.unsqueeze(1) > variable).to(like.dtype)


def _r_chunks(x: Tensor, w: Tensor, v: Direction) -> list[tuple[slice, Direction]]:
    r"""Blocks of rows with their part of v: at least one, which may be empty."""
    size = max(R_NUMBERS // (BLOCK * w.shape[1]), 1)
    chunks = [slice(r, r + size) for r in range(0, max(len(x), 1), size)]
    return [(rows, v if v.x is None else v._replace(x=v.x[rows])) for rows in chunks]
