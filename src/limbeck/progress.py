r"""Progress: bars on a terminal, and lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console

T = TypeVar("T")
REFRESH = 0.2  # seconds; reading the loss more often would make GPUs wait
BETWEEN_LINES = 5.0  # seconds, where there is no terminal


def watched(run: Any, progress: bool, label: str = "distilling") -> Iterator[Any]:
    r"""The steps of a `training.loop.Run`, as by `tracked`, with their losses."""
    return tracked(run, label, progress, run.total, run.done + 1, lambda step: step.loss)


def tracked(
    pieces: Iterable[T], label: str, progress: bool, total: int | None = None, first: int = 0,
    loss: Callable[[T], float] | None = None,
) -> Iterator[T]:  # fmt: skip
    r"""Pieces of work one by one: with a bar, or lines without a terminal, if `progress` is set."""
    total = len(pieces) if isinstance(pieces, Sized) else total or 0
    terminal = progress and sys.stderr is not None and sys.stderr.isatty()  # None under pythonw
    columns = (
        "{task.description}", bars.BarColumn(), bars.MofNCompleteColumn(), "{task.fields[loss]}",
        bars.TimeElapsedColumn(), bars.TimeRemainingColumn(),
    )  # fmt: skip
    console, every = Console(stderr=True), REFRESH if terminal else BETWEEN_LINES
    with bars.Progress(*columns, console=console, transient=True, disable=not terminal) as bar:
        task = bar.add_task(label, total=total, completed=first, loss="")
        last = 0.0 if terminal else time.monotonic()
        for done, piece in enumerate(pieces, first):
            now = time.monotonic()
            if progress and now - last > every:
                last, measured = now, "" if loss is None else f"loss {loss(piece):.4g}"
                bar.update(task, completed=done, loss=measured)
                if not terminal:
                    parts = (f"{label}: {done:,} of {total:,} done", measured)
                    announce(", ".join(filter(None, parts)), True)
            yield piece


def announce(text: str, progress: bool) -> None:
    r"""A line about work that may take a while, on standard error, if `progress` is set."""
    if progress and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)
