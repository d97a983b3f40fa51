r"""Learning-rate schedules: a factor as a function of the steps done, in tensors or numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.errors import ArgumentError

__all__ = ["Constant", "Cosine", "Linear", "Logarithmic", "RobbinsMonro", "Schedule"]

Schedule = Callable[[Tensor, int], Tensor]  # the learning rate's factor after t of `total` steps


@dataclass(frozen=True)
class Constant:
    r"""No decay."""

    def __call__(self, t: Tensor, total: int) -> Tensor:
        return torch.ones_like(t)


@dataclass(frozen=True)
class Linear:
    r"""From 1 to 0, in equal steps."""

    def __call__(self, t: Tensor, total: int) -> Tensor:
        return (1 - t / total).clamp_min(0)


@arg.checked_arguments
@dataclass(frozen=True)
class Logarithmic:
    r"""From 1 to `final`, in equal ratios."""

    final: arg.Share = 1e-3

    def __call__(self, t: Tensor, total: int) -> Tensor:
        return torch.exp(math.log(self.final) * (t / total).clamp_max(1))


@arg.checked_arguments
@dataclass(frozen=True)
class Cosine:
    r"""Half a cosine from 1 to 0, after a linear warm-up over a fraction of the steps."""

    warmup: arg.Remainder = 0.0

    def __call__(self, t: Tensor, total: int) -> Tensor:
        start = self.warmup * total
        fall = ((t - start) / (total - start)).clamp(0, 1)
        rise = ((t + 1) / start).clamp_max(1) if start else torch.ones_like(t)
        return rise * (1 + torch.cos(math.pi * fall)) / 2


@arg.checked_arguments
@dataclass(frozen=True)
class RobbinsMonro:
    r"""(t0 + t)^−β, scaled to start at 1; for ½ < β ≤ 1 it satisfies Robbins and Monro."""

    t0: arg.Positive = 1.0
    beta: arg.Share = 0.6

    def __call__(self, t: Tensor, total: int) -> Tensor:
        return (1 + t / self.t0) ** (-self.beta)


NAMES: dict[str, Callable[[], Schedule]] = {
    "constant": Constant, "linear": Linear, "logarithmic": Logarithmic, "cosine": Cosine,
    "robbins-monro": RobbinsMonro,
}  # fmt: skip


@arg.checked_arguments
def as_schedule(schedule: arg.Text | arg.Function[Schedule] | None) -> Schedule:
    r"""A schedule by name or as an object; None is constant."""
    if isinstance(schedule, str):
        if schedule not in NAMES:
            raise ArgumentError.unknown("schedule", schedule, NAMES)
        return NAMES[schedule]()
    return Constant() if schedule is None else schedule


def same_until(schedule: Schedule, done: int, total: int, other: int) -> bool:
    r"""Whether calls give the same first `done` factors in runs of `total` and of `other` steps."""
    sample = torch.linspace(0, done - 1, min(done, 10_000), dtype=torch.float64).round()
    pairs = ((float(schedule(t, total)), float(schedule(t, other))) for t in sample)
    return all(math.isclose(one, two, rel_tol=1e-9) for one, two in pairs)
