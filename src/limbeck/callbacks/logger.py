r"""What all loggers share: they never break a training, and say once if they had to give up."""

from __future__ import annotations

import errno
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from limbeck.core.callback import Callback, name_of
from limbeck.core.history import History
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["Logger", "last_step", "needed"]

FULL = (errno.ENOSPC, errno.EDQUOT)
r"""Errors of a full disk, which may be emptied again; others are the user's to mend."""


class Logger(Callback):
    r"""A callback that writes figures somewhere.

    What cannot work is refused before the first step. What fails later, or for want of space, is
    warned of once, and the training goes on without the log. Subclasses give `_open`, `_write`
    and `_close`.
    """

    _gone = False

    def _open(self, name: str, settings: Mapping[str, Any], history: History) -> None:
        r"""Begin the log of a run of a name, or go on with it after the history's last step."""
        raise NotImplementedError

    def _write(self, entry: Mapping[str, float]) -> None:
        r"""Log one look."""
        raise NotImplementedError

    def _close(self, stop_reason: str | None) -> None:
        r"""End the log of the run."""

    def start(self, settings: Mapping[str, Any], history: History) -> None:
        self._gone = False
        try:
            self._open(name_of(settings), settings, history)
        except OSError as error:
            if error.errno not in FULL:
                raise ArgumentError(
                    "callbacks", f"{self!r} ({error})", "a place to write"
                ) from error
            self._give_up(error)

    def look(self, entry: Mapping[str, float]) -> None:
        self._tried(lambda: self._write(entry))

    def end(self, stop_reason: str | None) -> None:
        self._tried(lambda: self._close(stop_reason))

    def _tried(self, action: Callable[[], None]) -> None:
        if self._gone:
            return
        try:
            action()
        except Exception as error:  # of any library, disk or network
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._gone = True
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"{self!r} logs no more ({reason}); the training goes on without it", stacklevel=2
        )


def last_step(history: History) -> int:
    r"""The step of the last look that a run goes on from; −1 of a new run."""
    return int(history["step"][-1]) if history.get("step") else -1


def needed(module: str, extra: str) -> None:
    r"""Refuse to begin without an optional library."""
    if importlib.util.find_spec(module) is None:
        raise LimbeckError(f"callbacks: {module} is needed: pip install 'limbeck[{extra}]'")
