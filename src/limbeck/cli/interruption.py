r"""Ctrl-C: the step under way is ended, a checkpoint is written, and then it stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["at_a_whole_step"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def at_a_whole_step() -> Iterator[None]:
    r"""Within, an interruption waits for the end of the loop's step, which can then be saved.

    Outside the loop it is immediate, and so is a second one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[Any] = []

    def handle(number: int, frame: FrameType | None) -> None:
        run = _run(frame)
        if run is None or asked:
            raise KeyboardInterrupt
        asked.append(run)
        run.stop("interrupted", KeyboardInterrupt())

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
        if asked:  # it came within the last step
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(frame: FrameType | None) -> Any:
    r"""The run that is under way, if there is one that keeps checkpoints."""
    from limbeck.core.loop import Run

    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Run) and found.settings.checkpoint is not None:
            return found if found.stop_reason is None else None
        frame = frame.f_back
    return None
