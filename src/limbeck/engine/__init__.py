r"""How steps run: eagerly, as one compiled function, or as one captured CUDA graph."""

from __future__ import annotations

import shutil
import warnings

from limbeck.core.objective import Objective
from limbeck.core.update import Update
from limbeck.engine.base import Engine
from limbeck.engine.compiled import Compiled
from limbeck.engine.eager import Eager
from limbeck.engine.graph import Graph
from limbeck.errors import ArgumentError

__all__ = ["Compiled", "Eager", "Engine", "Graph", "make"]

NAMES = ("auto", "eager", "compiled")

WORTH_COMPILING = {False: 8_000, True: 2_000}
r"""Steps from which compilation pays, without and with derivative losses, on a CPU."""


def make(name: str, objective: Objective, update: Update, steps: int) -> Engine:
    r"""The engine by name; "auto" chooses by the number of steps, never by the clock, so that
    equal calls run equally.
    """
    if name not in NAMES:
        raise ArgumentError.unknown("engine", name, NAMES)
    cuda = objective.device.type == "cuda"
    if name == "auto":
        long = steps >= (500 if cuda else WORTH_COMPILING["derivatives" in objective.asks])
        possible = update.whole and (cuda or shutil.which("g++") or shutil.which("clang++"))
        name = "compiled" if long and possible else "eager"
    elif name == "compiled" and not update.whole:
        warnings.warn(
            f"engine: {type(getattr(update, 'optimizer', update)).__name__} has no compiled form; "
            "running eagerly",
            stacklevel=2,
        )
        name = "eager"
    if name == "eager":
        return Eager(update)
    return Graph(update) if cuda else Compiled(update)
