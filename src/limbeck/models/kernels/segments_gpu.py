r"""NADE's recursion inside runs of variables, on a GPU: NADE's own kernels, a run to a block."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

__all__ = ["fits", "logits", "pull"]

ROWS = 2048
r"""Examples at once, which bounds the memory of the gradients' parts."""


def fits(v: Tensor) -> bool:
    r"""Whether the kernels can do it."""
    return v.is_cuda and v.dtype == torch.float32 and _kernels() is not None


def logits(v: Tensor, starts: Tensor, w: Tensor, u: Tensor, b: Tensor, run: int) -> Tensor:
    r"""As `segments.logits`."""
    if len(v) > ROWS:
        parts = zip(v.split(ROWS), starts.split(ROWS, 1), strict=True)
        return torch.cat([logits(*part, w, u, b, run) for part in parts])
    kernels, shape = _kernels(), _kernels().FORWARD
    v, starts, w, u = (each.contiguous() for each in (v, starts, w, u))
    grid = _grid(v, starts, shape)
    out = v.new_empty(grid[1], *v.shape)
    kernels._logits[grid](
        v, w, u, b, starts, out, len(v), *w.shape,
        run, shape.rows, shape.units, kernels._fast(), num_warps=shape.warps,
    )  # fmt: skip
    return out[0] if len(out) == 1 else out.sum(0)


def pull(
    d: Tensor, v: Tensor, starts: Tensor, w: Tensor, u: Tensor, run: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The pull-back of d (n, I) to starts, w and u."""
    if len(v) > ROWS:
        parts = zip(d.split(ROWS), v.split(ROWS), starts.split(ROWS, 1), strict=True)
        pulled = [pull(*part, w, u, run) for part in parts]
        gw, gu = (torch.stack([each[place] for each in pulled]).sum(0) for place in (1, 2))
        return torch.cat([each[0] for each in pulled], 1), gw, gu
    kernels, shape = _kernels(), _kernels().BACKWARD
    d, v, w, u = (each.contiguous() for each in (d, v, w, u))
    grid = _grid(v, starts, shape)
    ends = v.new_empty(len(starts) + 1, *starts.shape[1:])  # the kernel looks for them from 1 on
    full = v.shape[1] // run
    v_k, w_k = v[:, : full * run].unflatten(1, (full, run)), w[: full * run].unflatten(0, (-1, run))
    torch.baddbmm(starts[:full], v_k.transpose(0, 1), w_k, out=ends[1 : full + 1])
    if full < len(starts):  # the last run is shorter
        torch.addmm(starts[-1], v[:, full * run :], w[full * run :], out=ends[-1])
    of_w, of_u = (v.new_empty(grid[2], *w.shape) for _ in range(2))  # the parts of each group
    at_starts = torch.empty_like(ends[1:])
    kernels._gradients[grid](
        d, v, w, u, ends, of_w, of_u, at_starts, len(v), *w.shape,
        run, shape.rows, shape.units, kernels._fast(), num_warps=shape.warps,
    )  # fmt: skip
    return at_starts, of_w.sum(0), of_u.sum(0)


def _grid(v: Tensor, starts: Tensor, shape: Any) -> tuple[int, int, int]:
    r"""Runs, tiles of hidden units, groups of examples."""
    return len(starts), -(-starts.shape[2] // shape.units), -(-len(v) // shape.rows)


def _kernels() -> Any:
    try:
        return importlib.import_module("limbeck.models.kernels.nade_triton")
    except ImportError:  # no Triton for this platform
        return None
