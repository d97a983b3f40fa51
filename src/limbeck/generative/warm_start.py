r"""Warm starts: a student that begins at its teacher's own weights."""

from __future__ import annotations

from typing import Any

import torch

from limbeck.errors import ArgumentError
from limbeck.models.deep_nade import DeepNADE
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM

__all__ = ["can_warm_start", "warm_start"]


def can_warm_start(student: Any, target: Any) -> bool:
    r"""Whether there is a warm start for this pair: a NADE or DeepNADE of an RBM of its support."""
    pair = isinstance(student, NADE | DeepNADE) and isinstance(target, RBM)
    return bool(pair and student.support == target.support)


@torch.no_grad()
def warm_start(
    student: Any, target: Any, generator: torch.Generator | None = None, centre: Any = "auto"
) -> None:
    r"""Set a NADE's or DeepNADE's parameters, in place, to those of an RBM.

    NADE began as a mean-field step in an RBM: w = u = W, b = a and c = b + m W, with rows in NADE's
    order, where m are the RBM's means by short chains. The student becomes one that is centred at
    m, whatever it was: a NADE's state then holds `mean`. Further hidden units start small; of too
    many, those of largest weights are kept.

    Arguments:
        student: A NADE or DeepNADE, of any order and any number of hidden units.
        target: An RBM over the same support.
        generator: Where the weights of further units are drawn from.
        centre: As of `NADE.from_rbm`; None leaves a student without a centre, with c = b.
    """
    if not can_warm_start(student, target):
        kinds = [
            f"{type(m).__name__} over {getattr(m, 'support', 'nothing')}" for m in (student, target)
        ]
        pairs = "a DeepNADE or NADE and an RBM over the same support"
        accepted = f'init="teacher" for {pairs}; "none" for others'
        raise ArgumentError("init", f"'teacher' for {kinds[0]} of {kinds[1]}", accepted)
    started: Any = NADE.from_rbm(target, student.hidden, student.order, generator, centre)
    if isinstance(student, NADE):
        student.mean = None  # it comes with the state, if there is one
    else:
        sizes = student.width, student.depth, student.run
        started = DeepNADE.from_nade(started, *sizes, generator=generator)
    student.load_state_dict(started.state_dict())
