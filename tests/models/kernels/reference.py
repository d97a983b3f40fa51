r"""NADE written down plainly, for comparison: batch × inputs × hidden in memory."""

import torch
from torch.nn import functional as F

from limbeck.models.kernels import nade_op


def logits(x, w, c, u, period=1):
    r"""z_i = Σ_j u_ij σ(c_j + Σ_{i' < i} w_i'j x_i'), where `period` inputs are one variable."""
    steps = (x.unsqueeze(2) * w).unflatten(1, (-1, period)).sum(2)  # (n, variables, J)
    sums = torch.cat([torch.zeros_like(steps[:, :1]), steps[:, :-1].cumsum(1)], 1)
    return ((sums.repeat_interleave(period, 1) + c).sigmoid() * u).sum(2)


def log_prob(x, w, c, u, b, m=None):
    z = logits(x if m is None else x - m, w, c, u) + b
    return (x * z - F.softplus(z)).sum(1)


def operator_logits(x, w, c, u, period=1):
    r"""The same by NADE's operator."""
    if period > 1:
        x, w, u = (
            x.unflatten(1, (-1, period)),
            w.unflatten(0, (-1, period)),
            u.unflatten(0, (-1, period)),
        )
    return nade_op.logits(x, w, c, u, torch.zeros_like(x[:1])).flatten(1)


def operator_log_prob(x, w, c, u, b, m=None):
    r"""log p(x), (n,), by NADE's operator, with terms summed in float64."""
    z = nade_op.logits(x if m is None else x - m, w, c, u, b)
    return (x * z - F.softplus(z)).sum(1, dtype=torch.float64).to(z.dtype)


def gradients(g, x, w, c, u, b):
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


def sample(uniforms, w, c, u, b, m=None):
    r"""x (n, I), with x_i = 1 where uniforms_i < p(x_i = 1 | x_<i), and these probabilities."""
    a = c.expand(len(uniforms), -1)
    x, probabilities = torch.empty_like(uniforms), torch.empty_like(uniforms)
    for i in range(uniforms.shape[1]):
        probabilities[:, i] = (a.sigmoid() @ u[i] + b[i]).sigmoid()
        x[:, i] = (uniforms[:, i] < probabilities[:, i]).to(x.dtype)
        y = x[:, i] if m is None else x[:, i] - m[i]
        a = a + y.unsqueeze(1) * w[i]
    return x, probabilities
