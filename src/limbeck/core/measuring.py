r"""A look at a run: losses since the last one, and what is measured of the student as it is."""

from __future__ import annotations

from limbeck.core.batch import part_of, rows
from limbeck.core.modes import evaluating
from limbeck.core.objective import Objective
from limbeck.core.settings import HeldOut, Settings
from limbeck.core.update import Progress

__all__ = ["measured"]

BLOCK = 1000
r"""Held-out inputs that are evaluated at once."""


def measured(
    objective: Objective, progress: Progress, settings: Settings, done: int, last: int
) -> dict[str, float]:
    r"""One entry of the history; the run is left as it is.

    Arguments:
        objective: What is minimised.
        progress: What the update wrote down since the last look.
        settings: What else is measured: `held_out` and `metrics`.
        done: The steps done.
        last: The steps that were done at the last look.
    """
    means = (progress.sums / (done - last)).tolist()
    entry: dict[str, float] = {"step": done, "loss": means[-1]}
    if len(objective.names) > 1:  # a term may be called "loss" too: the total stays
        entry = entry | dict(zip(objective.names, means, strict=False)) | entry
    entry["gradient_norm"] = progress.norm.item()
    with evaluating(objective.student):
        if settings.held_out is not None:
            entry["held_out"] = _held_out(objective, settings.held_out)
        for name, metric in (settings.metrics or {}).items():
            entry[name] = float(metric(objective.student))
    return entry


def _held_out(objective: Objective, held_out: HeldOut) -> float:
    r"""The mean loss; what it draws at random leaves the draws of later steps as they were."""
    batch, teacher = held_out
    state = objective.rng_state()
    total = 0.0
    try:
        for start in range(0, rows(batch.x), BLOCK):
            part = part_of(batch, start, BLOCK)
            total += objective.at(part, teacher).double().sum().item()
    finally:
        objective.load_rng_state(state)
    return total / rows(batch.x)
