r"""Which of NADE's kernels does the work: Triton on a GPU, C++ on a CPU, or plain torch."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch
from torch import Tensor

from limbeck.models.kernels import nade_blocks, nade_native

__all__ = ["carry_shape", "logits", "pull", "sample"]

WORTH_NATIVE = 2**16
r"""Activations from which the C++ kernels pay, and the second that compiling them takes once."""


def logits(
    x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, period: int
) -> tuple[Tensor, Tensor]:
    r"""z (n, I) with biases, and what the kernels want to see again in `pull`."""
    gpu = _gpu(x, period)
    if gpu is not None:
        return gpu.logits(x, w, c, u, b)
    return _plain(x, w).logits(x, w, c, u, period).add_(b), x.new_empty(0)


def pull(
    d: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, carry: Tensor, period: int, wants_x: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""The pull-back of d (n, I) through the logits: to x, (0,) if not wanted, w, c, u and b."""
    gpu = _gpu(x, period)
    if gpu is not None:
        gx, *rest = gpu.gradients(d, x, w, c, u, carry, wants_x)
        return (gx if wants_x else x.new_empty(0), *rest)
    return *_plain(x, w).pull(d, x, w, c, u, period, wants_x), d.sum(0)


def sample(
    uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities.

    What enters the activations is x − m, if means m (I,) are given.
    """
    return (_gpu(uniforms, 1) or _plain(uniforms, w)).sample(uniforms, w, c, u, b, m)


def carry_shape(x: Tensor, w: Tensor, period: int) -> tuple[int, ...]:
    r"""The shape of what `logits` gives beside z."""
    gpu = _gpu(x, period)
    return (0,) if gpu is None else gpu.carry_shape(x, w)


def _plain(x: Tensor, w: Tensor) -> ModuleType:
    wanted = x.dtype in nade_native.NAMES and x.numel() * w.shape[1] >= WORTH_NATIVE
    native = wanted and x.device.type == "cpu" and nade_native.available()
    return nade_native if native else nade_blocks


def _gpu(x: Tensor, period: int) -> ModuleType | None:
    return _triton() if x.is_cuda and period == 1 and x.dtype == torch.float32 else None


@functools.cache
def _triton() -> ModuleType | None:
    try:
        return importlib.import_module("limbeck.models.kernels.nade_triton")
    except ImportError:  # no Triton for this platform
        return None
