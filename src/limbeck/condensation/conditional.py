r"""Condensing predictions of y given x: what is made of draws, a function, inputs and a student."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from limbeck.arguments import whole, whole_number
from limbeck.arrays import X, rows
from limbeck.condensation.assembling import check_module, class_parts, density_parts, in_loop
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.densities import run, story
from limbeck.condensation.held_out import GIVEN, HeldOut, hold_out
from limbeck.condensation.new_inputs import check_new_inputs, posterior_divergence
from limbeck.condensation.outcomes import Head
from limbeck.condensation.predict_function import Predict, unread_notes
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import (
    Picked,
    Recorded,
    bytes_of,
    diagnosed,
    few,
    floating_type,
    outside,
    placed,
)
from limbeck.distributions.checking import check
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset, as_inputs
from limbeck.inputs.base import Eager, Inputs
from limbeck.losses.base import Loss
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.stream import Stream
from limbeck.training.config import PRESETS, choose_device
from limbeck.training.distill import batch_size_of
from limbeck.training.loop import Run

__all__ = ["STOPPED", "Making", "condense_conditional", "fitting_batch", "make_bag"]

RATE = 0.05
r"""Adam's learning rate for a bag, whose numbers are in units of the posterior's deviations."""

POOL = (5_000, 50_000, 5 * 10**7)
r"""Inputs at which an average over draws is taken beforehand, where inputs never end: within the
first two numbers, as many as make so many predictions of single draws.
"""

SHARE = (16, 10**6)
r"""Draws that each input is predicted by online, at most; and numbers that this may take a step."""

STOPPED = "the loss on the held-out inputs also decided when to stop"

PROBE = 8
r"""Inputs that `predict` is tried at."""


class Making(NamedTuple):
    r"""How a bag is made; see `SampleBag`."""

    components: int
    support: Any
    weighted: bool
    start: str = "draws"
    scaled: bool = True


def condense_conditional(
    draws: Draws | Stream,
    predict: Callable[..., Any],
    inputs: Any,
    student: nn.Module | None,
    loss: Loss,
    online: bool,
    making: Making,
    pool: int | str | None,
    share: int | str,
    held_out: Any,
    options: dict[str, Any],
) -> Condensed:
    r"""Condense draws of a posterior with inputs; see `limbeck.condense`."""
    check_module(student)
    place, seed = choose_device(options["device"]), options["seed"]
    given, dtype = as_inputs(inputs), floating_type(inputs, draws, student)
    aside = hold_out(given, held_out, seed)
    source = aside.training
    for each, other in ((source, seed), (aside.source, seed + 1)):
        if isinstance(each, Eager):
            each.convert()  # what a function gives need not be of the type that the draws settled
        if each is not None:
            each.to(place, dtype, other)
    options = fitting_batch(options, given, source)
    x = source.probe(PROBE).x
    held = placed(draws, place, dtype)
    calling = Predict(predict, few(held), x)
    trusted = diagnosed(held) if isinstance(held, Draws) else None
    if student is None:
        student = make_bag(calling, held, making, seed, dtype, options)
    head = Head.of(calling.example)
    fresh = Recorded(held, seed + 3) if isinstance(held, Stream) else Picked(held, seed + 3)
    stored = held.to(place, dtype) if isinstance(held, Draws) and not online else None
    options = _for_loop(options, student.to(place))
    watched = _watched_inputs(aside, options, held)
    if stored is not None and head.classes:
        least, most, work = POOL
        enough = max(least, min(most, work // stored.count))
        source, options = _pooled(source, pool, enough, options, calling.mapped)
    assemble = class_parts if head.classes else density_parts
    live = in_loop(student, head, x)
    shared = _shared(share, calling, _batch_size(options, source))
    parts = assemble(calling, live, source, loss, stored, fresh, watched, shared)
    bare: nn.Module = student

    def finished(done: Run) -> Condensed:
        kept = stored.count if stored is not None else _batch_size(options, source)
        result = Condensed(
            bare,
            **story(done),
            diagnostics=diagnosed(held) if isinstance(held, Stream) else trusted,
            notes=[*held.notes, *_notes(calling)],
            used=fresh.used if stored is None else stored.count,
            draw_bytes=bytes_of(kept, held.structure, dtype),
            head=replace(head, form=done.objective.form),
            calling=calling,
            posterior=held,
        )
        _look_at(result, x)
        compared = fresh.stored() if isinstance(fresh, Recorded) else stored or held
        if isinstance(bare, SampleBag):
            bare.mark_trained()
        if isinstance(compared, Draws):
            measure = posterior_divergence(calling, compared, result.predict, seed)
            note = STOPPED if options.get("patience") is not None else ""
            result.new_inputs = check_new_inputs(aside, source, measure, seed, note)
        return result

    return run(finished, **parts._asdict(), **options)


def make_bag(
    calling: Predict,
    draws: Draws | Stream,
    making: Making,
    seed: int,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> SampleBag:
    r"""A bag of the posterior's structure; the learning rate is set where nobody says another."""
    if not calling.mapped:
        received = f"None with a predict that torch cannot map over draws ({calling.reason})"
        raise ArgumentError("student", received, "a module; or a predict in torch, for a bag")
    if "update" not in options and options.get("optimizer", "auto") == "auto":
        options.setdefault("lr", RATE)
    generator = torch.Generator().manual_seed(seed)
    return SampleBag(calling.function, draws, **making._asdict(), dtype=dtype, generator=generator)


def _for_loop(options: dict[str, Any], student: nn.Module) -> dict[str, Any]:
    r"""Options of the loop, with metrics of the student itself and not of what wraps it."""
    if options.get("metrics"):
        metrics = options["metrics"].items()
        own = {name: lambda _, f=metric: f(student) for name, metric in metrics}
        options = options | {"metrics": own}
    return options


def _watched_inputs(aside: HeldOut, options: dict[str, Any], draws: Draws | Stream) -> Any:
    r"""Held-out inputs on which the loop records the loss: those given, and those for patience.

    A stream that cannot go back has no draws to spare for that.
    """
    patience = options.get("patience") is not None
    if not (patience or aside.kind == GIVEN):
        return None
    rewinds = isinstance(draws, Draws) or hasattr(draws.source, "load_state_dict")
    if patience and not rewinds:
        received = "patience beside a stream that cannot go back"
        raise ArgumentError("patience", received, "None, or a stream with a state_dict")
    if patience and not isinstance(aside.source, Dataset):
        received = f"patience without held-out rows ({aside.reason or aside.kind})"
        raise ArgumentError("patience", received, "held_out=, inputs to watch the loss on")
    return aside.source if rewinds else None


def fitting_batch(options: dict[str, Any], given: Inputs, source: Inputs) -> dict[str, Any]:
    r"""Batches of as many rows as are left to train on, where all rows were asked for."""
    size = options["batch_size"]
    if source is given or not isinstance(source, Dataset) or source.replace or size == "auto":
        return options
    if isinstance(given, Dataset) and isinstance(size, int) and len(source) < size <= len(given):
        return options | {"batch_size": len(source)}
    return options


def _pooled(
    source: Inputs, pool: Any, enough: int, options: dict[str, Any], mapped: bool
) -> tuple[Inputs, dict[str, Any]]:
    r"""So many inputs of a source that does not end, as a data set; or the source itself.

    Inputs of a loader stay in batches of its size; if it has no one size, it is not pooled unless
    the user says so.
    """
    if isinstance(source, Dataset) or pool is None:
        return source, options
    size = _batch_size(options, source)
    if pool == "auto":
        total = options["steps"] * size
        if (mapped and total <= enough) or (source.own_batches and source.batch_size is None):
            return source, options
        pool = min(enough, total)
    batch = source(whole_number("pool", pool, "'auto', None, or a whole number from 1", least=1))
    data = Dataset(batch.x, weight=batch.weight)
    if source.own_batches:
        options = options | {"batch_size": min(size, len(data))}
    return data, options


def _shared(share: int | str, calling: Predict, size: int) -> int:
    r"""By how many of a minibatch's draws each input is predicted."""
    if share != "auto":
        return whole_number("share", share, "'auto' or a whole number from 1", least=1)
    most, work = SHARE
    affordable = work // (size * calling.numbers)
    return max(1, min(most, affordable)) if calling.mapped else 1


def _batch_size(options: dict[str, Any], source: Inputs) -> int:
    r"""About how many inputs a step takes."""
    given = options["batch_size"]
    given = given if isinstance(given, str) else whole("batch_size", given)
    default: int = PRESETS["auto"]["batch_size"]
    if source.own_batches:
        batch_size_of(given, source)  # which refuses another size
        return source.batch_size or default
    return default if isinstance(given, str) else given


def _notes(calling: Predict) -> list[str]:
    r"""What there is to tell of the user's function."""
    return [f"predict: {calling.reason}"] * bool(calling.reason) + unread_notes(calling.unread)


def _look_at(result: Condensed, x: X) -> None:
    r"""Warn of a student that has left where its predictions make sense."""
    try:
        check(result.predict(x), rows(x), "student")
    except ArgumentError as error:
        hint = "support= keeps variables of a bag positive or within bounds"
        warnings.warn(f"{error}; {hint}", stacklevel=outside())
