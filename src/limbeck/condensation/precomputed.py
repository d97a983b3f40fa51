r"""Condensing predictions that were computed elsewhere, so that nobody must port a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arrays import Batch
from limbeck.condensation.assembling import Parts, check_module, in_loop, outcome_parts
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.conditional import Making, fitting_batch, make_bag
from limbeck.condensation.densities import run, story
from limbeck.condensation.held_out import MEASURED, HeldOut, hold_out
from limbeck.condensation.new_inputs import NewInputs, divergence, judge
from limbeck.condensation.outcomes import Head, Pair, pair_losses
from limbeck.condensation.predict_function import Predict, class_logs
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import few, floating_type, placed
from limbeck.distributions import average, broadcast
from limbeck.distributions.base import Distribution, mapped
from limbeck.distributions.checking import as_distribution, check
from limbeck.distributions.discrete import Bernoulli, Categorical
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset, as_inputs
from limbeck.losses.base import Loss
from limbeck.models import MLP
from limbeck.models.preprocessed import Preprocessed, standardising
from limbeck.outputs import TOLERANCE
from limbeck.posteriors.arrays import as_array, as_tensor
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.stream import Stream
from limbeck.teachers.stored import Stored
from limbeck.training.config import choose_device
from limbeck.training.loop import Run

__all__ = ["as_predictions", "condense_predictions"]

SUMS = 0.1
r"""How far from 1 the probabilities of an input may add up to be still read as classes."""

HIDDEN = (64, 64)
r"""Hidden units of the student where the user has none."""


def as_predictions(predictions: Any, n: int) -> Any:
    r"""The average over draws of predictions at n inputs, as one distribution of batch shape (n,).

    Arguments:
        predictions: Probabilities (S, n) or (S, n, K), averages (n,) or (n, K), or a distribution
            with parameters of the batch shape (S, n) or (n,).
        n: The number of inputs.
    """
    given = predictions if isinstance(predictions, Distribution) else _as_classes(predictions, n)
    found = as_distribution(given, "predictions")
    shape = tuple(found.batch_shape)
    if shape == (n,) or (len(shape) == 2 and shape[1] == n):
        check(found, shape[0], "predictions")
        whole = broadcast(found)
        return whole if len(shape) == 1 else average(whole)
    received = f"a {type(found).__name__} of the batch shape {shape}"
    raise ArgumentError("predictions", received, f"the shape (draws, {n}) or ({n},)")


def _as_classes(predictions: Any, n: int) -> Any:
    r"""Probabilities in an array as a distribution of the batch shape (S, n) or (n,)."""
    array = as_array(predictions, "predictions")
    expected = f"probabilities ({n},), (draws, {n}), ({n}, classes) or (draws, {n}, classes)"
    p = as_tensor(array, torch.float64, torch.device("cpu"))
    shape = tuple(p.shape)
    if shape == (n, n):
        expected = "an average over draws, or a third axis for classes: this could be either"
        raise ArgumentError("predictions", f"shape {shape} for {n} inputs", expected)
    classes = shape[:1] == (n,) if p.ndim == 2 else p.ndim == 3
    if shape[p.ndim - 1 - classes : p.ndim - classes] != (n,) or p.ndim not in (1, 2, 3):
        raise ArgumentError("predictions", f"shape {shape} for {n} inputs", expected)
    if p.isfinite().all() and (p.min() < -TOLERANCE or p.max() > 1 + TOLERANCE):
        received = f"numbers between {p.min():.4g} and {p.max():.4g}"
        expected = "probabilities; of real numbers, limbeck.Normal(loc, scale) of the draws"
        raise ArgumentError("predictions", received, expected)
    if p.ndim == 2 and classes and shape[1] > 1 and ((p.sum(1) - 1).abs() > SUMS).any():
        received = f"shape {shape} for {n} inputs, with rows that do not have the sum 1"
        expected = f"({n}, classes) with the sum 1, or (draws, {n}): is it transposed?"
        raise ArgumentError("predictions", received, expected)
    if not classes or shape[-1] == 1:
        return Bernoulli(probs=p.squeeze(-1) if classes else p)
    return Categorical(probs=p)


def condense_predictions(
    predictions: Any,
    inputs: Any,
    predict: Callable[..., Any] | None,
    draws: Draws | Stream | None,
    student: nn.Module | None,
    loss: Loss,
    making: Making,
    held_out: Any,
    options: dict[str, Any],
) -> Condensed:
    r"""Condense what draws say of given inputs; see `limbeck.condense`.

    The student is a module of the user's, a bag if there are draws and a function beside, or else
    a net of two hidden layers.
    """
    check_module(student)
    if (predict is None) != (draws is None):
        name = "predict" if predict is None else "posterior"
        raise ArgumentError(name, None, "both posterior and predict, for a bag, or none of them")
    if inputs is None:
        raise ArgumentError("inputs", None, "the inputs that the predictions are of")
    source = as_inputs(inputs)
    if not isinstance(source, Dataset):
        received = f"{type(source).__name__} inputs"
        raise ArgumentError("inputs", received, "the inputs that the predictions are of, as data")
    place, seed = choose_device(options["device"]), options["seed"]
    dtype = floating_type(inputs, draws, student)
    if not (held_out is None or isinstance(held_out, int | float | str)):
        received = "held-out inputs, of which no predictions are known"
        raise ArgumentError("held_out", received, "a fraction of the rows, 'auto' or None")
    everywhere, averaged = source, as_predictions(predictions, len(source))
    aside = hold_out(source, held_out, seed)
    source = aside.training
    assert isinstance(source, Dataset)
    everywhere.to(place, dtype, seed)
    source.to(place, dtype, seed)
    options = fitting_batch(options, everywhere, source)
    if options.get("patience") is not None:
        expected = "None beside predictions, which are known at the inputs alone"
        raise ArgumentError("patience", options["patience"], expected)
    known = mapped(broadcast(averaged), lambda value, dims: value.to(place, dtype))
    taught = known if aside.rows is None else _at(known, aside.rows[0])
    head = Head.of(taught)
    if student is None and predict is not None and draws is not None:
        held = placed(draws, place, dtype)
        calling = Predict(predict, few(held), source.probe(8).x)
        student = make_bag(calling, held, making, seed, dtype, options)
    elif student is None:
        student = _net(source.x, taught, head, seed, dtype)
    bare, live = student.to(place), in_loop(student.to(place), head, source.probe(8).x)
    if head.classes:
        parts = Parts(Stored(class_logs(taught), "log_probabilities"), live, source, loss)
    else:

        def outcomes(batch: Batch, generator: torch.Generator) -> Pair:
            assert batch.index is not None
            return Pair(batch.x, _at(taught, batch.index).sample((), generator))

        parts = outcome_parts(outcomes, live, source, pair_losses(loss), None)

    def finished(done: Run) -> Condensed:
        result = Condensed(bare, **story(done), head=replace(head, form=done.objective.form))
        if isinstance(bare, SampleBag):
            bare.mark_trained()
        result.new_inputs = _measured(result, everywhere, known, aside, seed)
        return result

    return run(finished, **parts._asdict(), **options)


def _measured(
    result: Condensed, inputs: Dataset, known: Any, aside: HeldOut, seed: int
) -> NewInputs:
    r"""The student at rows that were held out with their predictions, and at training rows."""
    if aside.rows is None:
        return NewInputs(reason=f"unchecked at new inputs: {aside.reason}")
    generator = torch.Generator().manual_seed(seed)
    classes = result.head is not None and result.head.classes
    both = []
    for index in aside.rows:
        order = torch.randperm(len(index), generator=generator)[:MEASURED]
        here = index[order].to(inputs.device)
        student = result.predict(inputs.build(here).x)
        both.append(divergence(_at(known, here), student, classes, generator))
    return judge(both[0], both[1], 0.0, aside.kind, seed)


def _at(found: Any, index: Tensor) -> Any:
    r"""The distributions of some inputs."""
    return mapped(found, lambda value, dims: value[index.to(value.device)])


def _net(x: Any, taught: Any, head: Head, seed: int, dtype: torch.dtype) -> nn.Module:
    r"""A net with its scaling inside."""
    if not isinstance(x, Tensor):
        raise ArgumentError("student", None, "a module, where inputs are a dict")
    generator = torch.Generator().manual_seed(seed)
    outputs = {"Bernoulli": 1, "Normal": 2, "Poisson": 1}.get(head.kind)
    outputs = class_logs(taught).shape[-1] if outputs is None and head.classes else outputs
    if outputs is None:
        raise ArgumentError("student", None, f"a module that gives {head.kind or 'several'} ones")
    shift, scale = standardising(x.flatten(1))
    net = MLP(shift.numel(), *HIDDEN, outputs, hidden="tanh", dtype=dtype, generator=generator)
    if head.kind != "Normal":
        return Preprocessed(net, shift, scale)
    mean, spread = taught.mean.mean(), (taught.variance.mean() + taught.mean.var()).sqrt()
    ends = torch.stack([mean, spread.log()]), torch.stack([spread, torch.ones_like(spread)])
    return Preprocessed(net, shift, scale, *ends, output_form="values")
