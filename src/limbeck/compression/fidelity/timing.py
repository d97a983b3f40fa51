r"""How long models take for a batch of rows, timed in turns so that ratios are fair."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.compression.asking.keys import as_rows, count, select
from limbeck.core.checks import number, whole_number
from limbeck.errors import ArgumentError

__all__ = ["SIZES", "latencies"]

SIZES = (1, 1000)
r"""Rows in the batches that are timed."""

SECONDS, TURNS = 0.5, 10
r"""Time for a figure, and in how many turns it is spent."""

PATIENCE = 10.0
r"""Seconds from which a call is not repeated: such a time is no matter of warming up."""

CALLS = 1000
r"""At most so many in a turn: more tell no more."""

Call = Callable[[Any], Any]


def latencies(
    calls: Mapping[str, Call],
    X: Any,
    sizes: Sequence[int] = SIZES,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[int, float]]:
    r"""Seconds that several models take for a batch, timed in turns so that ratios are fair.

    Each model is called once to warm up, then the models take turns, some calls each, until every
    one has used its time; the figure is the median over turns of the median in a turn. A first call
    that takes ten seconds or more is the figure itself.

    Arguments:
        calls: Functions of a batch, by name; a call must not return before it is done.
        X: Rows: an array, a tensor, a data frame, a sparse matrix, a list, or a dict of such. The
            first rows are taken, again and again if there are too few.
        sizes: Rows in a batch.
        seconds: Time for one figure, of one model and one size.
        clock: What tells the time.

    Returns:
        By model, then by size.
    """
    seconds = number("seconds", seconds, "a number above 0", lambda s: s > 0)
    if not (n := count(X)):
        raise ArgumentError("X", "no rows", "one or more, to time with")
    found: dict[str, dict[int, float]] = {name: {} for name in calls}
    for size in sizes:
        size = whole_number("sizes", size, "rows, from 1", 1)
        rows = np.arange(size) % n
        batch = select(as_rows(X), rows)
        if hasattr(batch, "reset_index"):
            batch = batch.reset_index(drop=True)  # rows that come again have names of their own
        for name, value in _turns(calls, batch, seconds, clock).items():
            found[name][size] = value
    return found


def _turns(
    calls: Mapping[str, Call], batch: Any, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    with _undisturbed():
        first = {name: _time(call, batch, clock) for name, call in calls.items()}
        medians: dict[str, list[float]] = {name: [] for name in calls}
        left = {name: seconds for name in calls if first[name] < PATIENCE}
        for _ in range(TURNS):
            for name in [name for name, time_left in left.items() if time_left > 0]:
                turn = _turn(calls[name], batch, seconds / TURNS, clock)
                left[name] -= sum(turn)
                medians[name].append(statistics.median(turn))
    return {name: statistics.median(medians[name] or [first[name]]) for name in calls}


def _turn(call: Call, batch: Any, seconds: float, clock: Callable[[], float]) -> list[float]:
    times: list[float] = []
    while len(times) < CALLS and seconds > 0:
        times.append(_time(call, batch, clock))
        seconds -= times[-1]
    return times


def _time(call: Call, batch: Any, clock: Callable[[], float]) -> float:
    start = clock()
    result = call(batch)
    if isinstance(result, Tensor) and result.is_cuda:
        torch.cuda.synchronize(result.device)
    return max(clock() - start, 1e-9)  # a coarse clock may not have moved


@contextmanager
def _undisturbed() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad():
            yield
    finally:
        if collecting:
            gc.enable()
