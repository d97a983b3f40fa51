r"""Side-by-side timings: every contender in turn, several rounds, in one process."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import torch

__all__ = ["machine", "report", "side_by_side", "stepping"]


def side_by_side(
    contenders: dict[str, Callable[[], object]], calls: int = 200, rounds: int = 9
) -> dict[str, float]:
    r"""Seconds a call of each contender: the median over rounds in which all take their turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            for _ in range(max(3, calls // 20)):
                call()
            _wait()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            _wait()
            times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(found) for name, found in times.items()}


def stepping(steps: Iterator[object]) -> Callable[[], object]:
    r"""A call that takes one step of an iterator."""
    return lambda: next(steps)


def report(figure: str, **numbers: object) -> None:
    r"""Print one figure as one JSON line."""
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in numbers.items()}
    print(json.dumps({"figure": figure, **rounded}), flush=True)


def machine() -> dict[str, object]:
    r"""What the timings were taken on."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return {
        "device": name or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
