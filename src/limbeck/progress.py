r"""A progress bar for people who wait; silent where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)

if TYPE_CHECKING:
    from limbeck.training.loop import Run, Step

__all__ = ["tracked", "watched"]

T = TypeVar("T")

REFRESH = 0.2  # seconds; looking more often would make GPUs wait


def tracked(blocks: Sequence[T], label: str, progress: bool) -> Iterator[T]:
    r"""Pieces of work one by one, with a bar on the terminal if one is there and wanted."""
    if not _shown(progress):
        yield from blocks
        return
    yield from track(blocks, label, console=Console(stderr=True), transient=True)


def _shown(progress: bool) -> bool:
    return progress and sys.stderr is not None and sys.stderr.isatty()  # None under pythonw


def watched(run: Run, progress: bool, label: str = "distilling") -> Iterator[Step]:
    r"""The steps of a run, with a bar on the terminal if one is there and progress is wanted."""
    if not _shown(progress):
        yield from run
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=run.settings.steps, completed=run.done, loss="…")
        shown = 0.0
        for step in run:
            now = time.monotonic()
            if now - shown > REFRESH:
                shown = now
                bar.update(task, completed=step.number, loss=f"{step.loss:.4g}")
            yield step
