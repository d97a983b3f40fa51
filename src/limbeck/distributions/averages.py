r"""Averages of probabilities that may be as small as they like: logits in, logarithms out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["log_means", "log_odds", "seen"]

NOTHING = -80.0
r"""The logarithm of what does not count beside 1."""


def log_means(logits: Tensor, weights: Tensor | None = None, dim: int = -1) -> Tensor:
    r"""log Σ_k w_k σ(z_k) and log Σ_k w_k σ(−z_k) of logits z over a dimension, (2, ...).

    σ(z) = eˢ e^(z − s) σ(−z) for any s. With s = max z, where that is below 0, the last two factors
    are of order one for the largest z, and nothing underflows. This is quicker by far than log σ
    and `logsumexp`. Terms that do not count do not become denormal numbers, which are slow.

    Arguments:
        logits: The logits z.
        weights: How much each counts, (..., K) over the last dimension; None is all the same.
        dim: The dimension.
    """
    z = torch.stack([logits, -logits])
    dim = dim if dim < 0 else dim + 1
    shift = z.detach().amax(dim, keepdim=True).clamp_max(0.0)
    p = z.sigmoid()
    low = (z - shift).clamp(NOTHING, 0.0).exp() * p.flip(0)
    terms = torch.where(shift < 0, low, p)
    if weights is None:
        total = terms.mean(dim)
    else:
        total = terms @ weights if weights.ndim == 1 else (terms * weights).sum(dim)
    return total.log() + shift.squeeze(dim)


def log_odds(logits: Tensor, weights: Tensor) -> Tensor:
    r"""The log odds of Σ_k w_k σ(z_k), of logits (..., K), mostly without the shift of `log_means`.

    This is four times as quick. It looks at numbers, and has no derivatives. Probabilities are
    taken to be no less than what is just not denormal; where a mean is so small that this shows,
    `log_means` has its turn.

    Arguments:
        logits: The logits z.
        weights: How much each counts, (K,).
    """
    far, least = -math.log(torch.finfo(logits.dtype).tiny) - 1, seen(logits.dtype)
    odds = logits.clamp(-far, far).exp_()
    no = (odds + 1).reciprocal_()
    zero, one = no @ weights, odds.mul_(no) @ weights
    lower = torch.minimum(one, zero)
    found = one.div_(zero).log_()
    if found.numel() and lower.min().item() < least:
        lost = lower < least
        high, low = log_means(logits[lost], weights)
        found[lost] = high - low
    return found


def seen(dtype: torch.dtype) -> float:
    r"""Means beside which it does not show that the least probabilities are about `tiny`."""
    kind = torch.finfo(dtype)
    return 3 * kind.tiny / kind.eps
