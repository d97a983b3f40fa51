r"""`distill`: a teacher, a student, inputs and a loss in; a trained student out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limbeck.arrays import floats
from limbeck.losses.base import Loss
from limbeck.progress import watched
from limbeck.training.config import Training
from limbeck.training.loop import Step
from limbeck.training.preparation import prepare
from limbeck.training.result import Result
from limbeck.training.schedules import Schedule
from limbeck.training.update import Update

__all__ = ["distill", "steps"]


def distill(
    teacher: Any,
    student: nn.Module,
    inputs: Any,
    loss: Loss | str = "auto",
    *,
    steps: int = 10_000,
    batch_size: int | str = "auto",
    optimizer: str | torch.optim.Optimizer = "auto",
    schedule: str | Schedule | None = "auto",
    lr: float | None = None,
    clip: float | None = None,
    update: Update | None = None,
    preset: str = "auto",
    seed: int = 0,
    device: str | torch.device = "auto",
    engine: str = "auto",
    teacher_output: str = "auto",
    student_output: str = "auto",
    precompute: bool | str = "auto",
    metrics: Mapping[str, Callable[[nn.Module], float]] | None = None,
    held_out: Any = None,
    patience: int | None = None,
    seconds: float | None = None,
    every: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float = 60.0,
    callbacks: Any = None,
    progress: bool = True,
) -> Result:
    r"""Train a student to do what a teacher does.

    Arguments:
        teacher: A torch module, a callable on tensors, an estimator with `predict_proba` or
            `predict`, a `Teacher`, or None for losses that need none.
        student: A module; it is trained in place.
        inputs: A source from `limbeck.inputs`, or anything that `as_inputs` makes one of: a
            tensor, an array, a torch Dataset or loader, a model with `.sample`, a function of n.
            A DataLoader's batches are taken as they come, a shorter last one too.
        loss: From `limbeck.losses`, or a name; "auto" is cross entropy for class probabilities,
            KL for densities and square error for everything else. Losses on classes take outputs
            (n,) or (n, classes), square error on values outputs of any shape.
        steps: The number of steps.
        batch_size: Inputs a step; 200 by default. Beside a DataLoader, none but its own.
        optimizer: A name in `torch.optim` or an instance; Adam by default.
        schedule: "cosine" (the default), "constant", "linear", "logarithmic", "robbins-monro", or
            a function of (steps done, total).
        lr: The learning rate; each optimizer has a default.
        clip: The largest norm of the gradient, if it is to be clipped.
        update: An `Update` in place of optimizer, schedule, lr and clip.
        preset: "thesis" for the source text's settings: ADADELTA, batches of 20, no decay.
        seed: Seeds everything that has no seed of its own.
        device: Where to run; "auto" is a GPU if there is one.
        engine: "eager", "compiled", or "auto": compiled where a forecast from the operations of a
            step and the number of steps says that it pays; "accelerate" in each process of an
            `accelerate launch`, on batches of its own.
        teacher_output: The form of the teacher's outputs: "logits", "probabilities",
            "log_probabilities", "values"; "auto" asks the model or looks at its outputs, and
            refuses to guess.
        student_output: The same for the student.
        precompute: Whether to evaluate the teacher once at every row of a data set and look its
            targets up from then on; "auto" does so if the run visits rows again and they fit.
        metrics: Functions of the student, by name, recorded in the history at each look.
        held_out: Inputs on which the loss is recorded at each look.
        patience: Stop after so many looks without a better held-out loss, and keep the best.
        seconds: Stop after so many seconds, compilation included.
        every: Steps between looks; by default a fiftieth of all.
        checkpoint: A folder to write checkpoints to, and to resume from if it holds one. Another
            number of steps is refused if the schedule depends on it, as "cosine" does.
        checkpoint_every: Steps between checkpoints, beside one each `checkpoint_seconds`.
        checkpoint_seconds: Seconds between checkpoints.
        callbacks: Called at every evaluation: one or several of `lb.callbacks`, or functions of a
            dict of numbers.
        progress: Whether to show a bar, if a terminal is there.
    """
    training = Training(
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        schedule=schedule,
        lr=lr,
        clip=clip,
        update=update,
        preset=preset,
        seed=seed,
        device=device,
        engine=engine,
        teacher_output=teacher_output,
        student_output=student_output,
        precompute=precompute,
        metrics=metrics,
        held_out=held_out,
        patience=patience,
        seconds=seconds,
        every=every,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        checkpoint_seconds=checkpoint_seconds,
        callbacks=callbacks,
        progress=progress,
    )
    return train(teacher, student, inputs, loss, training)


def train(
    teacher: Any, student: nn.Module, inputs: Any, loss: Loss | str, training: Training
) -> Result:
    r"""`distill` with its settings in one record, as the verbs call it."""
    run = prepare(teacher, student, inputs, loss, training)
    try:
        for _ in watched(run, training.progress):
            pass
    finally:
        run.objective.release()
    assert run.stop_reason is not None
    like = floats(run.objective._like)
    described = dict(run.settings.identity or {}) | {
        "steps": training.steps,
        "device": str(run.objective.device),
        "student_output": run.objective.form,
        "input_shape": {name: list(part.shape[1:]) for name, part in like.items()},
    }
    return Result(
        student,
        run.history,
        run.done,
        run.stop_reason,
        run.seconds,
        run.engine.name,
        described,
        run.failure,
        run.engine.processes,
        run.engine.compile_seconds,
    )


def steps(
    teacher: Any, student: nn.Module, inputs: Any, loss: Loss | str = "auto", **options: Any
) -> Iterator[Step]:
    r"""The steps of a distillation one by one, for those who want to look in between.

    Takes the arguments of `distill`. Each step gives `.number`, `.loss`, `.terms`, `.student`.
    """
    training = Training(**{"progress": False, **options})  # whoever looks in between needs no bar
    run = prepare(teacher, student, inputs, loss, training)
    try:
        yield from watched(run, training.progress)
    finally:
        run.objective.release()
