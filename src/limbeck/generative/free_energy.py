r"""The variational free energy of a student: a lower bound on log Z."""

from __future__ import annotations

from typing import Any

from limbeck.core.checks import whole_number
from limbeck.generative.bounds import mean_bound
from limbeck.generative.estimate import Bound
from limbeck.generative.evaluating import Densities

__all__ = ["free_energy"]


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
    >>> from limbeck.models.supports import Binary
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
