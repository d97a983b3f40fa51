r"""What a loss is: a value per example, composable with + and *."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from limbeck.arrays import Batch, X
from limbeck.errors import ArgumentError
from limbeck.evaluation import View

__all__ = ["Drawn", "Draws", "Loss", "Probe", "Scaled", "Sum"]

Drawn: TypeAlias = Tensor | dict[str, Tensor] | None
r"""What is random of a loss at a batch: None, a tensor, or tensors by name."""


class Probe(NamedTuple):
    r"""What a loss gets before the first step: both models at a few inputs."""

    student: View
    teacher: View
    batch: Batch


class Draws(NamedTuple):
    r"""What a loss may draw from: sizes, the generator, and the teacher's own projections.

    Attributes:
        n: The number of examples.
        outputs: The number of outputs I.
        like: Some inputs, of the batch's type and device, and of its shapes but for their number.
        signs: Gives what k random projections need, in the form that the teacher understands.
        generator: The source of randomness, on the student's device.
    """

    n: int
    outputs: int
    like: X
    signs: Callable[[int, int, int, torch.Generator], Tensor]
    generator: torch.Generator


class Loss:
    r"""A loss E(x, θ), (n,)-valued; the loop averages.

    Attributes:
        name: What the history calls it.
        asks: What it needs of the teacher: any of "values", "derivatives", "hidden".
        domain: The domain of these derivatives: "log", "plain" or "density".
        needs: What the outputs must be: "probabilities", "values", "density" or "" (anything).
        affine: Whether its gradient is affine in the targets. Only then may the teacher's
            targets be replaced by those of one random draw: the gradient stays unbiased.
        bias: Why not, where it is not affine.
        differentiates: Whether it takes input derivatives of the student.
        storable: Whether the teacher's targets at a row can be stored for later visits.
        projections: The number of random projections that replace the sum over outputs, if any.
    """

    name = "loss"
    asks: frozenset[str] = frozenset()
    domain = "plain"
    needs = ""
    affine = True
    bias = ""
    differentiates = False
    storable = True
    projections: int | None = None

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        r"""The loss of each example, (n,)."""
        raise NotImplementedError

    def bind(self, probe: Probe) -> nn.Module | None:
        r"""Check that the models fit, before the first step; return a module to train as well."""
        return None

    def draw(self, batch: Draws) -> Drawn:
        r"""Everything random of the loss at a batch, as tensors."""
        return None

    def __iter__(self) -> Iterator[tuple[float, Loss]]:
        r"""The terms of the loss with their coefficients."""
        yield 1.0, self

    def __add__(self, other: Loss) -> Sum:
        if not isinstance(other, Loss):
            return NotImplemented
        return Sum([*self, *other])

    def __radd__(self, other: object) -> Loss:
        return self if other == 0 else NotImplemented  # so that sum([...]) works

    def __mul__(self, coefficient: float) -> Loss:
        if not isinstance(coefficient, int | float):
            return NotImplemented
        return Scaled(coefficient, self)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{self.name}()"


class Sum(Loss):
    r"""A weighted sum of losses."""

    def __init__(self, terms: list[tuple[float, Loss]]) -> None:
        self.terms = terms

    def __iter__(self) -> Iterator[tuple[float, Loss]]:
        return iter(self.terms)

    def __repr__(self) -> str:
        return " + ".join(repr(loss) if c == 1 else f"{c:g} * {loss!r}" for c, loss in self)


class Scaled(Sum):
    r"""A loss times a coefficient."""

    def __init__(self, coefficient: float, loss: Loss) -> None:
        if not math.isfinite(coefficient):
            raise ArgumentError("loss", f"the coefficient {coefficient}", "a finite number")
        super().__init__([(coefficient * c, term) for c, term in loss])
