r"""The distributions that predictions are made of, and their averages over draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.distributions.base import Distribution, Mixture, broadcast, mapped, tensors
from limbeck.distributions.checking import as_distribution, check
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.gaussians import MultivariateNormal, Normal
from limbeck.errors import ArgumentError

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Mixture",
    "MultivariateNormal",
    "Normal",
    "Poisson",
    "as_distribution",
    "average",
    "averaged",
    "broadcast",
    "check",
]


def average(stacked: Any, weights: Sequence[float] | np.ndarray | Tensor | None = None) -> Any:
    r"""The mixture of the draws' predictions.

    The parameters of `stacked` have the draws as first dimension, (S, ...), and `weights` is (S,).
    Of Bernoulli and Categorical distributions the average is of the same kind, computed in logs,
    and averages of blocks can be averaged again; of others it is a `Mixture`.

    >>> average(Bernoulli(probs=torch.tensor([[0.1, 0.5], [0.3, 0.9]]))).mean
    tensor([0.2000, 0.7000])
    """
    whole = stacked if len(list(tensors(stacked))) == 1 else torch.vmap(broadcast)(stacked)
    draws, like = whole.batch_shape[0], next(tensors(whole))
    if weights is None:
        return averaged(whole, like.new_full((draws,), -math.log(draws)))
    share = torch.as_tensor(weights).to(like)
    if share.shape != (draws,):
        raise ArgumentError("weights", f"shape {tuple(share.shape)}", f"shape ({draws},)")
    return averaged(whole, (share / share.sum()).log())


def averaged(whole: Any, log_weights: Tensor) -> Any:
    r"""`average` of a distribution that is broadcast, with normalised log weights (S,)."""
    last = mapped(whole, lambda value, dims: value.movedim(0, value.ndim - 1 - dims))
    return last.mixed(log_weights)
