r"""Chapter 3's remarks on online distillation, tried: minibatches, thinning, chains, rates."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from limbeck.condensation.stepwise_em import StepwiseEM
from reproduction.chapter3_density import RESTARTS, START, curve, limbecks, texts
from reproduction.chapter3_exact import exact_log_density
from reproduction.chapter3_mixtures import (
    Recorded,
    divergence,
    observations,
    online_student,
)
from reproduction.parameter_em import ParameterEM

__all__ = ["TRIALS", "Trial", "remarks"]


class Trial(NamedTuple):
    r"""A way to distil online.

    Attributes:
        name: What to call it.
        batch: Draws in a minibatch, and in memory.
        share: How many draws are used in all, as a part of those that a chain has.
        thin: One in so many of a chain is used.
        chains: How many chains a minibatch is of.
        update: Makes the update.
    """

    name: str
    batch: int = 100
    share: float = 1.0
    thin: int = 1
    chains: int = 1
    update: Callable[[], StepwiseEM] = texts


def _powers() -> StepwiseEM:
    return StepwiseEM("robbins-monro", restarts=RESTARTS, start=START, average=0, window=0)


def _parameters() -> StepwiseEM:
    return ParameterEM(10, restarts=RESTARTS, start=START, average=0, window=0)


TRIALS = (
    Trial("as in the text: minibatches of 100"),
    Trial("minibatches of 1,000", batch=1000),
    Trial("minibatches of 10", batch=10),
    Trial("minibatches of 10, a tenth of the draws", batch=10, share=0.1),
    Trial("the same, thinned: every tenth draw", batch=10, share=0.1, thin=10),
    Trial("the same, of 10 parallel chains", batch=10, share=0.1, chains=10),
    Trial("minibatches of 100, of 10 parallel chains", chains=10),
    Trial("rate (1 + t)^−0.6 in place of linear decay", update=_powers),
    Trial("statistics averaged over the last half", update=limbecks),
    Trial("parameters interpolated, fitted to the minibatch", update=_parameters),
)


def remarks(count: int, seed: int, long: Tensor, repeats: int) -> dict[str, Any]:
    r"""Every trial on the posterior of so many observations, several times.

    Arguments:
        count: The number of observations.
        seed: That of the observations.
        long: Draws (chains, draws, 3) of the posterior.
        repeats: How often, each time of another chain or other chains.
    """
    exact = exact_log_density(observations(count, seed))
    found = {}
    for trial in TRIALS:
        scores = []
        for repeat in range(repeats):
            rows = _rows(trial, long, repeat)
            steps = len(rows) // trial.batch - 1
            student = online_student(Recorded(rows), steps, trial.batch, repeat, trial.update())
            scores.append(divergence(exact, curve(student)))
        error = statistics.stdev(scores) / repeats**0.5 if repeats > 1 else None
        found[trial.name] = {"mean": statistics.mean(scores), "std_error": error, "kl": scores}
    return {"observations": count, "trials": found}


def _rows(trial: Trial, long: Tensor, repeat: int) -> Tensor:
    r"""Draws (draws + a minibatch, 3) in the order in which the trial uses them."""
    used = long.roll(-repeat, 0)[: trial.chains, :: trial.thin]
    wanted = round(trial.share * long.shape[1]) + trial.batch  # the first is only looked at
    return used.transpose(0, 1).flatten(0, 1)[:wanted]
