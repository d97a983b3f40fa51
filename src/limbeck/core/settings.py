r"""How long a run goes on, and what it does beside its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from limbeck.core.batch import Batch
from limbeck.core.callback import Callback
from limbeck.core.teacher import Teacher

__all__ = ["HeldOut", "Settings"]


class HeldOut(NamedTuple):
    r"""Inputs on which the loss is measured, and the teacher that is asked about them."""

    batch: Batch
    teacher: Teacher


@dataclass(frozen=True)
class Settings:
    r"""How long a run goes on, and what it does beside its steps.

    Attributes:
        steps: The number of steps.
        batch_size: Inputs a step; None takes the inputs' own batches as they come.
        every: Steps between two looks: history, metrics, held-out measure.
        seconds: Wall-clock time after which to stop, if any.
        metrics: Functions of the student, by name, taken at each look.
        held_out: Inputs on which the loss is measured at each look, if any.
        patience: Looks without improvement of that measure after which to stop, if any.
        checkpoint: A folder to write to and resume from, if any.
        checkpoint_every: Steps between checkpoints, or None for seconds only.
        checkpoint_seconds: Seconds between checkpoints.
        callbacks: Who is told of the start, of each look and of the end.
        identity: Settings that must be the same for a checkpoint to be resumed.
    """

    steps: int
    batch_size: int | None
    every: int
    seconds: float | None = None
    metrics: Mapping[str, Callable[[nn.Module], float]] | None = None
    held_out: HeldOut | None = None
    patience: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float = 60.0
    callbacks: tuple[Callback, ...] = ()
    identity: Mapping[str, Any] | None = None
