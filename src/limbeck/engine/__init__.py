r"""How steps run: eagerly, as one compiled function, as one CUDA graph, in several processes."""

from __future__ import annotations

import shutil
import warnings
from functools import partial

import torch

from limbeck.core.objective import Objective
from limbeck.core.update import Update
from limbeck.engine.automatic import CPU, CUDA, Automatic
from limbeck.engine.base import Engine
from limbeck.engine.compiled import Compiled
from limbeck.engine.distributed import Distributed
from limbeck.engine.eager import Eager
from limbeck.engine.graph import Graph
from limbeck.errors import ArgumentError

__all__ = ["Automatic", "Compiled", "Distributed", "Eager", "Engine", "Graph", "make"]

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
