r"""The parts of a condensation: teacher, student, inputs and loss, by what is predicted and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck import losses
from limbeck.arrays import Batch, X
from limbeck.condensation.outcomes import (
    ClassLogs,
    Head,
    Pair,
    PairDensity,
    Pairs,
    pair_losses,
    paired,
    unpaired,
)
from limbeck.condensation.predict_function import Predict
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import DrawSource, average_teacher, one_draw, refuse_derivatives
from limbeck.distributions.base import Distribution
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset, as_inputs
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.posteriors.draws import Draws
from limbeck.teachers.base import Teacher

__all__ = [
    "Parts",
    "as_loss",
    "check_module",
    "class_parts",
    "density_parts",
    "in_loop",
    "outcome_parts",
]

LOSSES: dict[str, Callable[[], Loss]] = {
    "auto": losses.cross_entropy,
    "cross_entropy": losses.cross_entropy,
    "derivative_error": lambda: losses.derivative_error(weight="teacher"),
}


class Parts(NamedTuple):
    r"""What the loop is given.

    Attributes:
        teacher: The posterior predictive distribution; None where it speaks through its outcomes.
        student: The student as a module of tensors.
        inputs: Where inputs come from, with outcomes where these are not classes.
        loss: What is minimised.
        held_out: Inputs on which the loss is recorded.
    """

    teacher: Teacher | None
    student: nn.Module
    inputs: Inputs
    loss: Loss
    held_out: Any = None


def as_loss(loss: Loss | str) -> Loss:
    r"""A loss by name; derivatives are weighted by the teacher, as is right for posteriors."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        raise ArgumentError.unknown("loss", loss, LOSSES)
    return LOSSES[loss]()


def check_module(student: Any) -> None:
    r"""Refuse a student that is no module."""
    if not (student is None or isinstance(student, nn.Module)):
        raise ArgumentError("student", f"a {type(student).__name__}", "a torch module, or None")


def in_loop(student: nn.Module, head: Head, x: X) -> nn.Module:
    r"""A student as the loop takes it: of log probabilities of classes, or densities of pairs.

    Arguments:
        student: A module that gives distributions or tensors.
        head: How tensors are to be read.
        x: A few inputs.
    """
    if not head.classes:
        return PairDensity(student, head)
    with torch.no_grad():
        gives = isinstance(student, SampleBag) or isinstance(student(x), Distribution)
    return ClassLogs(student) if gives else student


def class_parts(
    calling: Predict,
    student: nn.Module,
    inputs: Inputs,
    loss: Loss,
    stored: Draws | None,
    fresh: DrawSource,
    held_out: Any,
    share: int = 1,
) -> Parts:
    r"""The parts where y is a class, over all of which is summed.

    Arguments:
        calling: The user's function.
        student: The student as the loop takes it.
        inputs: Where inputs come from.
        loss: What is minimised.
        stored: Draws to average over at each input; None for one fresh draw an input.
        fresh: Where that comes from.
        held_out: Inputs on which the loss is recorded.
        share: How many of a minibatch's draws each input is predicted by.
    """
    teacher = (
        one_draw(calling, fresh, share) if stored is None else average_teacher(calling, stored)
    )
    return Parts(teacher, student, inputs, loss, held_out)


def density_parts(
    calling: Predict,
    student: nn.Module,
    inputs: Inputs,
    loss: Loss,
    stored: Draws | None,
    fresh: DrawSource,
    held_out: Any,
    share: int = 1,
) -> Parts:
    r"""The parts where y is a number, one of which is drawn for each input; see `class_parts`."""
    loss = pair_losses(loss)
    derivatives = any("derivatives" in term.asks for _, term in loss)
    teacher = None
    if derivatives and calling.batch:
        received = f"{loss!r} of outcomes of shape {calling.batch}"
        raise ArgumentError("loss", received, "cross_entropy() for several outcomes an input")
    if derivatives:
        refuse_derivatives(calling, repr(loss))
    if derivatives and stored is not None:
        teacher = average_teacher(calling, stored, pairs=True)
    elif derivatives:
        teacher = Teacher(_own_density(calling, fresh), "log_density", exact=False)
    keep = derivatives and stored is None

    def outcomes(batch: Batch, generator: torch.Generator) -> Pair:
        draws = fresh.next(len(_first(batch.x)))
        found = calling.paired(draws, batch.x)
        y = found.sample((), generator)
        flat = fresh.structure.flatten(draws) if keep else None
        return Pair(batch.x, y.long() if found.discrete else y, flat)

    return outcome_parts(outcomes, student, inputs, loss, held_out, fresh)._replace(teacher=teacher)


def outcome_parts(
    outcomes: Callable[[Batch, torch.Generator], Pair],
    student: nn.Module,
    inputs: Inputs,
    loss: Loss,
    held_out: Any,
    state: Any = None,
) -> Parts:
    r"""The parts where the teacher speaks through outcomes alone.

    Arguments:
        outcomes: Draws an outcome for each input of a batch.
        student: The student as the loop takes it.
        inputs: Where inputs come from.
        loss: What is minimised, on pairs.
        held_out: Inputs on which the loss is recorded, with outcomes that are drawn once.
        state: What outcomes depend on that changes from call to call.
    """
    if held_out is not None:
        source = as_inputs(held_out, "held_out")
        if not isinstance(source, Dataset):
            received = f"{type(source).__name__} inputs"
            raise ArgumentError("held_out", received, "a tensor, an array or a Dataset")
        source.to(inputs.device, _dtype(student), 0)
        batch = source.build(torch.arange(len(source), device=source.device))
        with torch.no_grad():
            held_out = Dataset(paired(outcomes(batch, source.generator)))
    return Parts(None, student, Pairs(inputs, outcomes, state), loss, held_out)


def _own_density(calling: Predict, fresh: DrawSource) -> Callable[[X], Tensor]:
    r"""log p(y|x, w) of pairs with the draw w that y came from."""

    def density(pairs: X) -> Tensor:
        pair = unpaired(pairs)
        assert pair.draw is not None
        found: Tensor = calling.paired(fresh.structure.unflatten(pair.draw), pair.x).log_prob(
            pair.y
        )
        return found

    return density


def _first(x: X) -> Tensor:
    return x if isinstance(x, Tensor) else next(iter(x.values()))


def _dtype(student: nn.Module) -> torch.dtype:
    return next(p.dtype for p in student.parameters() if p.is_floating_point())
