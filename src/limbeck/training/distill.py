r"""`distill`: a teacher, a student, inputs and a loss in; a trained student out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck import losses
from limbeck.arrays import Batch, as_batch, input_dtype, part_of, rows
from limbeck.errors import ArgumentError, warn
from limbeck.evaluation import close_taps
from limbeck.inputs import Dataset, as_inputs
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.outputs import FORMS, check_class_axis, recognise
from limbeck.progress import tracked, watched
from limbeck.teachers.base import Teacher, as_teacher, output_form
from limbeck.teachers.stored import Stored, precompute
from limbeck.training.callbacks import Callbacks
from limbeck.training.config import ENGINES, PRESETS, Training, choose_device, launched_processes
from limbeck.training.engines import Eager, make_engine
from limbeck.training.loop import Run, Step
from limbeck.training.objective import Objective
from limbeck.training.processes import Distributed, share
from limbeck.training.result import Result
from limbeck.training.schedules import Schedule
from limbeck.training.update import MODES, GradientUpdate, Update


@arg.checked_arguments
def distill(
    teacher: arg.UserObject[object],
    student: nn.Module,
    inputs: arg.UserObject[object],
    loss: arg.UserObject[Loss | str] = "auto",
    *,
    steps: arg.Count = 10_000,
    batch_size: arg.Count | arg.Auto = "auto",
    optimizer: arg.UserObject[str | torch.optim.Optimizer] = "auto",
    schedule: arg.UserObject[str | Schedule | None] = "auto",
    lr: arg.Positive | arg.UserObject[Tensor] | None = None,
    clip: arg.Positive | None = None,
    update: arg.UserObject[Update | None] = None,
    preset: Annotated[str, arg.Choice(*PRESETS)] = "auto",
    seed: arg.Seed = 0,
    device: arg.Device | arg.Auto = "auto",
    engine: Annotated[str, arg.Choice(*ENGINES)] = "auto",
    teacher_output: Annotated[str, arg.Choice(*FORMS, "auto")] = "auto",
    student_output: Annotated[str, arg.Choice(*FORMS, "auto")] = "auto",
    precompute: arg.Flag | arg.Auto = "auto",
    metrics: arg.UserObject[Mapping[str, Callable[[nn.Module], float]] | None] = None,
    held_out: arg.UserObject[object] = None,
    patience: arg.Count | None = None,
    seconds: arg.Positive | None = None,
    every: arg.Count | None = None,
    checkpoint: arg.PathLike | None = None,
    checkpoint_every: arg.Count | None = None,
    checkpoint_seconds: arg.Positive = 60.0,
    callbacks: arg.UserObject[Callbacks] = None,
    progress: arg.Flag = True,
) -> Result:
    r"""Train a student to match a teacher.

    Arguments:
        teacher: A torch module, a callable on tensors, an estimator with `predict_proba` or
            `predict`, a `Teacher`, or None for losses that need none.
        student: A module; it is trained in place.
        inputs: A source from `limbeck.inputs`, or what `as_inputs` accepts: a tensor, an array, a
            torch Dataset or DataLoader, a model with `.sample`, a function of n.
        loss: From `limbeck.losses`, or a name. Default: "auto", cross entropy for class
            probabilities, KL for densities and square error for everything else. Losses on classes
            take outputs (n,) or (n, classes), square error on values outputs of any shape.
        steps: The number of steps. Default: 10,000.
        batch_size: Inputs per step. Default: 200, or a DataLoader's own.
        optimizer: A name in `torch.optim` or an instance. Default: Adam.
        schedule: "cosine", "constant", "linear", "logarithmic", "robbins-monro", or a function of
            (steps done, total). Default: "cosine".
        lr: The learning rate. Default: the optimizer's.
        clip: The largest norm of the gradient. Default: no clipping.
        update: An `Update` instead of optimizer, schedule, lr and clip. Default: built from these.
        preset: "thesis" for ADADELTA, batches of 20 and no decay. Default: "auto".
        seed: Seeds everything that has no seed of its own. Default: 0.
        device: Where to run. Default: "auto", a GPU if there is one.
        engine: "eager", "compiled", or "accelerate" in each process of an `accelerate launch`.
            Default: "auto", compiled if that is estimated to shorten the run.
        teacher_output: The form of the teacher's outputs: "logits", "probabilities",
            "log_probabilities", "values". Default: "auto", refused where it is ambiguous.
        student_output: The same for the student. Default: "auto".
        precompute: Whether to evaluate the teacher once at every row of a data set. Default:
            "auto", if the run visits rows repeatedly and the targets fit into memory.
        metrics: Functions of the student by name, for the history. Default: none.
        held_out: Inputs on which the loss is recorded at each evaluation. Default: none.
        patience: Number of evaluations without a better held-out loss after which to stop; the best
            student is returned. Default: None, no early stopping.
        seconds: Time limit in seconds, including compilation. Default: None, no limit.
        every: Steps between evaluations. Default: `steps // 50`.
        checkpoint: A folder to write checkpoints to, and to resume from if it holds one; with other
            `steps` only if the schedule does not depend on their number. Default: none.
        checkpoint_every: Steps between checkpoints. Default: None, by seconds only.
        checkpoint_seconds: Seconds between checkpoints. Default: 60.
        callbacks: Called at every evaluation: one or several of `lb.callbacks`, or functions of a
            dict of numbers. Default: none.
        progress: Whether to show a bar on a terminal. Default: True.
    """
    arguments = locals()  # the keyword arguments are the fields of Training, by name
    settings = {field.name: arguments[field.name] for field in fields(Training)}
    return train(teacher, student, inputs, loss, Training(**settings))


def train(
    teacher: object, student: nn.Module, inputs: object, loss: Loss | str, training: Training
) -> Result:
    r"""`distill` with its settings in one record, as the verbs call it."""
    run = prepare(teacher, student, inputs, loss, training)
    try:
        for _ in watched(run, training.progress):
            pass
    finally:
        run.objective.release()
    return Result(student, **run.outcome(student_output=run.objective.form))


@arg.checked_arguments
def steps(
    teacher: arg.UserObject[object], student: nn.Module, inputs: arg.UserObject[object],
    loss: arg.UserObject[Loss | str] = "auto", **options: Any,
) -> Iterator[Step]:  # fmt: skip
    r"""The steps of a distillation one by one, with `.number`, `.loss`, `.terms`, `.student`.

    Takes the arguments of `distill`; `progress` is False by default.
    """
    training = Training.from_options(options, (), distill, progress=False)
    run = prepare(teacher, student, inputs, loss, training)
    try:
        yield from watched(run, training.progress)
    finally:
        run.objective.release()


WRAPPERS = {  # classes of modules that spread their work over processes, by package
    "torch": ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"),
    "deepspeed": ("DeepSpeedEngine",),
}
SEVERAL = "; for several processes engine='accelerate', which averages gradients and buffers"


def refuse_wrapped(student: nn.Module) -> None:
    r"""Refuse a student that spreads its work over devices: `torch.func` bypasses such hooks."""
    for name, module in student.named_modules():
        if isinstance(module, nn.DataParallel):
            wrapper = "DataParallel" if len(module.device_ids) > 1 else None
        else:
            kinds = ((k.__module__.split(".")[0], k.__name__) for k in type(module).__mro__)
            wrapper = next((kind for pkg, kind in kinds if kind in WRAPPERS.get(pkg, ())), None)
        if wrapper is not None:
            part = f"the part {name!r}, " if name else ""
            received = f"{part}a module wrapped in {wrapper}, whose averaging would not run"
            raise ArgumentError("student", received, f"the module itself (student.module){SEVERAL}")
    for name, tensor in (*student.named_parameters(), *student.named_buffers()):
        if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):  # a DTensor
            received = f"{name!r}, which is sharded over devices ({type(tensor).__name__})"
            raise ArgumentError("student", received, f"a module whole in each process{SEVERAL}")


def prepare(
    teacher: object, student: nn.Module, inputs: object, loss: Loss | str, training: Training
) -> Run:
    r"""A run, fully checked before the first step."""
    if student is teacher:
        expected = "another module; a copy.deepcopy of the teacher will do"
        raise ArgumentError("student", "the teacher itself, which would move with it", expected)
    refuse_wrapped(student)
    training = training.checked()
    device, seed = choose_device(training.device), training.seed
    if training.engine == "accelerate":
        training, device, seed = share(training)
    elif (count := launched_processes()) > 1:
        text = f"engine: this is one of {count} processes, and with engine={training.engine!r} each"
        text += " trains its own student and writes its own files; 'accelerate' trains one in all"
        warn(text)
    student.to(device)
    source = as_inputs(inputs)
    source.to(device, input_dtype(student) or torch.get_default_dtype(), seed)
    size = batch_size_of(training.batch_size, source, training.preset)
    wrapped = as_teacher(teacher, training.teacher_output)
    wrapped.to(device)
    training = replace(training, batch_size="auto" if size is None else size)
    form, loss_seed = training.student_output, training.seed + 1
    try:
        loss = as_loss(loss, wrapped, student, form, source)
        objective = Objective(wrapped, student, source, loss, student_output=form, seed=loss_seed)
        held_out = None if training.held_out is None else _held_out(training.held_out, objective)
        _precompute(objective, training)
        update = training.update or _gradient_update(training)
        update.bind(objective, training.steps)
        identity = _identity(objective, update, training)
        if training.engine == "accelerate":
            engine: Eager = Distributed(update, objective)
        else:
            limits = (training.steps, training.seconds)
            engine = make_engine(training.engine, objective, update, *limits)
        return Run(objective, update, engine, training, identity, held_out)
    except BaseException:
        wrapped.release()
        close_taps(student)
        raise


def batch_size_of(size: int | str, source: Inputs, preset: str = "auto") -> int | None:
    r"""Inputs a step, from a checked number or "auto"; None takes the batches of a loader."""
    if source.own_batches:
        if size not in ("auto", source.batch_size):
            or_size = "" if source.batch_size is None else f" or {source.batch_size}"
            expected = f"'auto'{or_size}: the batches of a loader are taken as they come; give the "
            expected += "loader another batch_size, or its data set in its place"
            raise ArgumentError("batch_size", size, expected)
        return None
    if not isinstance(size, str):
        return size
    default: int = PRESETS[preset]["batch_size"]
    if isinstance(source, Dataset) and not source.replace:
        return min(default, len(source))
    return default


def _gradient_update(training: Training) -> GradientUpdate:
    optimizer, preset, options = training.optimizer, PRESETS[training.preset], {}
    if optimizer == "auto":
        optimizer, options = preset["optimizer"], dict(preset["options"])
    if training.lr is not None:
        if isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError("lr", training.lr, "no lr with an optimizer instance")
        options["lr"] = training.lr
    schedule = preset["schedule"] if training.schedule == "auto" else training.schedule
    return GradientUpdate(optimizer, schedule, clip=training.clip, **options)


def as_loss(
    loss: Loss | str, teacher: Teacher, student: nn.Module, student_output: str, source: Inputs
) -> Loss:
    r"""A loss by name; "auto" depends on the form of the outputs, evaluated if not declared."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss == "auto":
        forms = {teacher.form, output_form("student_output", student, student_output)}
        if teacher.form == "values":
            return losses.square_error()
        if forms == {"auto"} and teacher.source is not None:
            batch = as_batch(source.probe(8))
            with torch.no_grad():
                raw = teacher.view(batch, teacher.draw(rows(batch.x))).raw()
            if isinstance(raw, torch.Tensor) and raw.ndim:
                for axis in (1, -1) if raw.ndim > 2 else ():  # probabilities at several positions
                    if recognise(raw.movedim(axis, -1).reshape(-1, raw.shape[axis])) is not None:
                        check_class_axis(raw, "teacher")
                forms = {recognise(raw) or "auto"}
        if forms & {"logits", "probabilities", "log_probabilities"}:
            return losses.cross_entropy()
        return losses.kl() if "log_density" in forms else losses.square_error()
    names = [name for name in losses.__all__ if name not in ("hints", "directional_error")]
    arg.choice("loss", loss, ["auto", *names])
    named: Loss = getattr(losses, loss)()
    return named


def _precompute(objective: Objective, training: Training, max_bytes: int = 2**30) -> None:
    r"""Store the teacher's targets, if that is possible and saves time."""
    required, source = training.precompute, objective.inputs
    if not required:
        return
    if not isinstance(source, Dataset) or not _storable(objective):
        if required is True:
            raise ArgumentError("precompute", True, "a Dataset as inputs and an exact teacher")
        return
    teacher, terms = objective.teacher, objective.terms
    if required == "auto":
        if training.steps * int(training.batch_size) < len(source):
            return
        sample = part_of(source.x, 0, 8)
        if len(source) / rows(sample) * precompute(teacher, sample, terms).bytes > max_bytes:
            return
    watch = partial(tracked, label="querying the teacher", progress=training.progress)
    seed = training.seed + 2
    objective.teacher = precompute(teacher, source.x, terms, seed=seed, watch=watch)


def _storable(objective: Objective) -> bool:
    r"""Whether the teacher's targets at a row can be stored and looked up."""
    teacher = objective.teacher
    fixed = teacher.exact and not teacher.stochastic and not isinstance(teacher, Stored)
    return bool(objective.requires) and fixed and all(term.storable for term in objective.terms)


def _held_out(value: object, objective: Objective) -> tuple[Batch, Teacher]:
    r"""Held-out inputs with the teacher's targets, computed once."""
    source, teacher = as_inputs(value, "held_out"), objective.teacher
    if not isinstance(source, Dataset):
        kind = type(source).__name__
        raise ArgumentError("held_out", f"{kind} inputs", "a tensor, an array or a Dataset")
    if isinstance(teacher, Stored) and source.y is None:
        expected = "None with stored targets, or a Dataset whose y are its targets"
        raise ArgumentError("held_out", "inputs that no targets are stored for", expected)
    source.to(objective.device, input_dtype(objective.student) or torch.get_default_dtype(), 0)
    batch = source.build(torch.arange(len(source), device=objective.device))
    if isinstance(teacher, Stored) and source.y is not None:
        teacher = Stored(source.y, teacher.form)
    elif _storable(objective):
        teacher = precompute(teacher, source.x, objective.terms)
    return batch, teacher


def _identity(objective: Objective, update: Update, training: Training) -> dict[str, Any]:
    r"""The settings that must agree for a checkpoint to be resumed."""
    inputs = objective.inputs
    shapes = {name: list(t.shape) for name, t in objective.student.state_dict().items()}
    optimizer = getattr(update, "optimizer", update)
    groups = [
        ", ".join(f"{name}={value}" for name, value in group.items() if name not in MODES)
        for group in getattr(optimizer, "param_groups", [])
    ]
    schedule = getattr(update, "schedule", None)
    is_dataclass = hasattr(schedule, "__dataclass_fields__")
    return {
        "student": f"{type(objective.student).__name__} {shapes}",
        "inputs": type(inputs).__name__,
        "loss": repr(objective.loss),
        "update": f"{type(optimizer).__name__}({'; '.join(groups)})",
        "clip": getattr(update, "clip", None),
        "schedule": repr(schedule) if is_dataclass else getattr(schedule, "__qualname__", ""),
        "batch_size": inputs.batch_size if inputs.own_batches else training.batch_size,
        "seed": training.seed,
    }
