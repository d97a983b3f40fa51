r"""How a student is trained: one frozen record of typed settings, and the presets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from limbeck.arguments import choice, whole, whole_number
from limbeck.errors import ArgumentError
from limbeck.training.callbacks import Callbacks, as_callbacks
from limbeck.training.schedules import Schedule
from limbeck.training.update import Update

Names: TypeAlias = Iterable[str]
PRESETS: dict[str, dict[str, Any]] = {
    "auto": {"optimizer": "adam", "schedule": "cosine", "batch_size": 200, "options": {}},
    "thesis": {"optimizer": "adadelta", "schedule": "constant", "batch_size": 20,
               "options": {"lr": 1.0, "rho": 0.95, "eps": 1e-6}},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Training:
    r"""How a student is trained. The settings are the keyword arguments of `limbeck.distill`."""

    steps: int = 10_000
    batch_size: int | str | None = "auto"  # None in a run that takes the inputs' own batches
    optimizer: str | torch.optim.Optimizer = "auto"
    schedule: str | Schedule | None = "auto"
    lr: float | None = None
    clip: float | None = None
    update: Update | None = None
    preset: str = "auto"
    seed: int = 0
    device: str | torch.device = "auto"
    engine: str = "auto"
    teacher_output: str = "auto"
    student_output: str = "auto"
    precompute: bool | str = "auto"
    metrics: Mapping[str, Callable[[nn.Module], float]] | None = None
    held_out: object = None
    patience: int | None = None
    seconds: float | None = None
    every: int | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float = 60.0
    callbacks: Callbacks = None
    progress: bool = True

    @classmethod
    def names(cls) -> set[str]:
        r"""The names of all settings."""
        return {field.name for field in fields(cls)}

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], decided: Names = (), arguments: Names = (), **defaults: Any
    ) -> Training:
        r"""The settings among a verb's options, without those `decided`, with its defaults."""
        known = cls.names() - set(decided)
        for name in options:
            if name not in known:
                raise ArgumentError.unknown("options", name, known | set(arguments))
        return cls(**{**defaults, **options})

    def checked(self) -> Training:
        r"""The same settings after checks, with whole numbers as int."""
        choice("preset", self.preset, PRESETS)
        numbers: dict[str, Any] = {"steps": whole("steps", self.steps)}
        if not (isinstance(self.batch_size, str) and self.batch_size == "auto"):
            numbers["batch_size"] = whole("batch_size", self.batch_size)
        for name in ("every", "patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                numbers[name] = whole(name, getattr(self, name))
        numbers["seed"] = whole_number("seed", self.seed, "a whole number")
        if self.patience is not None and self.held_out is None:
            expected = "held-out inputs, since patience watches the loss on them"
            raise ArgumentError("held_out", None, expected)
        for name in ("seconds", "checkpoint_seconds"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise ArgumentError(name, repr(value), "a number above zero")
        metrics: object = {} if self.metrics is None else self.metrics
        if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
            raise ArgumentError("metrics", repr(metrics), "a dict of functions of the student")
        for name in metrics.keys() & {"step", "loss", "gradient_norm", "held_out"}:
            raise ArgumentError("metrics", repr(name), "names that the history does not use itself")
        callbacks = () if self.callbacks is None else as_callbacks(self.callbacks)
        return replace(self, callbacks=callbacks, **numbers)


def choose_device(device: str | torch.device) -> torch.device:
    r"""The device by name; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        expected = f"'auto', or a device of this machine ({str(error).splitlines()[0]})"
        raise ArgumentError("device", repr(device), expected) from None
    return chosen


def launched_processes() -> int:
    r"""The number of processes started with this one, as far as torch or a launcher knows."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    # set by torchrun and accelerate launch, and by kinds of mpirun
    variables = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    counts = (os.environ.get(name, "") for name in variables)
    return max((int(count) for count in counts if count.isdecimal()), default=1)
