r"""Hints: a hidden layer of the student learns to predict one of the teacher's (FitNets)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.evaluation import View
from limbeck.losses.base import Loss, Probe

__all__ = ["hints"]


class hints(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""½‖r(h_student) − h_teacher‖², with a regressor r that is trained along and then dropped.

    Arguments:
        teacher_layer: The name of a submodule of the teacher, as in `named_modules()`.
        student_layer: The same of the student.
        regressor: A module from the student's to the teacher's hidden units; by default one
            linear layer of the right size.
    """

    name = "hints"
    asks = frozenset({"hidden"})
    affine = True

    def __init__(
        self, teacher_layer: str, student_layer: str, regressor: nn.Module | None = None
    ) -> None:
        self.teacher_layer, self.student_layer = teacher_layer, student_layer
        self.given = self.regressor = regressor

    def bind(self, probe: Probe) -> nn.Module | None:
        target = probe.teacher.hidden(self.teacher_layer).flatten(1)
        source = probe.student.hidden(self.student_layer).flatten(1)
        own = nn.Linear(source.shape[1], target.shape[1]) if self.given is None else self.given
        self.regressor = own
        self.regressor.to(device=source.device, dtype=source.dtype)
        try:
            found = self.regressor(source).flatten(1)
        except RuntimeError as error:
            raise ArgumentError(
                "regressor",
                f"a module that fails on the units of {self.student_layer!r}: {error}",
                f"one that takes {source.shape[1]} inputs",
            ) from error
        if found.shape != target.shape:
            raise ArgumentError(
                "regressor",
                f"{found.shape[1]} outputs",
                f"{target.shape[1]} outputs, the units of {self.teacher_layer!r}",
            )
        return self.regressor

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Any = None) -> Tensor:
        assert self.regressor is not None  # made by bind
        predicted = self.regressor(student.hidden(self.student_layer).flatten(1)).flatten(1)
        return (predicted - teacher.hidden(self.teacher_layer).flatten(1)).square().sum(1) / 2

    def __repr__(self) -> str:
        return f"hints({self.teacher_layer!r}, {self.student_layer!r})"
