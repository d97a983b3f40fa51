r"""Callbacks: whoever wants to be told of a run as it goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from limbeck.core.history import History
from limbeck.errors import ArgumentError

__all__ = ["Callback", "as_callbacks", "name_of", "replayed"]


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
            accepted = "limbeck.callbacks, or functions of a dict of numbers"
            raise ArgumentError("callbacks", repr(each), accepted)
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
