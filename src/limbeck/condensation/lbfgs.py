r"""L-BFGS as an update of the loop, for few parameters and steps on all inputs at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.storage.files import copy_into
from limbeck.training.objective import Objective, Plan
from limbeck.training.update import Progress, Tensors

MEMORY = 20  # past steps that give the curvature
LARGEST_MOVE = 1.0  # root mean square of a step: parameters are in units of deviations


class LBFGS:
    r"""Limited-memory BFGS with backtracking; every step needs all inputs, in any order."""

    compilable = False

    def bind(self, objective: Objective, steps: int) -> None:
        self.objective = objective
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        if not self.parameters:
            received = "no parameters that require gradients"
            raise ArgumentError("student", received, "a trainable module")
        first = self.parameters[0]
        size = sum(p.numel() for p in self.parameters)
        self.progress = Progress(len(objective.terms), first.device, first.dtype)
        wide: dict[str, Any] = {"dtype": torch.float64, "device": first.device}
        # differences of parameters and of gradients, the newest last; and how many there are
        self._moves, self._slopes = torch.zeros(2, MEMORY, size, **wide)
        self._known = torch.zeros(1, dtype=torch.int64)
        # the means of terms and of the total, and the gradient where the student is; NaN if unknown
        self._here = torch.full((len(objective.terms) + 1 + size,), math.nan, **wide)

    def step(self, plan: Plan, traced: bool) -> None:
        progress, x = self.progress, self._read()
        if self._here[0].isnan():
            self._here = self._evaluate(plan)
        means, gradient = self._here.split([len(progress.last), len(x)])
        norm = gradient.norm()
        good = progress.finite & norm.isfinite() & means.isfinite().all()
        progress.last.copy_(means.to(progress.last))
        progress.norm.copy_(norm[None].to(progress.norm))
        progress.sums.add_(torch.where(good, means, 0.0))
        progress.done.add_(good.double())
        progress.finite.copy_(good)
        if good and not self._search(plan, x, means[-1], gradient) and self._known:
            self._known.zero_()  # the curvature misleads: begin again along the gradient
            self._search(plan, x, means[-1], gradient)

    def _search(self, plan: Plan, x: Tensor, value: Tensor, gradient: Tensor) -> bool:
        r"""Move to a lower value along the direction; False, and back at x, if there is none."""
        direction = self._direction(gradient)
        slope = float(gradient @ direction)
        length = float(direction.norm()) / math.sqrt(len(x))
        if not slope < 0 or not math.isfinite(length):
            return False
        size = min(1.0, LARGEST_MOVE / length)
        for _ in range(20):
            self._write(x + size * direction)
            here = self._evaluate(plan)
            if here[-len(x) - 1] <= value + 1e-4 * size * slope:
                self._remember(size * direction, here[-len(x) :] - gradient)
                self._here = here
                return True
            size *= 0.3
        self._write(x)
        return False

    def _direction(self, gradient: Tensor) -> Tensor:
        r"""−H⁻¹g by the two-loop recursion; without any past, a gradient step of moderate size."""
        count = int(self._known)
        q = -gradient
        if not count:
            return q * min(1.0, 0.3 * math.sqrt(len(q)) / max(float(q.norm()), 1e-300))
        pairs = list(zip(self._moves[-count:], self._slopes[-count:], strict=True))
        factors = []
        for move, change in reversed(pairs):
            factor = (move @ q) / (move @ change)
            q = q - factor * change
            factors.append(factor)
        move, change = pairs[-1]
        q = q * (move @ change) / (change @ change)
        for (move, change), factor in zip(pairs, reversed(factors), strict=True):
            q = q + move * (factor - (change @ q) / (move @ change))
        return q

    def _remember(self, move: Tensor, change: Tensor) -> None:
        if float(move @ change) > 1e-10 * float(change @ change):
            for history, new in ((self._moves, move), (self._slopes, change)):
                history.copy_(torch.cat([history[1:], new[None]]))
            self._known.add_(1).clamp_(max=MEMORY)

    def _evaluate(self, plan: Plan) -> Tensor:
        r"""The mean of each term and of the total, and the gradient, in one row."""
        with torch.enable_grad():
            terms = self.objective(plan)
            means = [term.mean() for term in (*terms, self.objective.total(terms))]
            slopes = torch.autograd.grad(means[-1], self.parameters, materialize_grads=True)
        return torch.cat([part.detach().flatten().double() for part in (*means, *slopes)])

    def _read(self) -> Tensor:
        return torch.cat([p.detach().flatten().double() for p in self.parameters])

    @torch.no_grad()
    def _write(self, flat: Tensor) -> None:
        parts = flat.split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.copy_(part.reshape(p.shape))

    def same_until(self, done: int, total: int) -> bool:
        return True

    def tensors(self) -> Tensors:
        own = {name: getattr(self, f"_{name}") for name in ("moves", "slopes", "known", "here")}
        return {f"progress.{name}": t for name, t in self.progress.tensors().items()} | own

    def load(self, tensors: Tensors, path: Path) -> None:
        copy_into(self.tensors(), tensors, path)
