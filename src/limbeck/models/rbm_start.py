r"""What a student takes from an RBM to start at: its weights, and the means of its variables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ArgumentError

__all__ = ["means", "weights"]

CHAINS, BURN_IN, LOOKS, APART, SEED = 100, 500, 50, 10, 0
r"""Chains, their sweeps before the first look, looks, sweeps between them, and their seed.

Few chains for long find better means than many for a short time: chains start far away.
"""

RARE = 0.05
r"""Means below this count as zero: the centre is as good, and most inputs of such variables stay
zero, which saves kernels on a CPU a third of their time on images."""


def weights(rbm: Any) -> tuple[Tensor, Tensor, Tensor]:
    r"""W, a and b of an RBM, if they fit together."""
    accepted = "an RBM with W (I, J), a (I,) and b (J,), all finite"
    try:
        W, a, b = (torch.as_tensor(getattr(rbm, name)).detach() for name in ("W", "a", "b"))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise ArgumentError("rbm", f"a {type(rbm).__name__}", accepted) from None
    shapes = [tuple(each.shape) for each in (W, a, b)]
    if W.ndim != 2 or shapes[1:] != [(W.shape[0],), (W.shape[1],)]:
        raise ArgumentError("rbm", f"W, a, b of shapes {shapes}", accepted)
    if not all(each.isfinite().all() for each in (W, a, b)):
        raise ArgumentError("rbm", "weights that are not finite", accepted)
    return W, a.to(W), b.to(W)


@torch.no_grad()
def means(rbm: Any) -> Tensor | None:
    r"""The means of an RBM's bits by short chains, alike each time; None if it has no chains."""
    if not (hasattr(rbm, "advance") and hasattr(rbm, "start")):
        return None
    device = torch.as_tensor(rbm.W).device
    generator = torch.Generator(device).manual_seed(SEED)
    x: Tensor = rbm.advance(rbm.start(CHAINS, generator), BURN_IN, generator)
    total = x.mean(0)
    for _ in range(LOOKS - 1):
        x = rbm.advance(x, APART, generator)
        total = total + x.mean(0)
    found = total / LOOKS
    return found.where((found >= RARE) | (found < 0), 0)
