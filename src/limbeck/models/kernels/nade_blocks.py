r"""NADE in plain torch, in blocks of inputs: value, pull-back and sampling in bounded memory.

One matrix product carries the activations a of all rows from a block into the next. Inside a
block they change only behind inputs that are not zero, so that a row with k of these in the block
has k + 1 states h = σ(a). These are rows of one matrix: a product with the inputs before each
gives the activations, another one z, and two more the derivatives. The pull-back goes through
the blocks backwards, recomputes the states, and carries the sums of the activations' derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["logits", "pull", "sample"]

BLOCK = 28
r"""Inputs in a block: more make the products dearer, fewer the calls more."""

NUMBERS = {"cpu": 2**20, "cuda": 2**26}
r"""Activations at a time: on a CPU they should stay in cache, on a GPU they should fill it."""


class _States(NamedTuple):
    r"""The different states of some rows in a block of B inputs.

    Attributes:
        row: The row of each state, (states,).
        behind: Whether it comes behind an input of the block, as a number, (states, B).
        before: The inputs of the block that it comes behind, zero elsewhere, (states, B).
        place: Where an input finds its own state in a flattened (states, B) matrix, (rows, B).
    """

    row: Tensor
    behind: Tensor
    before: Tensor
    place: Tensor


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""z_i = Σ_j u_ij σ(a_ij), without biases, (n, I); as `nade_reference.logits`."""
    z = torch.empty_like(x)
    with _plain(x):
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
    blocks = list(_blocks(x, period))
    with _plain(x):
        for rows in _chunks(x, _block(period) * w.shape[1]):
            starts = w.new_empty(len(blocks), len(x[rows]), w.shape[1])
            starts[0] = c
            for k, block in enumerate(blocks[:-1]):
                torch.addmm(starts[k], x[rows, block], w[block], out=starts[k + 1])
            later = torch.zeros_like(starts[0])  # Σ ∂L/∂a over the blocks behind
            for k, block in reversed(list(enumerate(blocks))):
                states = _states(x[rows, block], period, each=wants_x)
                h = torch.addmm(starts[k][states.row], states.before, w[block]).sigmoid_()
                at_z = torch.zeros_like(states.before)
                at_z.put_(states.place, d[rows, block])
                gu[block].addmm_(at_z.T, h)
                at_a = at_z @ u[block]
                torch.ops.aten.sigmoid_backward.grad_input(at_a, h, grad_input=at_a)
                gw[block].addmm_(states.before.T, at_a).addmm_(x[rows, block].T, later)
                if wants_x:
                    inside = (at_a @ w[block].T).mul_(states.behind)
                    outside = later @ w[block].T
                    gx[rows, block] = outside.index_add_(0, states.row, inside)
                later.index_add_(0, states.row, at_a)
            gc += later.sum(0)
    return gx, gw, gc, gu


def sample(
    uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities.

    What enters the activations is x − m, if means m (I,) are given. If not, only rows that drew a
    one have new ones; a GPU would have to wait to know which.
    """
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    with _plain(uniforms):
        for rows in _chunks(uniforms, w.shape[1]):
            a = c.repeat(len(uniforms[rows]), 1)
            h = a.sigmoid()
            limits = uniforms[rows].T.contiguous()  # (I, rows): one input's lie side by side
            some, odds = torch.empty_like(limits), torch.empty_like(limits)
            for i, weights in enumerate(w):
                torch.addmv(b[i], h, u[i], out=odds[i]).sigmoid_()
                torch.lt(limits[i], odds[i], out=some[i])
                if m is not None or uniforms.device.type != "cpu":
                    y = some[i] if m is None else some[i] - m[i]
                    torch.sigmoid(a.addr_(y, weights), out=h)
                else:
                    ones = some[i].nonzero().squeeze(1)
                    changed = a.index_select(0, ones).add_(weights)
                    a.index_copy_(0, ones, changed)
                    h.index_copy_(0, ones, changed.sigmoid_())
            x[rows], probabilities[rows] = some.T, odds.T
    return x, probabilities


def _states(x: Tensor, period: int, each: bool = False) -> _States:
    r"""The states of a block x (rows, B); `each` gives every variable one of its own.

    So does a GPU: how many there are would have to be waited for.
    """
    rows, inputs = x.shape
    starts = torch.ones(rows, inputs // period, dtype=torch.bool, device=x.device)
    if x.device.type != "cpu" or each:
        number = torch.arange(starts.numel(), device=x.device)
        own = number
    else:
        starts[:, 1:] = x.ne(0).unflatten(1, (-1, period)).any(2)[:, :-1]
        number = starts.flatten().nonzero().squeeze(1)
        own = starts.flatten().cumsum(0).sub_(1)
    row = number.div(starts.shape[1], rounding_mode="floor")
    first = number.remainder(starts.shape[1]).mul_(period)  # each state's first input
    position = torch.arange(inputs, device=x.device)
    behind = (first.unsqueeze(1) > position).to(x.dtype)
    place = own.view(rows, -1).repeat_interleave(period, 1) * inputs + position
    return _States(row, behind, x[row] * behind, place)


def _block(period: int) -> int:
    return max(BLOCK // period, 1) * period


def _blocks(x: Tensor, period: int) -> Iterator[slice]:
    size, inputs = _block(period), x.shape[1]
    return (slice(i, min(i + size, inputs)) for i in range(0, inputs, size))


def _chunks(x: Tensor, each: int) -> Iterator[slice]:
    r"""Rows to be done together, if a row needs so many numbers."""
    rows = max(NUMBERS.get(x.device.type, NUMBERS["cpu"]) // each, 1)
    return (slice(r, r + rows) for r in range(0, len(x), rows))


def _plain(x: Tensor) -> AbstractContextManager[object]:
    r"""No automatic half precision, in which training may run."""
    return torch.autocast(x.device.type, enabled=False)
