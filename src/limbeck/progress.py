r"""Progress bars on a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

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

__all__ = ["tracked", "watched"]

T = TypeVar("T")


class Step(Protocol):
    r"""A step of a run: its number and its loss."""

    @property
    def number(self) -> int: ...
    @property
    def loss(self) -> float: ...


S = TypeVar("S", bound=Step, covariant=True)


class Run(Protocol[S]):
    r"""Steps one after another: `done` of a `total`."""

    done: int

    @property
    def total(self) -> int: ...
    def __iter__(self) -> Iterator[S]: ...


REFRESH = 0.2  # seconds; reading the loss more often would make GPUs wait


def tracked(blocks: Sequence[T], label: str, progress: bool) -> Iterator[T]:
    r"""Pieces of work one by one, with a bar if `progress` is set and there is a terminal."""
    if not _shown(progress):
        yield from blocks
        return
    yield from track(blocks, label, console=Console(stderr=True), transient=True)


def _shown(progress: bool) -> bool:
    return progress and sys.stderr is not None and sys.stderr.isatty()  # None under pythonw


def watched(run: Run[S], progress: bool, label: str = "distilling") -> Iterator[S]:
    r"""The steps of a run, with a bar if `progress` is set and there is a terminal."""
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
        task = bar.add_task(label, total=run.total, completed=run.done, loss="…")
        shown = 0.0
        for step in run:
            now = time.monotonic()
            if now - shown > REFRESH:
                shown = now
                bar.update(task, completed=step.number, loss=f"{step.loss:.4g}")
            yield step
