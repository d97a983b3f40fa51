r"""The engine of a run: by name, or by a forecast of what compilation costs and saves."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from limbeck.errors import ArgumentError
from limbeck.training.engines import Compiled, Eager, Engine, Graph, shapes_of
from limbeck.training.objective import Objective, Plan
from limbeck.training.processes import Distributed
from limbeck.training.update import Update

__all__ = ["CPU", "CUDA", "Automatic", "Costs", "make"]

WATCHED_STEPS = 8
r"""Eager steps before the choice: enough to see that the shapes of batches change."""


class Costs(NamedTuple):
    r"""What compilation costs and saves, by the number of torch operations in an eager step.

    Measured coarsely, on a CPU and on a GPU, with MLPs (also with derivative losses), a
    convolutional net and transformers. Only the ratio of the numbers matters, which differs less
    between machines than the numbers do.

    Attributes:
        start: Seconds that any compilation takes.
        per_operation: Seconds of compilation an operation.
        saved: Seconds that a compiled step saves an operation.
    """

    start: float
    per_operation: float
    saved: float

    def compilation(self, operations: int) -> float:
        r"""Seconds that the compilation of a step is forecast to take."""
        return self.start + self.per_operation * operations

    def pay(self, operations: int, steps: float, seconds: float | None = None) -> bool:
        r"""Whether a run is forecast to be shorter with compilation than without.

        Arguments:
            operations: The number of torch operations in an eager step.
            steps: The number of steps that would be compiled.
            seconds: The time limit of the run; compilation may take half of it.
        """
        compilation = self.compilation(operations)
        in_time = seconds is None or compilation <= seconds / 2
        return in_time and compilation < steps * operations * self.saved


CPU = Costs(start=8.0, per_operation=0.05, saved=10e-6)
CUDA = Costs(start=5.0, per_operation=0.03, saved=20e-6)


class Automatic:
    r"""Runs a few steps eagerly, then chooses once: eager or compiled.

    The choice follows from the operations counted in the first step, the shapes of the first
    batches, the number of steps and the time limit, never from a clock, so that equal calls run
    equally. A checkpoint holds the choice, or what was seen so far.

    Arguments:
        update: How the student changes.
        compiled: Makes the compiled engine, for the shapes in writing.
        costs: What compilation costs and saves on this device.
        steps: The number of steps of the run.
        seconds: Its time limit, if any.
    """

    processes = 1

    def __init__(
        self,
        update: Update,
        compiled: Callable[[str | None], Compiled],
        costs: Costs,
        steps: int,
        seconds: float | None = None,
    ) -> None:
        self._eager = Eager(update)
        self._engine: Eager | None = None
        self._compiled, self._costs = compiled, costs
        self._steps, self._seconds = steps, seconds
        self._layouts: list[str] = []
        self._operations = 0

    @property
    def name(self) -> str:
        return (self._engine or self._eager).name

    @property
    def compile_seconds(self) -> float:
        return (self._engine or self._eager).compile_seconds

    def step(self, plan: Plan) -> None:
        if self._engine is None and len(self._layouts) == WATCHED_STEPS:
            self._engine = self._choose()
        if self._engine is not None:
            return self._engine.step(plan)
        if not self._layouts:
            with _Operations() as counted:
                self._eager.step(plan)
            self._operations = counted.number
        else:
            self._eager.step(plan)
        self._layouts.append(str(shapes_of(plan)))
        return None

    def _choose(self) -> Eager:
        layout, count = Counter(self._layouts).most_common(1)[0]
        fitting = self._steps * count / len(self._layouts)
        if self._costs.pay(self._operations, fitting, self._seconds):
            return self._compiled(layout)
        if self._costs.pay(self._operations, self._steps, self._seconds):
            warnings.warn(
                "engine: the shapes of the batches change, and a step is compiled for one shape; "
                "running eagerly (batches that are all padded to one length can be compiled)",
                stacklevel=3,
            )
        return self._eager

    def state(self) -> dict[str, Any]:
        if self._engine is not None:
            return self._engine.state()
        seen = {"layouts": list(self._layouts), "operations": self._operations}
        return self._eager.state() | {"engine": "auto"} | seen

    def load(self, state: dict[str, Any]) -> None:
        name = state.get("engine")
        if name == "auto":
            self._layouts, self._operations = list(state["layouts"]), state["operations"]
        elif name is not None:  # chosen in an earlier sitting
            self._engine = self._compiled(None) if name == "compiled" else self._eager
            self._engine.load(state)


class _Operations(TorchDispatchMode):
    r"""Counts torch operations for as long as it lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


NAMES = ("auto", "eager", "compiled", "accelerate")


def make(
    name: str, objective: Objective, update: Update, steps: int, seconds: float | None = None
) -> Engine:
    r"""The engine by name; "auto" chooses after a few steps, as `Automatic` tells."""
    if name not in NAMES:
        raise ArgumentError.unknown("engine", name, NAMES)
    cuda = objective.device.type == "cuda"
    compiled = partial(Graph if cuda else Compiled, update)
    if name == "accelerate":
        return Distributed(update, objective)
    if name == "auto":
        compiler = cuda or shutil.which("g++") or shutil.which("clang++")
        if not compiler or _obstacle(objective, update) is not None:
            return Eager(update)
        return Automatic(update, compiled, CUDA if cuda else CPU, steps, seconds)
    if name == "compiled":
        if (reason := _obstacle(objective, update)) is None:
            return compiled()
        warnings.warn(f"engine: {reason}; running eagerly", stacklevel=2)
    return Eager(update)


def _obstacle(objective: Objective, update: Update) -> str | None:
    r"""Why a step cannot be compiled whole, if that can be known beforehand."""
    if not update.whole:
        return f"{type(getattr(update, 'optimizer', update)).__name__} has no compiled form"
    # torch's compiler takes 0-d float64 tensors for Python numbers, and drops what is written
    for name, tensor in (*objective.named_parameters(), *objective.named_buffers()):
        if tensor.ndim == 0 and tensor.dtype == torch.float64 and tensor.device.type == "cpu":
            return f"a compiled step would not change {name!r}, a float64 number of no dimension"
    return None
