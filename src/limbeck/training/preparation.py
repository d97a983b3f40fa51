r"""From what the user asked for to a run: everything is checked before the first step."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limbeck import losses
from limbeck.arguments import whole_number
from limbeck.arrays import as_batch, input_dtype, rows
from limbeck.errors import ArgumentError
from limbeck.evaluation import close_taps
from limbeck.inputs import Dataset, as_inputs
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.outputs import check_class_axis, recognise
from limbeck.progress import tracked
from limbeck.teachers.base import Teacher, as_teacher, output_form
from limbeck.teachers.stored import Stored, precompute, stored_bytes
from limbeck.training.config import PRESETS, Training
from limbeck.training.engine_choice import make
from limbeck.training.loop import Run
from limbeck.training.objective import Objective
from limbeck.training.processes import APART, launched_processes, processes, refuse_wrapped
from limbeck.training.settings import HeldOut, Settings, as_callbacks
from limbeck.training.update import GradientUpdate, Update

__all__ = ["as_loss", "batch_size_of", "choose_device", "prepare", "whole"]

PROBE = 8
r"""Inputs at which outputs are looked at before the first step."""

HOW = ("params", "capturable", "differentiable", "foreach", "fused")
r"""What a group of an optimizer's parameters says beside the settings that change results."""

STORE_AT_MOST = 2**30
r"""Bytes of stored targets up to which `precompute="auto"` stores them."""


def prepare(teacher: Any, student: Any, inputs: Any, loss: Loss | str, training: Training) -> Run:
    r"""A run, of which everything is checked before the first step.

    Arguments:
        teacher: As the other arguments, one of `limbeck.distill`.
        training: All further ones.
    """
    if not isinstance(student, nn.Module):
        raise ArgumentError(
            "student", f"an object of type {type(student).__name__}", "a torch module"
        )
    if student is teacher:
        expected = "another module; a copy.deepcopy of the teacher will do"
        raise ArgumentError("student", "the teacher itself, which would move with it", expected)
    refuse_wrapped(student)
    training = training.checked()
    place, seed = choose_device(training.device), training.seed
    if training.engine == "accelerate":
        training, place, seed = _share(training)
    elif (count := launched_processes()) > 1:
        warnings.warn(
            f"engine: this is one of {count} processes, and with engine={training.engine!r} each "
            "of them trains a student of its own and writes its own files; engine='accelerate' "
            "trains one student in all of them",
            stacklevel=3,
        )
    student.to(place)
    dtype = input_dtype(student) or torch.get_default_dtype()
    source = as_inputs(inputs)
    source.to(place, dtype, seed)
    size = batch_size_of(training.batch_size, source, training.preset)
    known = as_teacher(teacher, training.teacher_output)
    known.to(place)
    try:
        return _bound(known, student, source, loss, training, size, dtype)
    except BaseException:
        known.release()
        close_taps(student)
        raise


def _auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def batch_size_of(given: int | str, source: Inputs, preset: str = "auto") -> int | None:
    r"""Inputs a step; None takes the batches of a loader as they come.

    Arguments:
        given: What the user asked for: a checked number, or "auto".
        source: The inputs.
        preset: One of `PRESETS`.
    """
    if source.own_batches:
        own = source.batch_size
        if not _auto(given) and given != own:
            beside = "" if own is None else f" or {own}"
            expected = (
                f"'auto'{beside}: the batches of a loader are taken as they come; give the loader "
                "another batch_size, or its data set in its place"
            )
            raise ArgumentError("batch_size", given, expected)
        return None
    if not isinstance(given, str):
        return given
    size: int = PRESETS[preset]["batch_size"]
    return min(size, len(source)) if isinstance(source, Dataset) and not source.replace else size


def _share(training: Training) -> tuple[Training, torch.device, int]:
    r"""This process's settings, device and seed; what several could not agree about is refused."""
    state = processes(cpu=training.device == "cpu" or not torch.cuda.is_available())
    if (count := launched_processes()) > state.num_processes:
        raise ArgumentError(
            "engine",
            f"'accelerate' in one of {count} processes, where Accelerate knows of "
            f"{state.num_processes}",
            "a launch by `accelerate launch` or `torchrun`, with no Accelerate state made before",
        )
    if state.num_processes == 1:
        warnings.warn(
            "engine: 'accelerate' runs in a single process here; start the script by `accelerate "
            "launch --num_processes 2` or `torchrun --nproc-per-node 2` for two",
            stacklevel=4,
        )
    for name in ("checkpoint", "seconds"):
        if state.num_processes > 1 and getattr(training, name) is not None:
            raise ArgumentError(name, getattr(training, name), "None with several processes")
    main = state.is_main_process
    own = replace(
        training,
        progress=training.progress and main,
        callbacks=training.callbacks if main else None,
    )
    return own, state.device, training.seed + APART * state.process_index


def _bound(
    teacher: Teacher,
    student: nn.Module,
    source: Inputs,
    loss: Loss | str,
    training: Training,
    size: int | None,
    dtype: torch.dtype,
) -> Run:
    r"""A run of the parts: everything that is left to check is checked at a few inputs."""
    defaults = PRESETS[training.preset]
    loss = as_loss(loss, teacher, student, training.student_output, source)
    objective = Objective(
        teacher,
        student,
        source,
        loss,
        student_output=training.student_output,
        seed=training.seed + 1,
    )
    held_out = None if training.held_out is None else _held_out(training.held_out, objective, dtype)
    visits = training.steps * (size or 0)
    _store_if_worth(objective, training.precompute, visits, training.seed, training.progress)
    update = training.update or _gradient_update(training, defaults)
    update.bind(objective, training.steps)
    settings = Settings(
        steps=training.steps,
        batch_size=size,
        every=training.every or max(1, training.steps // 50),
        seconds=training.seconds,
        metrics=training.metrics,
        held_out=held_out,
        patience=training.patience,
        checkpoint=None if training.checkpoint is None else Path(training.checkpoint),
        checkpoint_every=training.checkpoint_every,
        checkpoint_seconds=training.checkpoint_seconds,
        callbacks=as_callbacks(training.callbacks),
        identity=_identity(objective, update, size or source.batch_size, training.seed),
    )
    engine = make(training.engine, objective, update, training.steps, training.seconds)
    return Run(objective, update, engine, settings)


def _gradient_update(training: Training, defaults: dict[str, Any]) -> GradientUpdate:
    if isinstance(training.optimizer, torch.optim.Optimizer) and training.lr is not None:
        raise ArgumentError(
            "lr", training.lr, "no lr beside an optimizer instance, which has its own"
        )
    name = defaults["optimizer"] if training.optimizer == "auto" else training.optimizer
    schedule = defaults["schedule"] if training.schedule == "auto" else training.schedule
    options = dict(defaults["options"]) if training.optimizer == "auto" else {}
    if training.lr is not None:
        options["lr"] = training.lr
    return GradientUpdate(name, schedule, clip=training.clip, **options)


def as_loss(
    loss: Loss | str, teacher: Teacher, student: nn.Module, student_output: str, source: Inputs
) -> Loss:
    r"""A loss by name; "auto" goes by the kind of outputs, which are looked at if nobody says."""
    if isinstance(loss, Loss):
        return loss
    if loss == "auto":
        forms = {teacher.form, output_form("student_output", student, student_output)}
        if teacher.form == "values":
            return losses.square_error()
        if forms == {"auto"} and teacher.source is not None:
            batch = as_batch(source.probe(PROBE))
            with torch.no_grad():
                raw = teacher.view(batch, teacher.draw(rows(batch.x))).raw()
            if isinstance(raw, torch.Tensor) and raw.ndim:
                _refuse_class_axes(raw)
                forms = {recognise(raw) or "auto"}
        if forms & {"logits", "probabilities", "log_probabilities"}:
            return losses.cross_entropy()
        return losses.kl() if "log_density" in forms else losses.square_error()
    names = [name for name in losses.__all__ if name not in ("hints", "directional_error")]
    if not isinstance(loss, str) or loss not in names:
        raise ArgumentError.unknown("loss", loss, ["auto", *names])
    return getattr(losses, loss)()


def _refuse_class_axes(raw: torch.Tensor) -> None:
    r"""Refuse what looks like probabilities at several positions: which loss is not clear."""
    for axis in (1, -1) if raw.ndim > 2 else ():
        if recognise(raw.movedim(axis, -1).reshape(-1, raw.shape[axis])) is not None:
            check_class_axis(raw, "teacher")


def choose_device(device: str | torch.device) -> torch.device:
    r"""The device by name; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        expected = f"'auto', or a device of this machine ({reason})"
        raise ArgumentError("device", repr(device), expected) from None
    return found


def whole(argument: str, value: Any) -> int:
    r"""A whole number from 1, or an error that names the argument."""
    return whole_number(argument, value, "a whole number from 1", least=1)


def _store_if_worth(
    objective: Objective, wanted: bool | str, visits: int, seed: int, progress: bool
) -> None:
    if wanted not in (True, False, "auto"):
        raise ArgumentError.unknown("precompute", wanted, ("auto", "True", "False"))
    source, teacher = objective.inputs, objective.teacher
    possible = isinstance(source, Dataset) and _storable(objective)
    if wanted is True and not possible:
        raise ArgumentError("precompute", True, "a Dataset as inputs and an exact teacher")
    if not (possible and wanted) or not isinstance(source, Dataset):
        return
    if wanted == "auto":
        first = source.build(torch.zeros(1, dtype=torch.long, device=objective.device))
        size = stored_bytes(teacher, objective.terms, source.x, objective.outputs, first)
        if visits < len(source) or size > STORE_AT_MOST:
            return
    watch = partial(tracked, label="asking the teacher", progress=progress)
    objective.teacher = precompute(teacher, source.x, objective.terms, seed=seed + 2, watch=watch)


def _storable(objective: Objective) -> bool:
    r"""Whether what the teacher says of a row can be kept and looked up."""
    teacher = objective.teacher
    fixed = teacher.exact and teacher.draws_nothing and not isinstance(teacher, Stored)
    return bool(objective.asks) and fixed and all(term.storable for term in objective.terms)


def _held_out(value: Any, objective: Objective, dtype: torch.dtype) -> HeldOut:
    r"""Held-out inputs with the teacher's word on them, taken once."""
    source = as_inputs(value, "held_out")
    if not isinstance(source, Dataset):
        raise ArgumentError(
            "held_out", f"{type(source).__name__} inputs", "a tensor, an array or a Dataset"
        )
    if isinstance(objective.teacher, Stored) and source.y is None:
        expected = "None with stored targets, or a Dataset whose y are its targets"
        raise ArgumentError("held_out", "inputs that no targets are stored for", expected)
    source.to(objective.device, dtype, 0)
    batch = source.build(torch.arange(len(source), device=objective.device))
    teacher = objective.teacher
    if isinstance(teacher, Stored) and source.y is not None:
        return HeldOut(batch, Stored(source.y, teacher.form))
    if _storable(objective):
        teacher = precompute(teacher, source.x, objective.terms)
    return HeldOut(batch, teacher)


def _identity(
    objective: Objective, update: Update, batch_size: int | None, seed: int
) -> dict[str, Any]:
    r"""What must be the same for a checkpoint to be taken up."""
    shapes = {name: list(t.shape) for name, t in objective.student.state_dict().items()}
    optimizer = getattr(update, "optimizer", update)
    groups = [
        ", ".join(f"{name}={value}" for name, value in group.items() if name not in HOW)
        for group in getattr(optimizer, "param_groups", [])
    ]
    schedule = getattr(update, "schedule", None)
    return {
        "student": f"{type(objective.student).__name__} {shapes}",
        "inputs": type(objective.inputs).__name__,
        "loss": repr(objective.loss),
        "update": f"{type(optimizer).__name__}({'; '.join(groups)})",
        "clip": getattr(update, "clip", None),
        "schedule": repr(schedule)
        if hasattr(schedule, "__dataclass_fields__")
        else getattr(schedule, "__qualname__", ""),
        "batch_size": batch_size,
        "seed": seed,
    }
