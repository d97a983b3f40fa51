r"""What a loss is: a value per example, composable with + and *."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arrays import Batch, X
from limbeck.errors import ArgumentError
from limbeck.evaluation import View

Drawn: TypeAlias = Tensor | dict[str, Tensor] | None  # what is random of a loss at a batch


class Probe(NamedTuple):
    r"""What a loss receives before the first step: both models at a few inputs."""

    student: View
    teacher: View
    batch: Batch


class Draws(NamedTuple):
    r"""What `draw` of a loss receives: sizes, the generator, and the teacher's projections."""

    n: int  # examples
    outputs: int  # their number I
    like: X  # inputs of the batch's type, device and shapes, but for their number
    signs: Callable[[int, int, int, torch.Generator], Tensor]  # of k projections: Teacher.signs
    generator: torch.Generator  # on the student's device


class Loss:
    r"""A loss E(x, θ), (n,)-valued; the loop averages."""

    name: ClassVar[str]  # in the history: that of the class, if it has no other
    requires: frozenset[str] = frozenset()  # of the teacher: "values", "derivatives", "hidden"
    domain = "plain"  # of these derivatives: "log", "plain" or "density"
    needs = ""  # the outputs must be "probabilities", "values", "density" or "" (anything)
    normalised = False  # whether the student must be a density that integrates to one
    compares = ""  # "classes" or "values", of which both models must have the same number
    bias = ""  # why the gradient is not affine in the targets, so biased with single draws, if so
    differentiates = False  # whether it takes input derivatives of the student
    storable = True  # whether the teacher's targets at a row can be stored for later visits
    projections: int | None = None  # random ones, in place of the sum over outputs

    def __init_subclass__(cls) -> None:
        cls.name = vars(cls).get("name", cls.__name__)

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        r"""The loss of each example, (n,)."""
        raise NotImplementedError

    def bind(self, probe: Probe) -> nn.Module | None:
        r"""Check that the models fit, before the first step; return a module to train as well."""
        if not self.compares:
            return None
        views, classes = (probe.student, probe.teacher), self.compares == "classes"
        one, other = ((v.log_probabilities() if classes else v.values()).shape for v in views)
        if one != other:
            received = f"{one[1]} outputs where the teacher has {other[1]}"
            raise ArgumentError("student", received, "as many outputs as the teacher")
        one, other = (view.raw().shape for view in views)
        if not classes and not forms.same_layout(one, other):
            received = f"outputs of shape {tuple(one)} where the teacher's are {tuple(other)}"
            raise ArgumentError("student", received, "outputs in the teacher's order of axes")
        return None

    def draw(self, batch: Draws) -> Drawn:
        r"""The random tensors of the loss at a batch."""
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
        if not math.isfinite(coefficient):
            raise ArgumentError("loss", f"the coefficient {coefficient}", "a finite number")
        return Sum([(coefficient * c, term) for c, term in self])

    __rmul__ = __mul__

    def __repr__(self) -> str:
        values = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, None)
            if not isinstance(value, nn.Module | None):
                keyword = "" if parameter.default is parameter.empty else f"{name}="
                values.append(keyword + _described(value))
        return f"{self.name}({', '.join(values)})"


def _described(value: object) -> str:
    r"""A setting of a loss, in one line."""
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} of sum {value.double().sum().item():.6g}"
    number = f"{value:g}" if isinstance(value, int | float) else repr(value)
    return str(getattr(value, "__qualname__", number))


class Sum(Loss):
    r"""A weighted sum of losses."""

    def __init__(self, terms: list[tuple[float, Loss]]) -> None:
        self.terms = terms

    def __iter__(self) -> Iterator[tuple[float, Loss]]:
        return iter(self.terms)

    def __repr__(self) -> str:
        return " + ".join(repr(loss) if c == 1 else f"{c:g} * {loss!r}" for c, loss in self)
