r"""Warm starts: a student that begins at its teacher's own weights."""

from __future__ import annotations

from typing import Any

import torch

from limbeck.errors import ArgumentError
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM

__all__ = ["can_warm_start", "warm_start"]


def can_warm_start(student: Any, target: Any) -> bool:
    r"""Whether there is a warm start for this pair: a NADE of an RBM over the same support."""
    pair = isinstance(student, NADE) and isinstance(target, RBM)
    return bool(pair and student.support == target.support)


@torch.no_grad()
def warm_start(student: Any, target: Any, generator: torch.Generator | None = None) -> None:
    r"""Set a NADE's parameters, in place, to those of an RBM.

    NADE began as a mean-field step in an RBM: w = u = W, c = b and b = a, with rows in NADE's
    order. Further hidden units start small; of too many, those of largest weights are kept.

    Arguments:
        student: A NADE, of any order and any number of hidden units.
        target: An RBM over the same support.
        generator: Where the weights of further units are drawn from.
    """
    if not can_warm_start(student, target):
        kinds = [
            f"{type(m).__name__} over {getattr(m, 'support', 'nothing')}" for m in (student, target)
        ]
        accepted = 'init="teacher" for a NADE and an RBM over the same support; "none" for others'
        raise ArgumentError("init", f"'teacher' for {kinds[0]} of {kinds[1]}", accepted)
    started = NADE.from_rbm(target, hidden=student.hidden, order=student.order, generator=generator)
    student.load_state_dict(started.state_dict())
