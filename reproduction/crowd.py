r"""Several students of one shape trained at once, so that the teacher is asked once for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.losses.base import Draws, Loss, Probe

__all__ = ["Average", "crowd_error"]


class crowd_error(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""Each member's own loss, summed over the members of a BatchedMLP, who share no parameters.

    A member's loss is −T² Σ_i t_i log f_i at temperature T, plus `derivatives` times the square
    error of the derivatives of one random combination of the log probabilities, plus `labels`
    times −log f_y.

    Arguments:
        temperature: T.
        derivatives: The weight of the derivatives; 0 asks for none.
        labels: The weight of the true labels; 0 needs none.
    """

    name = "crowd_error"
    needs = ""

    def __init__(
        self, temperature: float = 1.0, derivatives: float = 0.0, labels: float = 0.0
    ) -> None:
        self.temperature, self.derivatives, self.labels = temperature, derivatives, labels
        self.requires = frozenset({"values"} | ({"derivatives"} if derivatives else set()))
        self.domain, self.differentiates = "log", bool(derivatives)
        if temperature != 1 or derivatives:
            self.bias = "temperatures and log derivatives are not averages over draws"
        self.storable = not derivatives
        self.outputs = 0

    def bind(self, probe: Probe) -> nn.Module | None:
        self.outputs = probe.teacher.log_probabilities().shape[1]
        logits: Any = probe.student
        if logits.raw().ndim != 3 or logits.raw().shape[2] != self.outputs:
            received = f"outputs of shape {tuple(logits.raw().shape)}"
            raise ArgumentError("student", received, f"(n, members, {self.outputs})")
        if self.labels and probe.batch.y is None:
            raise ArgumentError("inputs", "no labels", "inputs with labels, or labels=0")
        return None

    def draw(self, batch: Draws) -> Any:
        if not self.derivatives:
            return None
        return batch.signs(1, batch.n, self.outputs, batch.generator)

    def __call__(self, student: Any, teacher: Any, batch: Batch, drawn: Any = None) -> Tensor:
        derivative: Tensor | float = 0.0
        if self.derivatives:
            logs, derivative = self._derivative(student, teacher, batch, drawn)
        else:
            logs = F.log_softmax(student.raw(), 2)  # (n, members, I)
        T = self.temperature
        targets = teacher.probabilities(T).unsqueeze(1)
        soft = -(T**2) * (targets * F.log_softmax(logs / T, 2)).sum((1, 2))
        total = soft + self.derivatives * derivative
        if self.labels:
            assert batch.y is not None
            right = logs.gather(2, batch.y[:, None, None].expand(-1, logs.shape[1], 1))
            total = total - self.labels * right.sum((1, 2))
        return total

    def _derivative(
        self, student: Any, teacher: Any, batch: Batch, drawn: Any
    ) -> tuple[Tensor, Tensor]:
        r"""Log probabilities (n, members, I), and the derivatives' square error (n,)."""
        cotangents, target = teacher.projection("log", "uniform", drawn)  # (1, n, I), (n, 1, D)
        members = student.raw().shape[1]
        x: Any = batch.x
        wide = x.unsqueeze(1).expand(-1, members, -1)  # each member's own copy
        found, pull = torch.func.vjp(lambda w: F.log_softmax(student.model(w), 2), wide)[:2]
        (own,) = pull(cotangents[0].unsqueeze(1).expand_as(found))
        return found, (own - target).square().sum((1, 2)) / 2

    def __repr__(self) -> str:
        return (
            f"crowd_error(temperature={self.temperature:g}, derivatives={self.derivatives:g}, "
            f"labels={self.labels:g})"
        )


class Average:
    r"""A running average of parameters, with a memory of so many looks.

    Arguments:
        parameters: What is averaged; they go on being changed in place.
        memory: Looks after which an old value counts e times less.
    """

    def __init__(self, parameters: Iterable[Tensor], memory: float) -> None:
        self.parameters = [p.detach() for p in parameters]
        self.means = [p.clone() for p in self.parameters]
        self.memory, self.looks = max(1.0, memory), 0

    def update(self) -> None:
        r"""Take the present values in; the first ones are forgotten as if there had been none."""
        self.looks += 1
        share = 1 / min(float(self.looks), self.memory)
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            mean.lerp_(parameter, share)

    def into(self, parameters: Iterable[Tensor]) -> None:
        r"""Copy the averages into other parameters of the same shapes."""
        with torch.no_grad():
            for place, mean in zip(parameters, self.means, strict=True):
                place.copy_(mean)
