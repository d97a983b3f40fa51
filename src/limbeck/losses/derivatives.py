r"""Losses on input derivatives of student and teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from limbeck.arguments import Choice, Count, UserObject, checked_arguments, choice
from limbeck.arrays import Batch, X, as_numbers, floats
from limbeck.errors import ArgumentError
from limbeck.evaluation import View
from limbeck.losses.base import Drawn, Draws, Loss, Probe


class derivative_error(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""Square error between the derivatives of all outputs with respect to the inputs.

    * domain "log", weight "uniform" (chapter 2): 1/(2I) Σ_i ‖∂log f_i − ∂log t_i‖²;
    * domain "log", weight "teacher" (chapter 3): ½ Σ_i t_i ‖∂log f_i − ∂log t_i‖², whose
      gradient t_i ∂log f_i − ∂t_i is affine in the targets: exact with one-draw teachers;
    * domain "plain": the same without the logarithms.

    A model with one output is the probability of class 1, and has two log derivatives.

    Arguments:
        domain: Of log probabilities ("log") or of the outputs ("plain"). Default: "log".
        weight: "uniform", or "teacher" for the teacher's probabilities. Default: "uniform".
        projections: Number k of random projections, with the same expectation as the sum over
            outputs, at a cost that does not grow with I. Default: None, all outputs.
    """

    differentiates = True

    @checked_arguments
    def __init__(
        self, domain: Annotated[str, Choice("log", "plain")] = "log",
        weight: Annotated[str, Choice("uniform", "teacher")] = "uniform",
        projections: Count | None = None,
    ) -> None:  # fmt: skip
        self.domain, self.weight, self.projections = domain, weight, projections
        self.requires = frozenset({"derivatives"} | ({"values"} if weight == "teacher" else set()))
        self.needs = "probabilities" if domain == "log" or weight == "teacher" else ""
        self.compares = "classes" if domain == "log" else "values"
        if (domain, weight) == ("plain", "teacher"):
            self.bias = "the loss contains products of the targets"
        elif (domain, weight) == ("log", "uniform"):
            self.bias = "log derivatives with equal weights are not averages over draws; "
            self.bias += 'weight="teacher" makes the gradient affine in the targets'

    def draw(self, batch: Draws) -> Drawn:
        if self.projections is None:
            return None
        return batch.signs(self.projections, batch.n, batch.outputs, batch.generator)

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        if self.projections is not None:
            assert isinstance(drawn, Tensor)  # by draw
            cotangents, target = teacher.projection(self.domain, self.weight, drawn)
            residual = student.projected(self.domain, cotangents) - target  # (n, k, D)
            return residual.square().sum((1, 2)) / (2 * self.projections)
        residual = student.derivatives(self.domain) - teacher.derivatives(self.domain)  # (n, I, D)
        squares = residual.square().sum(2)
        if self.weight == "teacher":
            return (teacher.probabilities() * squares).sum(1) / 2
        return squares.mean(1) / 2


class directional_error(Loss):  # noqa: N801
    r"""Square error of derivatives along given directions, 1/(2I) Σ_i (v·∂f_i − target_i)².

    Zero targets along the tangents of transformations are tangent prop (Simard et al. 1992);
    zero targets along random directions are the contractive penalty (Rifai et al. 2011), since
    the mean of (v·∂f)² over standard normal v is ‖∂f‖².

    Arguments:
        directions: A tensor shaped like one input, or (m, ...) for the mean over m directions; a
            function of x that returns directions (n, ...); or "random".
        targets: "teacher" for the teacher's derivatives along the same directions, or a number
            or tensor that can be broadcast to (n, I). Default: "teacher".
        domain: Of log probabilities ("log") or of the outputs ("plain"). Default: "plain".
    """

    differentiates = True
    storable = False  # directions may change from one visit to the next

    @checked_arguments
    def __init__(
        self,
        directions: UserObject[Tensor | Callable[[X], X] | str],
        targets: UserObject[float | Tensor | str] = "teacher",
        domain: Annotated[str, Choice("log", "plain")] = "plain",
    ) -> None:
        if isinstance(directions, str):
            choice("directions", directions, ("random",))
        if isinstance(targets, str):
            choice("targets", targets, ("teacher",))
        if isinstance(directions, Tensor):
            as_numbers(directions, "directions")
        self.directions, self.targets, self.domain = directions, targets, domain
        from_teacher = isinstance(targets, str)
        self.compares = ("classes" if domain == "log" else "values") if from_teacher else ""
        self.requires = frozenset({"derivatives"} if from_teacher else ())
        self.needs = "probabilities" if domain == "log" else ""
        if domain == "log" and from_teacher:
            self.bias = "log derivatives are not averages over draws"

    def bind(self, probe: Probe) -> None:
        super().bind(probe)
        if not isinstance(self.directions, str):
            x = probe.batch.x
            for v in self._all_directions(x, None):
                for name in ({""} if isinstance(v, Tensor) else v.keys()) - floats(x).keys():
                    raise ArgumentError.unknown("directions", name, floats(x))

    def draw(self, batch: Draws) -> Drawn:
        if not isinstance(self.directions, str):
            return None
        empty = {n: x.new_empty(batch.n, *x.shape[1:]) for n, x in floats(batch.like).items()}
        return {name: x.normal_(generator=batch.generator) for name, x in empty.items()}

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        errors = []
        for v in self._all_directions(batch.x, drawn):
            derivative, targets = student.directional(self.domain, v), self.targets
            if isinstance(targets, str):
                targets = teacher.directional(self.domain, v)
            errors.append((derivative - targets).square().mean(1))
        return torch.stack(errors).mean(0) / 2

    def _all_directions(self, x: X, drawn: Drawn) -> list[X]:
        if isinstance(self.directions, str):
            assert drawn is not None  # by draw
            return [drawn]
        if not isinstance(self.directions, Tensor):
            return [self.directions(x)]
        if not isinstance(x, Tensor):
            raise ArgumentError("directions", "a tensor where x is a dict", "a function of x")
        v = self.directions.to(device=x.device, dtype=x.dtype)
        if v.shape == x.shape[1:]:
            return [v]
        if v.shape[1:] == x.shape[1:]:
            return list(v)
        expected = f"{tuple(x.shape[1:])}, or with a number before it"
        raise ArgumentError("directions", f"shape {tuple(v.shape)}", expected)
