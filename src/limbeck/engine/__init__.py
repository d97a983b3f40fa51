r"""How steps run: eagerly, as one compiled function, as one CUDA graph, in several processes."""

from __future__ import annotations

import shutil
import warnings

import torch

from limbeck.core.objective import Objective
from limbeck.core.update import Update
from limbeck.engine.base import Engine
from limbeck.engine.compiled import Compiled
from limbeck.engine.distributed import Distributed
from limbeck.engine.eager import Eager
from limbeck.engine.graph import Graph
from limbeck.errors import ArgumentError

__all__ = ["Compiled", "Distributed", "Eager", "Engine", "Graph", "make"]

NAMES = ("auto", "eager", "compiled", "accelerate")

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
        compiler = cuda or shutil.which("g++") or shutil.which("clang++")
        possible = compiler and _obstacle(objective, update) is None
        name = "compiled" if long and possible else "eager"
    elif name == "compiled" and (reason := _obstacle(objective, update)):
        warnings.warn(f"engine: {reason}; running eagerly", stacklevel=2)
        name = "eager"
    if name == "accelerate":
        return Distributed(update)
    if name == "eager":
        return Eager(update)
    return Graph(update) if cuda else Compiled(update)


def _obstacle(objective: Objective, update: Update) -> str | None:
    r"""Why a step cannot be compiled whole, if that can be known beforehand."""
    if not update.whole:
        return f"{type(getattr(update, 'optimizer', update)).__name__} has no compiled form"
    # torch's compiler takes 0-d float64 tensors for Python numbers, and drops what is written
    for name, tensor in (*objective.named_parameters(), *objective.named_buffers()):
        if tensor.ndim == 0 and tensor.dtype == torch.float64 and tensor.device.type == "cpu":
            return f"a compiled step would not change {name!r}, a float64 number of no dimension"
    return None
