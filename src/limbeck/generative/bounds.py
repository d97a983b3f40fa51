r"""Bounds on log Z from the two Kullback-Leibler divergences between a target and a proposal."""

from __future__ import annotations

import math

from torch import Tensor

from limbeck.generative.estimate import Bound

__all__ = ["mean_bound"]


def mean_bound(log_ratio: Tensor, size: float | None = None) -> Bound:
    r"""The mean of log p̃ − log q, and its standard error.

    Over samples of the proposal it is log Z − KL(q ‖ p), a lower bound; over samples of the target
    log Z + KL(p ‖ q), an upper one. It is infinite where one of the two has no mass.

    Arguments:
        log_ratio: log p̃(x) − log q(x) at samples, of any shape.
        size: How many independent samples they are worth; None if they are independent.
    """
    r = log_ratio.double().flatten()
    mean = float(r.mean())
    if not math.isfinite(mean):
        return Bound(mean, math.inf)
    if len(r) < 2:
        return Bound(mean, math.inf)
    return Bound(mean, float(r.std()) / math.sqrt(len(r) if size is None else size))
