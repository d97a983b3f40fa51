r"""The settings of a run, its history, and when it stops."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from limbeck.arguments import whole_number
from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.teachers.base import Teacher

__all__ = [
    "Callback",
    "HeldOut",
    "History",
    "Plateau",
    "Settings",
    "as_callbacks",
    "name_of",
    "replayed",
]


class History(Mapping[str, list[float]]):
    r"""Columns by name: "step", "loss", "gradient_norm", and what else a run has.

    That is each of several loss terms, "held_out" inputs, and the user's metrics.
    Losses are means over the steps since the look before.
    """

    def __init__(self, columns: Mapping[str, list[float]] | None = None) -> None:
        self._columns = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, **entry: float) -> None:
        r"""Write one look down."""
        for name, value in entry.items():
            self._columns.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> list[float]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        looks = len(next(iter(self._columns.values()), []))
        return f"History({looks} looks at {', '.join(self._columns)})"


class Callback:
    r"""Told of a run: at its start, at each look, at its end. All three may be left as they are.

    A run that goes on from a checkpoint starts with the history so far. A verb may make several
    runs, one after the other. An interrupted one ends without a reason; if draws that it learns
    from run out, one more look and an end with that reason follow.
    """

    def start(self, settings: Mapping[str, Any], history: History) -> None:
        r"""Before the first step.

        Arguments:
            settings: What was asked for, in words and numbers.
            history: What was written down before, if the run goes on.
        """

    def look(self, entry: Mapping[str, float]) -> None:
        r"""At each look: "step", "loss", terms and metrics, as the history keeps them."""

    def end(self, stop_reason: str | None) -> None:
        r"""After the last step; None if it was interrupted."""


class _Function(Callback):
    r"""A bare function of a look's entry."""

    def __init__(self, function: Callable[[Mapping[str, float]], Any]) -> None:
        self.function = function

    def look(self, entry: Mapping[str, float]) -> None:
        self.function(entry)


def as_callbacks(given: Any) -> tuple[Callback, ...]:
    r"""Callbacks, one or several, or functions of a look's entry."""
    if given is None:
        return ()
    listed = list(given) if isinstance(given, Iterable) else [given]
    found: list[Callback] = []
    for each in listed:
        if not isinstance(each, Callback) and (not callable(each) or isinstance(each, type)):
            expected = "limbeck.training.callbacks, or functions of a dict of numbers"
            raise ArgumentError("callbacks", repr(each), expected)
        found.append(each if isinstance(each, Callback) else _Function(each))
    return tuple(found)


def name_of(settings: Mapping[str, Any]) -> str:
    r"""A short name for a run, the same whenever the same is asked for.

    >>> name_of({"student": "MLP [4, 3]", "seed": 0}).startswith("MLP-")
    True
    """
    text = json.dumps({k: v for k, v in settings.items() if k != "steps"}, default=str)
    kind = str(settings.get("student", "run")).split(" ")[0]
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def replayed(
    callbacks: Any, settings: Mapping[str, Any], history: History, stop_reason: str
) -> None:
    r"""Tell callbacks of a run that has no steps of its own, once it is over."""
    for callback in as_callbacks(callbacks):
        callback.start(settings, History())
        for row in range(len(next(iter(history.values()), []))):
            callback.look({name: values[row] for name, values in history.items()})
        callback.end(stop_reason)


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


@dataclass
class Plateau:
    r"""Watches a measure that should fall.

    Arguments:
        patience: How many looks in a row may pass without a new best.
        improvement: By which fraction of its size the best must be beaten to count.
    """

    patience: int
    improvement: float = 1e-3
    best: float = field(default=math.inf, init=False)
    since: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        expected = "a whole number from 1, or None"
        self.patience = whole_number("patience", self.patience, expected, least=1)

    def look(self, measure: float) -> bool:
        r"""Take a new measure; say whether it is a new best."""
        margin = self.improvement * abs(self.best) if math.isfinite(self.best) else 0.0
        if measure < self.best - margin:
            self.best, self.since = measure, 0
            return True
        self.since += 1
        return False

    @property
    def reached(self) -> bool:
        return self.since >= self.patience
