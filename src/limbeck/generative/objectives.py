r"""What normalising minimises: losses by name, and the constant that the square error needs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from limbeck import losses
from limbeck.core.checks import number
from limbeck.core.loss import Loss
from limbeck.errors import ArgumentError
from limbeck.generative.climbing import climb
from limbeck.generative.free_energy import free_energy

__all__ = ["NAMES", "SQUARE_ERRORS", "Constant", "find_constant", "objective", "refuse_misfits"]

SQUARE_ERRORS = ("square_error", "log_density_error", "square_error_then_kl")

NAMES = ("kl", "reverse_kl", "score_matching", *SQUARE_ERRORS)

DOUBTS = 3.0
r"""Standard errors that a constant stays below the free energy that it is taken from."""


class Constant(NamedTuple):
    r"""The constant c of the square error, and where it came from."""

    value: float
    origin: str


def refuse_misfits(loss: str | Loss, target: Any, force: bool) -> bool:
    r"""Refuse losses that do not go together, or not with the target.

    Returns:
        Whether the inputs are to be samples of the student instead of the target's chains.
    """
    if not isinstance(loss, Loss) and loss not in NAMES:
        raise ArgumentError.unknown("loss", loss, NAMES)
    names = {loss} if isinstance(loss, str) else {term.name for _, term in loss}
    if "reverse_kl" in names and len(names) > 1:
        accepted = "reverse_kl alone: it is for samples of the student, the others for the target's"
        raise ArgumentError("loss", repr(loss), accepted)
    discrete = getattr(getattr(target, "support", None), "discrete", False)
    if "score_matching" in names and discrete and not force:
        raise ArgumentError(
            "loss",
            f"score_matching over {target.support!r}",
            "kl or square_error: on a discrete support, log densities can have equal derivatives "
            "at every event and still be of different distributions; force=True runs it all the "
            "same",
        )
    return "reverse_kl" in names


def objective(loss: str | Loss, constant: Constant | None) -> Loss:
    r"""A loss by its name in `NAMES`; of the two stages, the first."""
    if isinstance(loss, Loss):
        return loss
    if constant is not None:
        return losses.log_density_error(constant.value)
    found: Loss = getattr(losses, loss)()
    return found


def find_constant(
    c: float | None, loss: str | Loss, target: Any, student: Any, seed: int
) -> Constant | None:
    r"""A constant that is at most log Z, for the losses that need one.

    Of a discrete target any log p̃(x) is; of another, the free energy of any tractable density.
    """
    if not isinstance(loss, str) or loss not in SQUARE_ERRORS:
        if c is not None:
            accepted = f"None, since c belongs to the loss {' or '.join(SQUARE_ERRORS)}"
            raise ArgumentError("c", c, accepted)
        return None
    if c is not None:
        value = number("c", c, "a finite number, at most log Z", lambda _: True)
        return Constant(value, "given")
    if target.support.discrete:
        return Constant(float(climb(target, seed=seed)[0]), "hill climbing")
    if not callable(getattr(student, "sample", None)):
        received = f"None over {target.support!r}, with a student that has no sample"
        raise ArgumentError("c", received, "a number that is at most log Z")
    bound = free_energy(target, student, seed=seed)
    value = float(bound) - DOUBTS * bound.std_error
    if not math.isfinite(value):
        received = f"None, and the free energy of the student is {bound}"
        raise ArgumentError("c", received, "a finite number, at most log Z")
    return Constant(value, "the free energy of the student")
