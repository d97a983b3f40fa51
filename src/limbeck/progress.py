r"""Progress: bars on a terminal, and single lines anywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console

T = TypeVar("T")
REFRESH = 0.2  # seconds; reading the loss more often would make GPUs wait


def tracked(blocks: Sequence[T], label: str, progress: bool) -> Iterator[T]:
    r"""Pieces of work one by one, with a bar if `progress` is set and there is a terminal."""
    if not _shown(progress):
        yield from blocks
        return
    yield from bars.track(blocks, label, console=Console(stderr=True), transient=True)


def announce(text: str, progress: bool) -> None:
    r"""A line about work that may take a while, on standard error, if `progress` is set."""
    if progress and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def _shown(progress: bool) -> bool:
    return progress and sys.stderr is not None and sys.stderr.isatty()  # None under pythonw


def watched(run: Any, progress: bool, label: str = "distilling") -> Iterator[Any]:
    r"""The steps of a `training.loop.Run`, with a bar under the same conditions."""
    if not _shown(progress):
        yield from run
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
