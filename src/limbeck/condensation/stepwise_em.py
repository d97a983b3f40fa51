r"""Stepwise EM: a mixture of Gaussians fitted to a stream, minibatch by minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import as_batch
from limbeck.distributions import gaussians
from limbeck.distributions.gaussians import Moments, expectations, maximised
from limbeck.errors import ArgumentError, shown
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mixture_em import Ascent, Samples, parameters_of, started, troubles
from limbeck.storage.files import copy_into
from limbeck.training.objective import Objective, Plan
from limbeck.training.schedules import Schedule, as_schedule, same_until
from limbeck.training.update import Progress


class StepwiseEM:
    r"""Online EM (Cappé and Moulines, 2009) as an update of the loop.

    At each step the statistics of the E step on the minibatch are mixed into a running average
    with weight γ_t, and the M step uses that average. It can only minimise `limbeck.losses.kl`.
    Several mixtures are fitted in parallel, in float64. The student is the one with the highest
    likelihood of fresh inputs so far: each minibatch is evaluated before it is used for fitting.
    The best start takes part as it was, so that the student does not become worse than it.

    Arguments:
        schedule: γ as a function of (steps done, total), as `limbeck.schedules.RobbinsMonro()`, or
            by name. Default: "linear", from 1 to 0.
        floor: The least variance of a component, in units of the inputs' variance. Default: 1e-4.
        restarts: Mixtures that start by k-means++; 0 continues from the student. Default: 10.
        start: Number of inputs that mixtures start from. Default: 30 · components ·
            (variables + 1), at least 100.
        average: The fraction of the steps, at the end, over which statistics are averaged once
            more, which reduces noise; 0 for none. Default: 0.5.
        window: γ is at most the batch size divided by this number; 0 means no such limit.
            Default: a tenth of the inputs so far, from 10 to 100 · components · (variables + 1).
    """

    compilable = True

    @arg.checked_arguments
    def __init__(
        self,
        schedule: arg.UserObject[str | Schedule] = "linear",
        *,
        floor: arg.InnerFraction = 1e-4,
        restarts: arg.CountFromZero = 10,
        start: arg.Count | arg.Auto = "auto",
        average: arg.Fraction = 0.5,
        window: arg.FromZero | arg.Auto = "auto",
    ) -> None:
        self.schedule = as_schedule(schedule)
        self.floor, self.restarts, self.average = floor, restarts, average
        self.start: Any = start
        self.window: Any = window
        names = ("floor", "restarts", "start", "average", "window")
        # the settings, as checkpoints compare them
        self.param_groups: list[dict[str, Any]] = [{name: getattr(self, name) for name in names}]

    def bind(self, objective: Objective, steps: int) -> None:
        student = objective.student
        if not isinstance(student, GaussianMixture):
            received = f"a {type(student).__name__}, for {type(self).__name__}"
            raise ArgumentError("student", received, "a GaussianMixture")
        if [term.name for term in objective.terms] != ["kl"]:
            raise ArgumentError("loss", shown(objective.loss), "limbeck.losses.kl(), alone, for EM")
        self.objective, self.student, self.steps = objective, student, steps
        self.kind, self.matrices = student.covariance, student.matrices
        # on a GPU, eigenvalues make the CPU wait, which a CUDA graph cannot hold
        self.compilable = not (self.matrices and objective.device.type == "cuda")
        self.progress = Progress(1, objective.device, student.means.dtype)
        self._leaves = {name: p.detach() for name, p in student.named_parameters()}
        size = student.components * (student.dim + 1)
        self._windows = (10 * size, 100 * size) if self.window == "auto" else (self.window,) * 2
        self._begin(max(100, 30 * size) if self.start == "auto" else self.start)

    @torch.no_grad()
    def _begin(self, n: int) -> None:
        r"""The state that steps change, from some inputs, without advancing their source."""
        batch = as_batch(self.objective.inputs.probe(n))
        samples = Samples.of(self.student, batch.x, batch.weight, "inputs")
        least = gaussians.least_variances(samples.variance, self.floor, self.kind)
        generator = torch.Generator().manual_seed(self.objective.generator.initial_seed())
        runs = []
        for _ in range(self.restarts):
            first = started(samples, self.student.components, self.kind, generator)
            runs.append(Ascent(samples, first, self.kind, least, iterations=10, tolerance=0.0))
        runs.sort(key=lambda run: run.history[-1])
        starts = [run.moments for run in runs] or [self.student.moments(samples.centre)]
        starts.append(starts[-1])  # which stays as it is
        self._moments = Moments(*map(torch.stack, zip(*starts, strict=True)))
        start = self._state_of(self._moments)
        self._state, self._average = _each(torch.clone, start), _each(torch.clone, start)
        self._score = torch.zeros_like(self._moments.weights[:, 0])
        self._best = _each(lambda tensor: tensor[-1:].clone(), self._moments)
        self._fixed = {"centre": samples.centre, "least": least}
        self._write(torch.ones_like(self.progress.finite))

    @torch.no_grad()
    def step(self, plan: Plan, traced: bool) -> None:
        progress, batch = self.progress, self.objective.batch(plan)
        x = self.student.rows(batch.x).double() - self._fixed["centre"]
        weight = None if batch.weight is None else batch.weight.double()
        losses, goal = self._expect(x, weight)  # of all mixtures, the student's at the end
        goal = _each(lambda old, new: torch.cat([new[:-1], old[-1:]]), self._state, goal)
        good = progress.finite & losses.isfinite().all()
        t = progress.done[0]
        rate = self.schedule(t, self.steps).clamp(0, 1)
        if self.window:
            rate = rate.clamp_max(len(x) / (len(x) * (t + 1) / 10).clamp(*self._windows))
        state = _each(lambda old, new: (1 - rate) * old + rate * new, self._state, goal)
        moments = self._moments_of(state, self._moments)
        late = t - self._averaged_from(self.steps)
        part = torch.where(late > 0, 1 / (late + 1), 1.0)
        average = _each(lambda old, new: (1 - part) * old + part * new, self._average, state)
        score = self._score + (losses[:-1] - self._score) * 2 / (t + 2)  # later ones count more
        best = score.argmin().reshape(1)
        chosen = [_each(lambda field: field.index_select(0, best), m) for m in (average, moments)]
        changed = _each(lambda old, new: (new - old).square().sum().reshape(1), self._state, goal)
        means = torch.stack([losses[-1], self.objective.coefficients[0] * losses[-1]])
        targets = (*self._state, *self._moments, *self._average, self._score, *self._best)
        values = (*state, *moments, *average, score, *self._moments_of(*chosen))
        for target, value in zip(targets, values, strict=True):
            target.copy_(torch.where(good, value, target))
        self._write(good)
        progress.record(good, means, torch.cat(changed).sum().sqrt())

    def same_until(self, done: int, total: int) -> bool:
        starts = {self._averaged_from(steps) for steps in (self.steps, total)}
        averaged_alike = len(starts) == 1 or done <= min(starts) + 1
        return averaged_alike and same_until(self.schedule, done, self.steps, total)

    def _averaged_from(self, steps: int) -> int:
        r"""The last step, from 0, before the average over steps begins."""
        return math.floor(steps * (1 - self.average))

    def _expect(self, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Any]:
        r"""The mean loss (R + 1,) of all mixtures and the student, and the mixtures' statistics."""
        mixtures = _each(lambda *pair: torch.cat(pair), self._moments, self._best)
        log_density, sums = expectations(x, weight, mixtures, self.matrices)
        losses = -log_density if weight is None else -log_density * weight
        return losses.mean(-1), _each(lambda field: field[:-1] / len(x), sums)

    def _state_of(self, moments: Moments) -> Any:
        return gaussians.expected_statistics(moments, self.matrices)

    def _moments_of(self, state: Any, before: Moments) -> Moments:
        return maximised(state, before, self.kind, self._fixed["least"])

    def _write(self, good: Tensor) -> None:
        weights, means, covariances = _each(lambda field: field[0], self._best)
        moments = Moments(weights, means + self._fixed["centre"], covariances)
        for name, value in parameters_of(moments, self.kind).items():
            leaf = self._leaves[name]
            leaf.copy_(torch.where(good, value.to(leaf.dtype), leaf))

    @property
    def reasons(self) -> tuple[str, ...]:
        r"""Problems of the student's components, in words; none if all is well."""
        moments = _each(lambda field: field[0], self._best)
        shares = moments.weights / 1e-6  # a component of a smaller weight has died out
        return troubles(moments, self._fixed["least"], self.matrices, shares)

    def tensors(self) -> dict[str, Tensor]:
        mixtures = {"moments": self._moments, "state": self._state, "average": self._average}
        groups = {k: v._asdict() for k, v in (mixtures | {"found": self._best}).items()}
        groups |= {"progress": self.progress.tensors(), "fixed": self._fixed}
        named = {f"{g}.{name}": t for g, group in groups.items() for name, t in group.items()}
        return named | {"score": self._score}

    def load(self, tensors: arg.UserObject[dict[str, Tensor]], path: Path) -> None:
        copy_into(self.tensors(), tensors, path)


def _each(function: Callable[..., Tensor], *tuples: Any) -> Any:
    return type(tuples[0])(*(function(*fields) for fields in zip(*tuples, strict=True)))
