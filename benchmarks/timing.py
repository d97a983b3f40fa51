r"""Side-by-side timings: every contender in turn, several rounds, in one process."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import torch

__all__ = ["Times", "machine", "report", "side_by_side", "stepping"]


class Times(dict[str, list[float]]):
    r"""Seconds a call of each contender, one number for each round."""

    def microseconds(self, name: str) -> float:
        r"""The median over rounds."""
        return 1e6 * statistics.median(self[name])

    def ratio(self, one: str, other: str) -> float:
        r"""How many times longer `one` takes than `other`: the median of the rounds' ratios.

        Both took their turns within the same moments, so what else the machine did cancels.
        """
        return statistics.median(a / b for a, b in zip(self[one], self[other], strict=True))


def side_by_side(
    contenders: dict[str, Callable[[], object]], calls: int = 50, rounds: int = 40,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:  # fmt: skip
    r"""Time all contenders in turn, round after round."""
    times = Times({name: [] for name in contenders})
    for call in contenders.values():
        for _ in range(10):
            call()
    for _ in range(rounds):
        for name, call in contenders.items():
            for _ in range(3):
                call()
            _wait()
            start = clock()
            for _ in range(calls):
                call()
            _wait()
            times[name].append((clock() - start) / calls)
    return times


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
