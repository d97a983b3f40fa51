r"""Square error first and KL after: two distillations on the same chains, as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from limbeck import losses
from limbeck.arguments import number
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.inputs.base import Inputs
from limbeck.normalization.chains import Continued
from limbeck.training.config import PRESETS
from limbeck.training.distill import distill
from limbeck.training.result import History, Result
from limbeck.training.schedules import Schedule, as_schedule

__all__ = ["Part", "joined", "square_error_then_kl", "subfolders"]

FOLDERS = ("1-square-error", "2-kl")
r"""Where the stages write their checkpoints."""


def square_error_then_kl(
    target: Any,
    student: nn.Module,
    inputs: Inputs,
    c: float,
    *,
    steps: int,
    switch: float,
    checkpoint: str | Path | None,
    **options: Any,
) -> Result:
    r"""Distil by the square error for a fraction of the steps, and go on by the KL divergence.

    Learning rates follow one schedule through both stages; an optimizer by name starts afresh in
    the second, whose gradients are of another size. Running out of time in the first ends it all.

    Arguments:
        target: The teacher.
        student: The student.
        inputs: A source of the target's samples, which goes on through both stages.
        c: The constant of the square error.
        steps: Steps of both stages together.
        switch: The fraction of them before the switch.
        checkpoint: A folder in which each stage has its own.
        options: Further arguments of `distill`, `preset` among them.
    """
    number("switch", switch, "a fraction above 0 and below 1", lambda f: 0 < f < 1)
    first = min(max(1, round(switch * steps)), steps - 1)
    if not first:
        raise ArgumentError("steps", steps, "2 or more, at least one for each stage")
    folders = subfolders(checkpoint, FOLDERS)
    asked = options.get("schedule", "auto")
    whole = as_schedule(PRESETS[options["preset"]]["schedule"] if asked == "auto" else asked)
    options["every"] = options.get("every") or max(1, steps // 50)
    limit = options.get("seconds")
    error, kl = losses.log_density_error(c), losses.kl()
    options["schedule"] = Part(whole, 0, steps)
    # the KL is measured along, for the history
    both = error + 0.0 * kl
    one = distill(target, student, inputs, both, steps=first, checkpoint=folders[0], **options)
    results = [one]
    if one.failure is None and (limit is None or one.seconds < limit):
        options["seconds"] = None if limit is None else limit - one.seconds
        options["schedule"] = Part(whole, first, steps)
        going, rest = Continued(inputs), steps - first
        results.append(
            distill(target, student, going, kl, steps=rest, checkpoint=folders[1], **options)
        )
    result = joined(results, kl.name)
    result.settings |= {"loss": f"{error!r}, then {kl!r}", "steps": steps}
    result.settings["stages"] = [
        {"loss": repr(loss), "steps": each.steps, "stop_reason": each.stop_reason}
        for loss, each in zip((error, kl), results, strict=False)
    ]
    return result


@dataclass(frozen=True, repr=False)
class Part:
    r"""A part of a schedule, as the schedule of one stage.

    Arguments:
        whole: The schedule of all stages together.
        before: The steps of the stages before.
        total: The steps of all stages.
    """

    whole: Schedule
    before: int
    total: int

    def __call__(self, t: Tensor, total: int) -> Tensor:
        return self.whole(t + self.before, self.total)

    def __repr__(self) -> str:  # a run is recognised by it, so it must not hold an address
        known = hasattr(self.whole, "__dataclass_fields__")
        name = repr(self.whole) if known else getattr(self.whole, "__qualname__", "")
        return f"Part({name}, before={self.before}, total={self.total})"


def subfolders(checkpoint: str | Path | None, names: Sequence[str]) -> list[Path | None]:
    r"""A folder for the checkpoints of each stage; the one given must hold nothing else."""
    if checkpoint is None:
        return [None] * len(names)
    folder = Path(checkpoint)
    held = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if folder.is_file() or held - set(names):
        raise CheckpointError(
            f"checkpoint: {folder} holds something else than checkpoints of these stages; "
            f"expected a new or empty folder, or one with {' and '.join(names)}"
        )
    return [folder / name for name in names]


def joined(results: Sequence[Result], final: str) -> Result:
    r"""One result of several stages; its steps go on counting through them.

    Its "loss" is that of the last stage throughout, so that the numbers compare; the stages
    before must have measured it as a term. Held-out losses before the last stage are of other
    objectives, and NaN here.

    Arguments:
        results: Those of the stages, in order.
        final: The name of the last stage's loss.
    """
    last, before = results[-1], 0
    told = [list(result.history) for result in results if result.history]
    names = [name for name in (told or [[]])[-1] if all(name in each for each in told)]
    columns: dict[str, list[float]] = {name: [] for name in names}
    for result in results:
        history = {name: list(values) for name, values in result.history.items()}
        history["step"] = [before + step for step in history.get("step", [])]
        if final in history:
            history["loss"] = history[final]
        if result is not last and "held_out" in history:
            history["held_out"] = [math.nan] * len(history["held_out"])
        for name in names:
            columns[name].extend(history.get(name, []))
        before += result.steps
    failure = last.failure
    if failure is not None:
        failure = replace(failure, step=failure.step + before - last.steps)
    return Result(
        last.student,
        History(columns),
        before,
        last.stop_reason,
        sum(result.seconds for result in results),
        last.engine,
        dict(last.settings),
        failure,
        last.processes,
        sum(result.compile_seconds for result in results),
    )
