r"""How a student is trained: one frozen record of typed settings, and the presets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, shown
from limbeck.outputs import FORMS
from limbeck.training.callbacks import Callbacks, as_callbacks
from limbeck.training.schedules import Schedule
from limbeck.training.update import Update

ENGINES = ("auto", "eager", "compiled", "accelerate")
PRESETS: dict[str, dict[str, Any]] = {
    "auto": {"optimizer": "adam", "schedule": "cosine", "batch_size": 200, "options": {}},
    "thesis": {"optimizer": "adadelta", "schedule": "constant", "batch_size": 20,
               "options": {"lr": 1.0, "rho": 0.95, "eps": 1e-6}},
}  # fmt: skip


@arg.checked_arguments
@dataclass(frozen=True, kw_only=True)
class Training:
    r"""How a student is trained. The settings are the keyword arguments of `limbeck.distill`."""

    steps: arg.Count = 10_000
    batch_size: arg.Count | arg.Auto = "auto"  # in a run: of the inputs' own batches
    optimizer: arg.Text | torch.optim.Optimizer = "auto"
    schedule: arg.Text | arg.Function[Schedule] | None = "auto"
    lr: arg.Positive | arg.UserObject[Tensor] | None = None
    clip: arg.Positive | None = None
    update: arg.UserObject[Update | None] = None
    preset: Annotated[str, arg.Choice(*PRESETS)] = "auto"
    seed: arg.Seed = 0
    device: arg.Device | arg.Auto = "auto"
    engine: Annotated[str, arg.Choice(*ENGINES)] = "auto"
    teacher_output: Annotated[str, arg.Choice(*FORMS, "auto")] = "auto"
    student_output: Annotated[str, arg.Choice(*FORMS, "auto")] = "auto"
    precompute: arg.Flag | arg.Auto = "auto"
    metrics: arg.UserObject[Mapping[str, Callable[[nn.Module], float]] | None] = None
    held_out: arg.UserObject[object] = None
    patience: arg.Count | None = None
    seconds: arg.Positive | None = None
    every: arg.Count | None = None
    checkpoint: arg.PathLike | None = None
    checkpoint_every: arg.Count | None = None
    checkpoint_seconds: arg.Positive = 60.0
    callbacks: arg.UserObject[Callbacks] = None
    progress: arg.Flag = True

    @classmethod
    def from_options(
        cls, options: Mapping[str, Any], decided: Iterable[str], function: Callable[..., Any],
        **defaults: Any,
    ) -> Training:  # fmt: skip
        r"""The settings among a verb's options, without those `decided`, with its defaults."""
        known = {field.name for field in fields(cls)} - set(decided)
        for name in options.keys() - known:
            names = known | inspect.signature(function).parameters.keys() - {"options"}
            raise ArgumentError.unknown_argument(name, names, function.__name__)
        return cls(**{**defaults, **options})

    def checked(self) -> Training:
        r"""The same settings with callbacks in a tuple; what does not go together is refused."""
        if self.patience is not None and self.held_out is None:
            expected = "held-out inputs, since patience watches the loss on them"
            raise ArgumentError("held_out", None, expected)
        if self.update is not None and not callable(getattr(self.update, "bind", None)):
            raise ArgumentError("update", shown(self.update), "an Update, or None")
        metrics: object = {} if self.metrics is None else self.metrics
        if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
            raise ArgumentError("metrics", shown(metrics), "a dict of functions of the student")
        for name in metrics.keys() & {"step", "loss", "gradient_norm", "held_out", "run"}:
            raise ArgumentError("metrics", shown(name), "names that are not the history's own")
        if self.callbacks is None:
            return self
        return replace(self, callbacks=as_callbacks(self.callbacks))


@arg.checked_arguments
def choose_device(device: arg.Device | arg.Auto) -> torch.device:
    r"""The device by name; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def launched_processes() -> int:
    r"""The number of processes started with this one, as far as torch or a launcher knows."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    # set by torchrun and accelerate launch, and by kinds of mpirun
    variables = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    counts = (os.environ.get(name, "") for name in variables)
    return max((int(count) for count in counts if count.isdecimal()), default=1)
