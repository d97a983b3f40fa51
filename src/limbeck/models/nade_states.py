r"""NADE over variables of q states: an input for each state, a softmax for each variable."""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.models.kernels.nade_op import logits

__all__ = ["log_conditionals", "log_prob", "sample"]

NUMBERS = 2**20
r"""Activations at a time while sampling."""


def log_conditionals(codes: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Tensor:
    r"""log p(x_i = k | x_<i) for every state k, (n, I, q).

    Arguments:
        codes: States 0 … q−1, (n, I), in NADE's order.
        w: What each state of each variable adds to the activations, (I, q, J).
        c: The hidden units' biases, (J,).
        u: Weights out of the hidden units, (I, q, J).
        b: The states' biases, (I, q).
    """
    states = b.shape[1]
    x = _one_hot(codes, states).flatten(1)  # (n, I · q)
    z = logits(x, w.flatten(0, 1), c, u.flatten(0, 1), b.flatten(), states)
    return z.unflatten(1, b.shape).log_softmax(2)


def log_prob(codes: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> Tensor:
    r"""log p(x), (n,), of codes (n, I)."""
    terms = log_conditionals(codes, w, c, u, b) * _one_hot(codes, b.shape[1])
    return terms.sum((1, 2), dtype=torch.float64).to(terms.dtype)


@torch.no_grad()
def sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Codes (n, I), each where its uniform number falls, and all probabilities met, (n, I, q)."""
    found = [_sample(some, w, c, u, b) for some in uniforms.split(max(1, NUMBERS // len(c)))]
    codes, probabilities = zip(*found, strict=True)
    return torch.cat(codes), torch.cat(probabilities)


def _sample(uniforms: Tensor, w: Tensor, c: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a = c.repeat(len(uniforms), 1)
    codes, probabilities = [], []
    for i, uniform in enumerate(uniforms.T):
        p = torch.addmm(b[i], a.sigmoid(), u[i].T).softmax(1)
        passed = uniform.unsqueeze(1) >= p.cumsum(1)
        code = passed.sum(1).clamp_max(b.shape[1] - 1)  # rounded sums may stay below one
        a += w[i][code]
        codes.append(code)
        probabilities.append(p)
    return torch.stack(codes, 1).to(uniforms.dtype), torch.stack(probabilities, 1)


def _one_hot(codes: Tensor, states: int) -> Tensor:
    every = torch.arange(states, dtype=codes.dtype, device=codes.device)
    return (codes.unsqueeze(2) == every).to(codes.dtype)
