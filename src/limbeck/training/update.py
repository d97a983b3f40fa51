r"""Updates: how a student changes at a step. Gradient descent is one; EM will be another."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import functional_call, grad

from limbeck.errors import ArgumentError
from limbeck.storage.files import copy_into
from limbeck.training import optimizers
from limbeck.training.objective import Objective, Plan
from limbeck.training.schedules import Schedule, as_schedule, same_until

__all__ = ["GradientUpdate", "Progress", "Update"]


class Progress:
    r"""What an update writes down at each step, as tensors that never move.

    Attributes:
        done: The steps that changed the student, (1,) float64; it also drives schedules.
        alive: Whether every loss and gradient so far was finite, 0-d bool. Once it is false the
            student stays as it was before the bad step.
        last: The mean of each loss term at the last step, then the total, (terms + 1,).
        sums: The same summed since it was last read.
        norm: The gradient's norm at the last step, (1,).

    None is 0-d float64: torch's compiler takes those for Python numbers and drops what is
    written to them.
    """

    def __init__(self, terms: int, device: torch.device, dtype: torch.dtype) -> None:
        self.done = torch.zeros(1, dtype=torch.float64, device=device)
        self.alive = torch.ones((), dtype=torch.bool, device=device)
        self.last = torch.zeros(terms + 1, dtype=dtype, device=device)
        self.sums = torch.zeros(terms + 1, dtype=torch.float64, device=device)
        self.norm = torch.zeros(1, dtype=dtype, device=device)

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))


class Update(Protocol):
    r"""A way to change the student at each step.

    Attributes:
        progress: Made by `bind`.
        whole: Whether `step` can be compiled whole; if not, `step` is used as it is.
    """

    progress: Progress
    whole: bool

    def bind(self, objective: Objective, steps: int) -> None:
        r"""Get ready for a run of that many steps."""

    def step(self, plan: Plan, traced: bool) -> None:
        r"""Change the student in place and write the progress down.

        Traced, it must be a function of tensors without any look at their values.
        """

    def same_until(self, done: int, total: int) -> bool:
        r"""Whether the first `done` steps would be the same in a run of `total` steps.

        A checkpoint is continued with another number of steps only if so. It may be left out by
        an update that does not know; then the number must stay the same.
        """

    def tensors(self) -> dict[str, Tensor]:
        r"""Everything that a checkpoint must hold beside the student, by name."""

    def load(self, tensors: dict[str, Tensor], path: Path) -> None:
        r"""Go on from what `tensors` gave, as it was read from a checkpoint at that path."""


class GradientUpdate:
    r"""Stochastic gradient descent by any torch optimizer.

    Arguments:
        optimizer: A name in `torch.optim`, in any case, or an instance with the student's
            parameters.
        schedule: A name, or a function of (steps done, total) that gives the factor on the
            learning rate.
        clip: The largest norm of the gradient, if it is to be clipped.
        options: Options of the optimizer by name, such as `lr=1e-3`.
    """

    def __init__(
        self,
        optimizer: str | torch.optim.Optimizer = "adam",
        schedule: str | Schedule | None = "cosine",
        *,
        clip: float | None = None,
        **options: Any,
    ) -> None:
        if clip is not None and not _above_zero(clip):
            raise ArgumentError("clip", repr(clip), "a number above zero, or None")
        rate = options.get("lr")
        if rate is not None and not (
            isinstance(rate, Tensor) or (_above_zero(rate) and math.isfinite(rate))
        ):
            raise ArgumentError("lr", repr(rate), "a finite number above zero")
        self.given, self.options, self.clip = optimizer, options, clip
        # over processes, if there are several: from gradients, means, buffers to their averages
        self.reduce: Callable[[Any, Any, Any], Any] | None = None
        self.schedule = as_schedule(schedule)

    def bind(self, objective: Objective, steps: int) -> None:
        self.objective, self.steps = objective, steps
        self.parameters: dict[str, Tensor] = {
            name: p for name, p in objective.named_parameters() if p.requires_grad
        }
        if not self.parameters:
            raise ArgumentError(
                "student", "no parameters that require gradients", "a trainable module"
            )
        if isinstance(self.given, torch.optim.Optimizer):
            held = {id(p) for group in self.given.param_groups for p in group["params"]}
            if along := [p for p in objective.extras.parameters() if id(p) not in held]:
                self.given.add_param_group({"params": along})
        self.optimizer = optimizers.make(self.given, self.parameters.values(), self.options)
        self.whole = optimizers.has_functional_form(self.optimizer)
        self._leaves = {name: p.detach() for name, p in self.parameters.items()}
        if self.whole:
            self._apply = optimizers.FunctionalOptimizer(
                self.optimizer, self.parameters, self._leaves
            )
        self._buffers = dict(objective.named_buffers())
        first = next(iter(self._leaves.values()))
        self.progress = Progress(len(objective.terms), first.device, first.dtype)

    def gradient(self, plan: Plan) -> tuple[dict[str, Tensor], Tensor]:
        r"""The gradient by name, and the mean of each term and of the total, (terms + 1,)."""
        gradients, means, _ = self._gradient(plan)
        return gradients, means

    def _gradient(self, plan: Plan) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        r"""The same, and the buffers as the step would leave them."""

        def mean_loss(leaves: dict[str, Tensor]) -> tuple[Tensor, Any]:
            buffers = {name: b.clone() for name, b in self._buffers.items()}
            found = functional_call(self.objective, {**leaves, **buffers}, (plan,))
            total = self.objective.total(found).mean()
            return total, (torch.stack([*(each.mean() for each in found), total]), buffers)

        gradients, (means, buffers) = grad(mean_loss, has_aux=True)(self._leaves)
        return gradients, means, buffers

    @torch.no_grad()
    def step(self, plan: Plan, traced: bool) -> None:
        progress = self.progress
        gradients, means, buffers = self._gradient(plan)
        if self.reduce is not None:
            gradients, means, buffers = self.reduce(gradients, means, buffers)
        norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        good = progress.alive & norm.isfinite() & means.isfinite().all()
        progress.last.copy_(means)
        progress.norm.copy_(norm[None])
        if traced:
            self._step_traced(gradients, norm, good)
            buffers = {n: torch.where(good, b, self._buffers[n]) for n, b in buffers.items()}
        elif good:
            self._step_eager(gradients, norm)
        if traced or good:
            for name, buffer in buffers.items():
                self._buffers[name].copy_(buffer)
        progress.sums.add_(torch.where(good, means.to(torch.float64), 0.0))
        progress.done.add_(good.to(torch.float64))
        progress.alive.copy_(good)

    def _step_traced(self, gradients: dict[str, Tensor], norm: Tensor, good: Tensor) -> None:
        r"""A bad step is one with zero gradients and a zero rate: nothing moves."""
        scale = torch.where(good, self._clipping(norm), 0.0)
        gradients = {name: torch.where(good, g, 0.0) for name, g in gradients.items()}
        if self.clip is not None:
            gradients = {name: g * scale for name, g in gradients.items()}
        factor = self.schedule(self.progress.done[0], self.steps) * good.to(torch.float64)
        self._apply(gradients, factor.to(norm.dtype))

    def _step_eager(self, gradients: dict[str, Tensor], norm: Tensor) -> None:
        if self.clip is not None:
            gradients = {name: g * self._clipping(norm) for name, g in gradients.items()}
        factor = float(self.schedule(self.progress.done[0].cpu(), self.steps))
        if self.whole:
            return self._apply(gradients, factor)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        for name, p in self.parameters.items():
            p.grad = gradients[name]
        try:
            self.optimizer.step()
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.optimizer.zero_grad()
        return None

    def same_until(self, done: int, total: int) -> bool:
        return same_until(self.schedule, done, self.steps, total)

    def _clipping(self, norm: Tensor) -> Tensor:
        return torch.ones_like(norm) if self.clip is None else (self.clip / norm).clamp_max(1)

    def tensors(self) -> dict[str, Tensor]:
        found = {f"progress.{name}": t for name, t in self.progress.tensors().items()}
        for holder, entries in self._holders().items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    found[f"{holder}.{key}"] = value
                elif isinstance(value, int | float) and not isinstance(value, bool):
                    dtype = torch.float64 if isinstance(value, float) else torch.int64
                    found[f"number.{holder}.{key}"] = torch.tensor(value, dtype=dtype)
        for name, extra in self.objective.extras.state_dict().items():
            found[f"extras.{name}"] = extra
        return found

    def load(self, tensors: dict[str, Tensor], path: Path) -> None:
        holders = self._holders()
        for full, value in tensors.items():
            holder, _, key = full.removeprefix("number.").rpartition(".")
            if holder not in holders:
                continue
            if full.startswith("number."):
                holders[holder][key] = value.item()
            else:  # many optimizers make their state at the first step only
                holders[holder].setdefault(key, value.to(self.progress.done.device, copy=True))
        copy_into(self.tensors(), tensors, path)

    def _holders(self) -> dict[str, dict[str, Any]]:
        r"""The dicts in which the optimizer keeps what changes from step to step, by name."""
        held = {f"optimizer.{n}": self.optimizer.state[p] for n, p in self.parameters.items()}
        groups = [] if self.whole else self.optimizer.param_groups  # some count their steps there
        return held | {f"group.{i}": group for i, group in enumerate(groups)}


def _above_zero(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0
