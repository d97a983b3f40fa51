r"""NADE's recursion inside runs of variables, each run with given activations at its start.

With K runs of B variables (the last may be shorter), the logits of the variables of run k are

    z_i = b_i + Σ_j u_ij σ(s_kj + Σ_{i' < i, in run k} w_i'j v_i').

The pull-back computes the activations again. On a GPU a run is a block of NADE's fused kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import NotDifferentiableError
from limbeck.models.kernels.nade_op import Outputs, define_operator, empty_like, gpu_kernels

NUMBERS = {"cpu": 2**19, "cuda": 2**26}  # activations at a time, to fit into caches


def formula(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, b: Tensor, run: int) -> Tensor:
    r"""Logits (n, I, o) in plain torch, of v (n, I, f), w (I, f, J), u (I, o, J), b (I, o)."""
    parts = zip(starts, v.split(run, 1), w.split(run), u.split(run), strict=True)
    logits = []
    for start, v_k, w_k, u_k in parts:
        steps = torch.einsum("nif,ifj->nij", v_k, w_k)
        a = torch.cat([start.unsqueeze(1), steps[:, :-1]], 1).cumsum(1)
        logits.append(torch.einsum("nij,ioj->nio", a.sigmoid(), u_k))
    return torch.cat(logits, 1) + b


def logits(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, b: Tensor, run: int) -> Any:
    r"""The logits (n, I) for one input and one output a variable: v (n, I), w and u (I, J)."""
    if torch.compiler.is_dynamo_compiling():  # inlined, it would lose its derivatives silently
        raise RuntimeError("prepare_tracing() must come before the operator is compiled")
    return _Logits.apply(v, starts, w, u, b, run)


def _value(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, b: Tensor, run: int) -> Tensor:
    if (gpu := gpu_kernels(v)) is not None:
        return gpu.run_logits(v, starts, w, u, b, run)
    z = torch.empty_like(v)
    for k, rows, part in _pieces(v, w, run):
        h, _ = _states(v[rows, part], starts[k, rows], w[part])
        z[rows, part] = torch.bmm(h, u[part].unsqueeze(2)).squeeze(2).T
    return z.add_(b)


def _pull(
    d: Tensor, v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int, wants_v: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""The pull-back of d (n, I): to v, (0,) if not wanted, and to starts, w and u."""
    if (gpu := gpu_kernels(v)) is not None and not wants_v:
        return v.new_empty(0), *gpu.run_gradients(d, v, starts, w, u, run)
    gv = torch.empty_like(v) if wants_v else v.new_empty(0)
    at_starts, gw, gu = torch.empty_like(starts), torch.zeros_like(w), torch.zeros_like(u)
    for k, rows, part in _pieces(v, w, run):
        h, before = _states(v[rows, part], starts[k, rows], w[part])  # (B, r, J), (B, r, B)
        at_z = d[rows, part].T  # (B, r)
        gu[part] += torch.bmm(at_z.unsqueeze(1), h).squeeze(1)
        at_a = (at_z.unsqueeze(2) * u[part].unsqueeze(1)).mul_(h).mul_(1 - h)
        at_starts[k, rows] = at_a.sum(0)
        gw[part].addmm_(before.flatten(0, 1).T, at_a.flatten(0, 1))
        if wants_v:
            gv[rows, part] = (at_a @ w[part].T).mul_(_earlier(v, len(at_z))).sum(0)
    return gv, at_starts, gw, gu


def _states(v: Tensor, start: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    r"""σ(a) in a run for some rows, (B, r, J), and the inputs before each variable, (B, r, B)."""
    before = v * _earlier(v, v.shape[1])
    a = (before.flatten(0, 1) @ w).view(*before.shape[:2], -1)
    return a.add_(start).sigmoid_(), before


def _earlier(v: Tensor, run: int) -> Tensor:
    r"""Whether an input comes before a variable of the run, (B, 1, B)."""
    place = torch.arange(run, device=v.device)
    return (place < place.unsqueeze(1)).unsqueeze(1).to(v.dtype)


def _pieces(v: Tensor, w: Tensor, run: int) -> Iterator[tuple[int, slice, slice]]:
    r"""Number, rows and variables of each run, in blocks of rows."""
    n, inputs = v.shape
    rows = max(1, NUMBERS.get(v.device.type, NUMBERS["cpu"]) // (run * w.shape[1]))
    for k, i in enumerate(range(0, inputs, run)):
        for r in range(0, n, rows):
            yield k, slice(r, r + rows), slice(i, i + run)


def _fake_pull(d: Tensor, v: Tensor, starts: Tensor, w: Tensor, u: Tensor, *rest: Any) -> Any:
    return empty_like(v) if rest[-1] else v.new_empty(0), *map(empty_like, (starts, w, u))


_SHARED = "Tensor v, Tensor starts, Tensor w, Tensor u"
_logits_operator = define_operator(
    "segments_logits", f"({_SHARED}, Tensor b, int run) -> Tensor",
    _value, lambda v, *_: empty_like(v),
)  # fmt: skip
_pull_operator = define_operator(
    "segments_pull",
    f"(Tensor d, {_SHARED}, int run, bool wants_v) -> (Tensor, Tensor, Tensor, Tensor)",
    _pull, _fake_pull,
)  # fmt: skip


class _Logits(torch.autograd.Function):
    traceable = True  # the compiler is kept out by `logits`
    forward = staticmethod(_logits_operator)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, _, ctx.run = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        gradients = _Pull.apply(d, *ctx.saved_tensors, ctx.run, needs[0])
        at_b = d.sum(0) if needs[4] else None
        return *(g if need else None for g, need in zip(gradients, needs, strict=False)), at_b, None


class _Pull(torch.autograd.Function):
    r"""The pull-back, which has no derivatives."""

    traceable = True
    forward = staticmethod(_pull_operator)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise NotDifferentiableError("student: no second derivatives of a DeepNADE; NADE has them")
