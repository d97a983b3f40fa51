r"""NADE's formulas in plain torch: batch × inputs × hidden in memory, for export and comparison."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.models.checks import Maybe


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""z_i = Σ_j u_ij σ(c_j + Σ_{i' < i} w_i'j x_i'), (n, I), of x (n, I), w and u (I, J), c (J,).

    `period` inputs stand for one variable, and are summed over only all together.
    """
    steps = (x.unsqueeze(2) * w).unflatten(1, (-1, period)).sum(2)  # (n, variables, J)
    sums = steps[:, :-1].cumsum(1)
    a = torch.cat([torch.zeros_like(steps[:, :1]), sums], 1).repeat_interleave(period, 1) + c
    return (a.sigmoid() * u).sum(2)


def log_prob(x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Maybe = None) -> Tensor:
    r"""log p(x), (n,). With means m (I,) activations are those of x − m."""
    z = logits(x if m is None else x - m, w, c, u) + b
    return (x * z - F.softplus(z)).sum(1)
