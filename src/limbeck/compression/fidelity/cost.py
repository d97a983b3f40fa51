r"""The cost of a model: parameters, bytes, latency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from timeit import Timer
from typing import Any

import numpy as np
from torch import nn

from limbeck.errors import ArgumentError
from limbeck.teachers import fingerprints
from limbeck.teachers.keys import as_rows, count, select

SIZES = (1, 1000)  # rows in the batches that are timed
TURNS, MAX_CALLS = 10, 1000  # turns of a model, and its calls in a turn at most

Call = Callable[[Any], Any]


def latencies(
    calls: Mapping[str, Call], X: Any, sizes: Sequence[int] = SIZES, *, seconds: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[int, float]]:  # fmt: skip
    r"""Seconds, by model and batch size: medians, timed in turns so that ratios are fair."""
    if not (n := count(X)):
        raise ArgumentError("X", "no rows", "one or more, to time with")
    times: dict[str, dict[int, float]] = {name: {} for name in calls}
    for size in sizes:
        batch = select(as_rows(X), np.arange(size) % n)
        if hasattr(batch, "reset_index"):
            batch = batch.reset_index(drop=True)  # repeated rows get names of their own
        # garbage is not collected meanwhile, and a coarse clock may not have moved
        timers = {name: Timer(partial(call, batch), timer=clock) for name, call in calls.items()}
        first = {name: max(timer.timeit(1), 1e-9) for name, timer in timers.items()}
        medians: dict[str, list[float]] = {name: [] for name in timers}
        # a first call of ten seconds is not repeated
        left = {name: seconds for name in timers if first[name] < 10}
        for _ in range(TURNS):
            for name in [name for name, time_left in left.items() if time_left > 0]:
                turn: list[float] = []
                while len(turn) < MAX_CALLS and sum(turn) < seconds / TURNS:
                    turn.append(max(timers[name].timeit(1), 1e-9))
                left[name] -= sum(turn)
                medians[name].append(statistics.median(turn))
        for name in timers:
            times[name][size] = statistics.median(medians[name] or [first[name]])
    return times


@dataclass(frozen=True)
class Cost:
    r"""The cost of a model; None, or no entry, means unknown."""

    parameters: int | None = None
    bytes: int | None = None  # of the files that ship
    latency: dict[int, float] = field(default_factory=dict)  # seconds, by rows in a batch
    files: str = ""  # of that size, such as "student.onnx"


def cost(model: object, latency: Mapping[int, float] | None = None) -> Cost:
    r"""The cost of a model, with times by number of rows, measured elsewhere."""
    file = getattr(model, "file", None)
    files = "" if file is None else file.path.name
    return Cost(parameters(model), bytes_on_disk(model), dict(latency or {}), files)


def parameters(model: object) -> int | None:
    r"""The number of a torch module's parameters, or of its tensors' numbers if it has none."""
    module = getattr(model, "module", model)  # a teacher's own
    if not isinstance(module, nn.Module) or fingerprints.holds_other_model(module):
        return None
    tensors = list(module.parameters()) or list(module.state_dict().values())
    return sum(tensor.numel() for tensor in tensors) or None


def bytes_on_disk(model: object) -> int | None:
    r"""The size of a saved model in bytes, or None if it is unknown."""
    if isinstance(model, nn.Module):
        return fingerprints.module_bytes(model)
    method = getattr(model, "bytes", None)
    return method() if callable(method) else None
