r"""NADE's second derivatives: the R products of appendix C, in blocks of inputs.

R{·} is the derivative along a direction v of all variables, x and parameters. Applied to the
equations of forward and backward propagation it gives Hessian-vector products in linear time.
Parts of v that are None are zero, and what they would add is left out.

Everything here is a plain function of tensors, and may be differentiated again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Direction", "Products", "r_logits", "r_products", "r_pull"]

BLOCK = 28
r"""Inputs in a block."""

NUMBERS = 2**23
r"""Activations at a time."""


class Direction(NamedTuple):
    r"""v, by the variables that its parts belong to: shapes are theirs, None is zero."""

    x: Tensor | None = None
    w: Tensor | None = None
    c: Tensor | None = None
    u: Tensor | None = None
    b: Tensor | None = None


class Products(NamedTuple):
    r"""R{·} of Σ_n g_n log p(x_n)'s gradient, and of each log p(x_n), (n,)."""

    value: Tensor
    x: Tensor
    w: Tensor
    c: Tensor
    u: Tensor
    b: Tensor


class _Block(NamedTuple):
    r"""States of a block of B inputs and their R{·}, (n, B, J)."""

    h: Tensor
    rh: Tensor


def r_products(
    x: Tensor,
    w: Tensor,
    c: Tensor,
    u: Tensor,
    b: Tensor,
    v: Direction,
    g: Tensor | None = None,
    m: Tensor | None = None,
) -> Products:
    r"""H v, where H is the Hessian of Σ_n g_n log p(x_n) with respect to x and the parameters.

    Arguments:
        x: Inputs (n, I) in NADE's order, of any values.
        w: Weights into the hidden units, (I, J).
        c: The hidden units' biases, (J,).
        u: Weights out of the hidden units, (I, J).
        b: The outputs' biases, (I,).
        v: The direction.
        g: The weights of examples, (n,); None for ones.
        m: What is subtracted from x where it enters the activations, (I,); None for nothing.
    """
    y = x if m is None else x - m
    z, rz = r_logits(y, w, c, u, v)
    z = z + b
    rz = rz if v.b is None else rz + v.b
    guess = z.sigmoid()
    d = x - guess  # ∂L/∂b
    rd = -guess * (1 - guess) * rz
    rd = rd if v.x is None else rd + v.x
    value = (d * rz).sum(1) if v.x is None else (d * rz + v.x * z).sum(1)
    weight = torch.ones_like(value).unsqueeze(1) if g is None else g.unsqueeze(1)
    rx, rw, rc, ru = r_pull(weight * d, weight * rd, y, w, c, u, v)
    return Products(value, rx + weight * rz, rw, rc, ru, (weight * rd).sum(0))


def r_logits(
    x: Tensor, w: Tensor, c: Tensor, u: Tensor, v: Direction, period: int = 1
) -> tuple[Tensor, Tensor]:
    r"""z without biases and R{z}, both (n, I): the forward phase."""
    found = [_r_logits(x[some], w, c, u, _of(v, some), period) for some in _chunks(x, w)]
    z, rz = zip(*found, strict=True)
    return torch.cat(z), torch.cat(rz)


def r_pull(
    d: Tensor,
    rd: Tensor | None,
    x: Tensor,
    w: Tensor,
    c: Tensor,
    u: Tensor,
    v: Direction,
    period: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""R{·} of the pull-back of d (n, I) through the logits, with R{d} = rd: the backward phase.

    It gives R{∂/∂x} (n, I), as far as it goes through the activations, R{∂/∂w}, R{∂/∂c} and
    R{∂/∂u}.
    """
    found = [
        _r_pull(d[some], None if rd is None else rd[some], x[some], w, c, u, _of(v, some), period)
        for some in _chunks(x, w)
    ]
    rx, *sums = zip(*found, strict=True)
    rw, rc, ru = (torch.stack(each).sum(0) for each in sums)
    return torch.cat(rx), rw, rc, ru


def _r_logits(
    x: Tensor, w: Tensor, c: Tensor, u: Tensor, v: Direction, period: int
) -> tuple[Tensor, Tensor]:
    z, rz = [], []
    a, ra = _first(x, c, v)
    for rows in _blocks(x, period):
        block, a, ra = _forward(x, w, v, rows, a, ra, period)
        z.append((block.h * u[rows]).sum(2))
        here = (block.rh * u[rows]).sum(2)
        rz.append(here if v.u is None else here + (block.h * v.u[rows]).sum(2))
    return torch.cat(z, 1), torch.cat(rz, 1)


def _r_pull(
    d: Tensor,
    rd: Tensor | None,
    x: Tensor,
    w: Tensor,
    c: Tensor,
    u: Tensor,
    v: Direction,
    period: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    blocks = list(_blocks(x, period))
    starts = [_first(x, c, v)]
    for rows in blocks[:-1]:
        starts.append(_carry(x, w, v, rows, *starts[-1]))
    s = rs = torch.zeros_like(starts[0][0])  # Σ ∂/∂a over the blocks behind, and its R{·}
    found = []
    for rows, start in reversed(list(zip(blocks, starts, strict=True))):
        a, ra = start
        h, rh = _forward(x, w, v, rows, a, ra, period)[0]
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
        found.append((rx, rw, r_at_u.sum(0)))
        s, rs = s + at_a.sum(1), rs + r_at_a.sum(1)
    products_x, products_w, products_u = zip(*reversed(found), strict=True)
    return torch.cat(products_x, 1), torch.cat(products_w), rs.sum(0), torch.cat(products_u)


def _first(x: Tensor, c: Tensor, v: Direction) -> tuple[Tensor, Tensor]:
    r"""The first activations (n, J) and their R{·}."""
    a = c.expand(len(x), -1)
    return a, torch.zeros_like(a) if v.c is None else v.c.expand(len(x), -1)


def _carry(
    x: Tensor, w: Tensor, v: Direction, rows: slice, a: Tensor, ra: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Activations and their R{·} behind a block."""
    if v.w is not None:
        ra = ra + x[:, rows] @ v.w[rows]
    if v.x is not None:
        ra = ra + v.x[:, rows] @ w[rows]
    return a + x[:, rows] @ w[rows], ra


def _forward(
    x: Tensor, w: Tensor, v: Direction, rows: slice, a: Tensor, ra: Tensor, period: int
) -> tuple[_Block, Tensor, Tensor]:
    r"""The states of a block, and activations behind it with their R{·}."""
    before = _before(rows, period, x)
    own = before * x[:, rows].unsqueeze(1)  # (n, B, B)
    h = (a.unsqueeze(1) + own @ w[rows]).sigmoid()
    inside = ra.unsqueeze(1)
    if v.w is not None:
        inside = inside + own @ v.w[rows]
    if v.x is not None:
        inside = inside + (before * v.x[:, rows].unsqueeze(1)) @ w[rows]
    return _Block(h, h * (1 - h) * inside), *_carry(x, w, v, rows, a, ra)


def _before(rows: slice, period: int, like: Tensor) -> Tensor:
    r"""(B, B): whether the variable of input i' comes before that of input i."""
    variable = torch.arange(rows.stop - rows.start, device=like.device) // period
    return (variable.unsqueeze(1) > variable).to(like.dtype)


def _of(v: Direction, some: slice) -> Direction:
    r"""The direction of some examples."""
    return v if v.x is None else v._replace(x=v.x[some])


def _chunks(x: Tensor, w: Tensor) -> list[slice]:
    r"""Examples to be done together: at least one chunk, which may be empty."""
    rows = max(NUMBERS // (BLOCK * w.shape[1]), 1)
    return [slice(r, r + rows) for r in range(0, max(len(x), 1), rows)]


def _blocks(x: Tensor, period: int) -> list[slice]:
    size, inputs = max(BLOCK // period, 1) * period, x.shape[1]
    return [slice(i, min(i + size, inputs)) for i in range(0, inputs, size)]
