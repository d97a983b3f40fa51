r"""Condensing a density without inputs: samples of all draws' densities into one mixture."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import Batch, floats
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.outcomes import PairDensity, unpaired
from limbeck.condensation.predict_function import Predict, unread_notes
from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.condensation.teachers import (
    DrawSource,
    Picked,
    bytes_of,
    diagnosed,
    few,
    floating_type,
    outside,
    placed,
    strata,
)
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Inputs
from limbeck.losses.densities import kl
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mixture_em import fit_em
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.stream import Stream, StreamBroken, StreamEnded
from limbeck.progress import watched
from limbeck.storage.files import under
from limbeck.training.callbacks import replayed
from limbeck.training.config import Training, choose_device, refuse_unknown
from limbeck.training.distill import prepare
from limbeck.training.loop import Run
from limbeck.training.result import History

__all__ = ["SETTLED", "Events", "check_options", "condense_density", "events_of", "run", "story"]

SETTLED = ("teacher_output", "preset")
r"""Settings of a training that `condense` decides itself."""


def check_options(options: dict[str, Any]) -> None:
    r"""Refuse what is not an argument of `distill`."""
    refuse_unknown(options, SETTLED, ("student", "loss"))


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
    training = Training(**options)
    found = prepare(teacher, student, inputs, loss, training)
    try:
        for _ in watched(found, training.progress, "condensing"):
            pass
    except StreamEnded as end:
        if not found.done:
            raise
        if found._looked < found.done:
            found._look()
        found.save()
        found.stop_reason = f"{end}, at step {found.done:,} of {found.settings.steps:,}"
        for callback in found.callbacks:
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
        "settings": {**run.identity, "steps": run.settings.steps, **about},
        "failure": run.failure,
    }


BY_GRADIENT = ("optimizer", "lr", "clip")
r"""Options that ask for gradient descent in place of EM."""

START = 1000
r"""Samples from which gradient descent starts."""


class Events(Inputs):
    r"""Samples of the posterior predictive density: one fresh draw each, then an event of it.

    Arguments:
        calling: The user's function of a draw.
        source: Where draws come from.
    """

    def __init__(self, calling: Predict, source: DrawSource) -> None:
        super().__init__()
        self.calling, self.source = calling, source
        self.dtype: torch.dtype | None = None

    def draw(self, n: int) -> Tensor:
        x = events_of(self.calling, self.source.next(n), self.generator)
        return x if self.dtype is None else x.to(self.dtype)

    def build(self, drawn: Tensor) -> Batch:
        return Batch(drawn)

    def probe(self, n: int) -> Batch:
        r"""A few samples; draws of a stream that they take do not come again."""
        before = self.generator.get_state()
        batch = self(n)
        self.generator.set_state(before)
        return batch

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self.dtype = dtype

    def state_dict(self) -> dict[str, Tensor]:
        own = {f"draws.{key}": value for key, value in self.source.state_dict().items()}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.source.load_state_dict(under("draws.", state))


@torch.no_grad()
def events_of(calling: Predict, draws: Any, generator: torch.Generator) -> Tensor:
    r"""An event (n, D) of the density of each of n draws."""
    found = calling.paired(draws).sample((), generator)
    events: Tensor = found if calling.example.event else found.unsqueeze(1)
    return events


def condense_density(
    draws: Draws | Stream,
    density: Callable[..., Any],
    student: nn.Module | None,
    components: int,
    covariance: str,
    samples: int,
    restarts: int | None,
    online: bool,
    options: dict[str, Any],
) -> Condensed:
    r"""Condense draws of a posterior over densities; see `limbeck.condense`.

    A `GaussianMixture` is fitted by batch EM on samples, or, online, by stepwise EM; any other
    student with `log_prob`, or a mixture with an optimizer, by gradients.
    """
    _refuse_inputs(density)
    place, seed = choose_device(options["device"]), options["seed"]
    dtype = floating_type(None, draws, student)
    held = placed(draws, place, dtype)
    calling = Predict(density, few(held), None)
    if calling.example.discrete:
        received = f"a {type(calling.example).__name__}, of whole numbers, without inputs"
        expected = "a density of real numbers; predict(draw, x) with inputs= for classes and counts"
        raise ArgumentError("predict", received, expected)
    trusted = diagnosed(held) if isinstance(held, Draws) else None
    generator = torch.Generator().manual_seed(seed)
    if student is None:
        dim = calling.example.mean.shape[-1] if calling.example.event else 1
        student = GaussianMixture(
            components, dim, covariance, dtype=dtype, device=place, generator=generator
        )
    notes = [*held.notes, *unread_notes(calling.unread)]
    about: dict[str, Any] = {"calling": calling, "posterior": held, "notes": notes}
    gradient = not isinstance(student, GaussianMixture) or any(k in options for k in BY_GRADIENT)
    if isinstance(held, Draws) and not (online or gradient or "update" in options):
        count = whole_number("samples", samples, "a whole number from 1", least=1)
        chosen = held.take(strata(held.count, count, generator))
        x = events_of(calling, chosen, generator)
        size = bytes_of(held.count, held.structure, dtype)
        about |= {"diagnostics": trusted, "used": held.count, "draw_bytes": size}
        return _by_em(student, x, generator, restarts, options, about)
    fresh = held if isinstance(held, Stream) else Picked(held, seed + 3)
    events, bare = Events(calling, fresh), student
    if gradient and isinstance(student, GaussianMixture):
        events.to(place, dtype, seed)
        student.start_from(events.probe(START).x, generator=generator)
    if not gradient and "update" not in options:
        own: dict[str, Any] = {"restarts": restarts, "schedule": options.get("schedule")}
        given = {name: value for name, value in own.items() if value is not None}
        options = options | {"update": StepwiseEM(**given)}

    def finished(done: Run) -> Condensed:
        broken = getattr(options.get("update"), "reasons", ())  # of components, by stepwise EM
        return Condensed(
            bare,
            **story(done),
            **{**about, "notes": [*notes, *broken]},
            diagnostics=diagnosed(held) if isinstance(held, Stream) else trusted,
            used=fresh.used,
            draw_bytes=bytes_of(done.batch_size or 0, held.structure, dtype),
        )

    return run(finished, None, student, events, kl(), **options)


def _by_em(
    mixture: nn.Module,
    x: Tensor,
    generator: torch.Generator,
    restarts: int | None,
    options: dict[str, Any],
    about: dict[str, Any],
) -> Condensed:
    r"""Batch EM on samples."""
    assert isinstance(mixture, GaussianMixture)
    mixture.to(x.device)
    given = {} if restarts is None else {"restarts": restarts}
    found = fit_em(mixture, x, generator=generator, progress=options["progress"], **given)
    losses = [-value for value in found.log_likelihood]
    settings = {"loss": "kl()", "update": "EM", "samples": len(x), "seed": options["seed"]}
    history = History({"step": list(range(len(losses))), "loss": losses})
    replayed(options.get("callbacks"), settings, history, found.verdict)
    return Condensed(
        mixture,
        history,
        found.iterations,
        found.verdict,
        found.seconds,
        "EM",
        settings,
        **{**about, "notes": [*about["notes"], *found.reasons]},
    )


def _refuse_inputs(density: Any) -> None:
    r"""Refuse a function that wants inputs where there are none."""
    try:
        parameters = inspect.signature(density).parameters.values()
    except (TypeError, ValueError):
        return
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [p for p in parameters if p.kind in named and p.default is inspect.Parameter.empty]
    if len(wanted) > 1:
        expected = "the inputs that predict(draw, x) is of; a density without inputs is of a draw"
        raise ArgumentError("inputs", None, expected)
