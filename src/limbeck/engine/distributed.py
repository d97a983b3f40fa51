r"""Several processes by Accelerate: each draws its own batches, and gradients are averaged."""

from __future__ import annotations

from typing import Any

import torch

from limbeck.core.update import GradientUpdate, Update
from limbeck.engine.eager import Eager
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["Distributed", "processes"]

APART = 1_000_003
r"""How far the seeds of two processes are apart, so that each sees other inputs."""


def processes(cpu: bool) -> Any:
    r"""Accelerate's word on how many processes there are, which this is, and its device."""
    try:
        from accelerate import PartialState
    except ImportError:
        raise LimbeckError(
            "engine: 'accelerate' needs the extra: pip install 'limbeck[accelerate]'"
        ) from None
    return PartialState(cpu=cpu)


class Distributed(Eager):
    r"""Runs each step in every process, on the mean of their gradients.

    The same script runs with and without `accelerate launch`. All processes start from the first
    one's student and stay equal, since they take equal steps.
    """

    name = "accelerate"

    def __init__(self, update: Update) -> None:
        from accelerate.utils import broadcast, reduce

        super().__init__(update)
        if not isinstance(update, GradientUpdate):
            raise ArgumentError("update", type(update).__name__, "a GradientUpdate with accelerate")
        with torch.no_grad():
            for leaf in update.parameters.values():
                leaf.copy_(broadcast(leaf.detach().clone()))
        update.reduce = lambda tensors: reduce(tensors, reduction="mean")
