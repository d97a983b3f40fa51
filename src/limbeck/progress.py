r"""Progress: bars on a terminal, and lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console

T = TypeVar("T")
REFRESH = 0.2  # seconds; reading the loss more often would make GPUs wait
BETWEEN_LINES = 5.0  # seconds, where there is no terminal


def tracked(blocks: Sequence[T], label: str, progress: bool) -> Iterator[T]:
    r"""Pieces of work one by one: with a bar, or lines without a terminal, if `progress` is set."""
    if not _shown(progress):
        lines = Lines(label, len(blocks), progress)
        for done, block in enumerate(blocks):
            lines.show(done)
            yield block
        return
    yield from bars.track(blocks, label, console=Console(stderr=True), transient=True)


class Lines:
    r"""A line every few seconds about work that takes longer, if `progress` is set."""

    def __init__(self, label: str, total: int, progress: bool) -> None:
        self.label, self.total, self.progress = label, total, progress
        self.last = time.monotonic()

    def show(self, done: int, step: Any = None) -> None:
        r"""The line that so many pieces are done, and a step's loss, if it is time for one."""
        now = time.monotonic()
        if self.progress and now - self.last > BETWEEN_LINES:
            self.last = now
            loss = "" if step is None else f", loss {step.loss:.4g}"
            announce(f"{self.label}: {done:,} of {self.total:,} done{loss}", True)


def announce(text: str, progress: bool) -> None:
    r"""A line about work that may take a while, on standard error, if `progress` is set."""
    if progress and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def _shown(progress: bool) -> bool:
    return progress and sys.stderr is not None and sys.stderr.isatty()  # None under pythonw


def watched(run: Any, progress: bool, label: str = "distilling") -> Iterator[Any]:
    r"""The steps of a `training.loop.Run`, with a bar or lines under the same conditions."""
    if not _shown(progress):
        lines = Lines(label, run.total, progress)
        for step in run:
            lines.show(step.number, step)
            yield step
        return
    counts = ("{task.description}", bars.BarColumn(), bars.MofNCompleteColumn())
    times = ("loss {task.fields[loss]}", bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*counts, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=run.total, completed=run.done, loss="…")
        shown = 0.0
        for step in run:
            now = time.monotonic()
            if now - shown > REFRESH:
                shown = now
                bar.update(task, completed=step.number, loss=f"{step.loss:.4g}")
            yield step
