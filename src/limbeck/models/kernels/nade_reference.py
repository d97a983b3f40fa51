r"""What NADE is, written down plainly: batch × inputs × hidden in memory, and differentiable."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["gradients", "log_prob", "logits", "sample"]


def logits(x: Tensor, w: Tensor, c: Tensor, u: Tensor, period: int = 1) -> Tensor:
    r"""z_i = Σ_j u_ij σ(c_j + Σ_{i' < i} w_i'j x_i'), (n, I), of x (n, I), w and u (I, J), c (J,).

    `period` inputs stand for one variable, and are summed over only all together.
    """
    steps = (x.unsqueeze(2) * w).unflatten(1, (-1, period)).sum(2)  # (n, variables, J)
    sums = steps[:, :-1].cumsum(1)
    a = torch.cat([torch.zeros_like(steps[:, :1]), sums], 1).repeat_interleave(period, 1) + c
    return (a.sigmoid() * u).sum(2)


def log_prob(
    x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Tensor | None = None
) -> Tensor:
    r"""log p(x), (n,): Σ_i x_i log x̂_i + (1 − x_i) log(1 − x̂_i) with x̂ = σ(z).

    With means m (I,) activations are those of x − m.
    """
    z = logits(x if m is None else x - m, w, c, u) + b
    return (x * z - F.softplus(z)).sum(1)


def gradients(
    g: Tensor, x: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""The gradient of Σ_n g_n log p(x_n) with respect to x, w, c, u and b, by back-propagation."""
    steps = x.unsqueeze(2) * w
    sums = torch.cat([torch.zeros_like(steps[:, :1]), steps[:, :-1].cumsum(1)], 1)
    h = (sums + c).sigmoid()  # (n, I, J)
    z = (h * u).sum(2) + b
    d = g.unsqueeze(1) * (x - z.sigmoid())  # ∂L/∂b of each example
    at_u = d.unsqueeze(2) * h
    at_a = at_u * u * (1 - h)
    later = at_a.flip(1).cumsum(1).flip(1) - at_a  # Σ_{i' > i} ∂L/∂a_i'
    at_x = g.unsqueeze(1) * z + (later * w).sum(2)
    at_w = (later * x.unsqueeze(2)).sum(0)
    return at_x, at_w, at_a.sum((0, 1)), at_u.sum(0), d.sum(0)


def sample(
    uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor, m: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities."""
    a = c.expand(len(uniforms), -1)
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    for i in range(uniforms.shape[1]):
        probabilities[:, i] = (a.sigmoid() @ u[i] + b[i]).sigmoid()
        x[:, i] = (uniforms[:, i] < probabilities[:, i]).to(x.dtype)
        y = x[:, i] if m is None else x[:, i] - m[i]
        a = a + y.unsqueeze(1) * w[i]
    return x, probabilities
