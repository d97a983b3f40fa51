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

    Of Bernoulli and Categorical distributions it is one of the same kind, computed from logits
    without leaving the log domain; of others it is a `Mixture` with as many components as there
    are draws, or draws times components.

    Blocks of draws can be averaged one by one, and these averages, of Bernoulli and Categorical
    distributions, once more with the blocks' sizes as weights.

    Arguments:
        stacked: A distribution whose parameters have the draws as first dimension, (S, ...), as
            `torch.vmap` gives them.
        weights: The weight of each draw, (S,). Default: equal weights.

    >>> average(Bernoulli(probs=torch.tensor([[0.1, 0.5], [0.3, 0.9]]))).mean
    tensor([0.2000, 0.7000])
    """
    alone = len(list(tensors(stacked))) == 1
    whole = stacked if alone else torch.vmap(broadcast)(stacked)
    draws, like = whole.batch_shape[0], next(tensors(whole))
    if weights is None:
        log_weights = like.new_full((draws,), -math.log(draws))
    else:
        share = torch.as_tensor(weights).to(like)
        if share.shape != (draws,):
            raise ArgumentError("weights", f"shape {tuple(share.shape)}", f"shape ({draws},)")
        log_weights = (share / share.sum()).log()
    return averaged(whole, log_weights)


def averaged(whole: Any, log_weights: Tensor) -> Any:
    r"""The same of a distribution that is broadcast, with log weights (S,) that are normalised."""
    last = mapped(whole, lambda value, dims: value.movedim(0, value.ndim - 1 - dims))
    return last.mixed(log_weights)
