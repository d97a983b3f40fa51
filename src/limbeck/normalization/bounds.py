r"""Bounds on log Z from samples of a student."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.normalization.densities import Densities
from limbeck.normalization.estimate import Bound

__all__ = ["free_energy", "mean_bound"]


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


def free_energy(target: Any, student: Any, samples: int = 10_000, seed: int = 0) -> Bound:
    r"""⟨log p̃(x) − log q(x)⟩ over samples of q: log Z less KL(q ‖ p), so at most log Z.

    It is −∞, with an infinite error, where the student gives events that the target forbids.

    Arguments:
        target: Has a `support` and `log_unnormalized(x)`.
        student: q, with `log_prob` and `sample`.
        samples: The number of samples, from 2.
        seed: Seeds the samples.

    >>> import torch
    >>> from limbeck.models.energy import Energy
    >>> from limbeck.supports import Binary
    >>> coins = torch.distributions.Bernoulli(torch.full((3,), 0.5))
    >>> bound = free_energy(Energy(lambda x: 0 * x.sum(1), Binary(3)), coins)
    >>> print(f"{bound:.4f}")  # 3 log 2
    2.0794
    """
    samples = whole_number("samples", samples, "a whole number from 2", least=2)
    densities = Densities(target, student, seed)
    with densities.at_work():
        _, logs = densities.drawn(samples, "free energy")
    return mean_bound(logs.ratio)
