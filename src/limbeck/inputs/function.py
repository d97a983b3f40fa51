r"""Inputs from a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limbeck.core.batch import Batch
from limbeck.inputs.calls import SeededCall
from limbeck.inputs.eager import Eager

__all__ = ["Function"]


class Function(Eager):
    r"""What a function of n gives.

    Arguments:
        fn: A function of n, or of n and `generator` (on the student's device), that gives a Batch,
            a tensor (n, ...) or a dict of such, all finite. One that draws from the global
            generators is reproducible all the same.
        seed: The generator's seed; None takes the seed of the distillation.

    >>> import torch
    >>> Function(lambda n: 10 * torch.rand(n, 2))(5).x.shape
    torch.Size([5, 2])
    """

    def __init__(self, fn: Callable[..., Any], seed: int | None = None) -> None:
        super().__init__(seed)
        self.fn = SeededCall(fn, "fn")

    def draw(self, n: int) -> Batch:
        return self.checked(self.fn(self.generator, n), n, "fn")
