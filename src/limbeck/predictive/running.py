r"""The loop over draws that may come to an end: what was learnt until then is kept."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from limbeck.core.batch import floats
from limbeck.core.loop import Run
from limbeck.distillation import distill
from limbeck.draws.stream import StreamBroken, StreamEnded
from limbeck.errors import ArgumentError
from limbeck.predictive.condensed import Condensed
from limbeck.predictive.heads import PairDensity
from limbeck.predictive.pairing import unpaired
from limbeck.predictive.posteriors import outside
from limbeck.preparation import prepare
from limbeck.progress import watched

__all__ = ["SETTLED", "check_options", "run", "story"]

SETTLED = ("teacher", "inputs", "teacher_output", "preset")
r"""Arguments of `distill` that `condense` settles."""


def check_options(options: dict[str, Any]) -> None:
    r"""Refuse what is not an argument of `distill`."""
    further = set(inspect.signature(distill).parameters) - set(SETTLED)
    for name in options:
        if name not in further:
            raise ArgumentError.unknown("options", name, further)


def run(
    finished: Callable[[Run], Condensed],
    teacher: Any,
    student: Any,
    inputs: Any,
    loss: Any,
    **options: Any,
) -> Condensed:
    r"""All steps of a distillation, or as many as there are draws for.

    If the iterator of draws ends, fails or gives a bad batch once there was a step, what was learnt
    until then is kept, and the reason told; the latter two are warned of, too.

    Arguments:
        finished: Makes the result of a run.
        teacher: As the other arguments, one of `limbeck.distill`.
    """
    bound = inspect.signature(distill).bind(teacher, student, inputs, loss, **options)
    bound.apply_defaults()
    found = prepare(SimpleNamespace(**bound.arguments))
    try:
        for _ in watched(found, bound.arguments["progress"], "condensing"):
            pass
    except StreamEnded as end:
        if not found.done:
            raise
        if found._looked < found.done:
            found._look()
        found.save()
        found.stop_reason = f"{end}, at step {found.done:,} of {found.settings.steps:,}"
        for callback in found.settings.callbacks:
            callback.end(found.stop_reason)
        if isinstance(end, StreamBroken):
            kept = "the student so far is kept"
            warnings.warn(f"{found.stop_reason}; {kept}", stacklevel=outside())
    finally:
        found.objective.release()
    return finished(found)


def story(run: Run) -> dict[str, Any]:
    r"""What results tell of a run, by name."""
    like = run.objective._like
    x = unpaired(like).x if isinstance(run.objective.student, PairDensity) else like
    shapes = {name: list(part.shape[1:]) for name, part in floats(x).items()}
    about = {"device": str(run.objective.device), "input_shape": shapes}
    return {
        "history": run.history,
        "steps": run.done,
        "stop_reason": str(run.stop_reason),
        "seconds": run.seconds,
        "engine": run.engine.name,
        "processes": run.engine.processes,
        "compile_seconds": run.engine.compile_seconds,
        "settings": {**(run.settings.identity or {}), "steps": run.settings.steps, **about},
        "failure": run.failure,
    }
