r"""What is compressed: a teacher, rows to query it about, and its targets at them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck import losses
from limbeck.arrays import X, join, map_tensors, part_of, rows
from limbeck.compression.generators import fresh
from limbeck.compression.rows import RowFormat
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.teachers.folds import mix_labels, out_of_fold
from limbeck.teachers.keys import count
from limbeck.teachers.networks import NetworkTeacher
from limbeck.teachers.query import Derivatives, Query, safe_scale
from limbeck.teachers.row_teacher import RowTeacher
from limbeck.teachers.stored import Stored

__all__ = ["Pool", "Problem", "default_loss", "split", "take"]

MIN_HELD_OUT, MAX_HELD_OUT = 20, 10_000  # rows to compare students on; fewer are not held out


@dataclass
class Pool:
    r"""Inputs, the user's rows first, with the teacher's targets (n, K) and derivatives there."""

    x: X
    targets: np.ndarray
    derivatives: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Problem:
    r"""A teacher and the rows that it is queried about.

    Students are compared at rows held out and at these mixed with their neighbours, since a teacher
    may know the rows themselves by heart.
    """

    teacher: RowTeacher
    format: RowFormat
    x: X  # the rows to learn from
    index: Tensor  # their numbers among the user's rows
    loss: Loss  # of students
    query: Query
    given: Any = None  # the rows to learn from as the user has them; None makes them of x
    held_out: X | None = None  # None where there are too few
    held_out_given: Any = None  # the rows held out as the user has them
    labels: np.ndarray | None = None  # of the rows to learn from, where they are used
    label_weight: float = 0.0
    folds: int | None = None  # for targets out of fold
    fixed_targets: np.ndarray | None = None  # in place of the teacher's
    seed: int = 0  # decides which rows are together in a fold
    keeps_answers: bool = False  # on disk, so that even a torch teacher is queried beforehand
    _known: dict[Any, Any] = field(default_factory=dict)

    @property
    def predictor(self) -> RowTeacher:
        r"""The teacher, by its former name."""
        return self.teacher

    @property
    def live(self) -> bool:
        r"""Whether the loop can query the teacher itself, at fresh inputs each step."""
        return self.differentiable and not self.keeps_answers

    @property
    def differentiable(self) -> bool:
        r"""Whether the targets are a torch module's alone, which looks up no whole numbers."""
        codes = self.format.whole and getattr(self.teacher, "looks_up", False)
        alone = self.labels is None and self.fixed_targets is None
        module = self.teacher.module is not None
        return module and alone and isinstance(self.x, Tensor) and not codes

    def ask(self, X: object) -> np.ndarray:
        r"""The teacher's targets (n, K) at rows."""
        return self.query.label(self.teacher, X)

    def targets(self) -> np.ndarray:
        r"""The targets (n, K) at the rows to learn from."""
        if self.fixed_targets is not None:
            return self.fixed_targets
        if "targets" not in self._known:
            given = self.format.decode(self.x) if self.given is None else self.given
            if self.folds is None:
                targets = self.ask(given)
            else:
                options = (self.labels, self.folds, self.seed, self.query.progress)
                targets = out_of_fold(self.teacher, given, *options)
            if self.labels is not None and self.label_weight > 0:
                targets = mix_labels(targets, self.labels, self.label_weight, self.teacher.classes)
            self._known["targets"] = targets
        known: np.ndarray = self._known["targets"]
        return known

    def held_out_targets(self) -> np.ndarray:
        r"""The teacher's targets at the inputs held out."""
        if "held out" not in self._known:
            assert self.held_out is not None
            n = count(self.held_out_given)
            mixed = part_of(self.held_out, n, rows(self.held_out) - n)
            answers = [self.ask(self.held_out_given), self.ask(self.format.decode(mixed))]
            self._known["held out"] = np.concatenate(answers)
        known: np.ndarray = self._known["held out"]
        return known

    def pool(self, source: str | Inputs, size: int, seed: int) -> Pool:
        r"""The user's rows, and generated ones to make up the size, with their targets."""
        missing = max(0, size - rows(self.x)) if source != "data" else 0
        key = (source, missing, seed)
        if key not in self._known:
            x, targets = self.x, self.targets()
            if missing:
                more = fresh(source, self.format, self.x, missing, seed, self.query.progress)
                x = join([x, more])
                targets = np.concatenate([targets, self.ask(self.format.decode(more))])
            self._known[key] = Pool(x, targets)
        pool: Pool = self._known[key]
        return pool

    def stored(self, pool: Pool, shift: Tensor, scale: Tensor) -> Stored:
        r"""The pool's targets t as a teacher that looks up (t − shift) / scale."""
        values = torch.as_tensor(pool.targets, dtype=torch.float32)
        derivatives = {
            domain: self._derivatives(pool, domain) / safe_scale(scale)[:, None]
            for domain in {term.domain for _, term in self.loss if "derivatives" in term.asks}
        }
        return Stored((values - shift) / safe_scale(scale), self.form, derivatives=derivatives)

    @property
    def form(self) -> str:
        r"""The form of the targets, as losses see them."""
        return "probabilities" if self.teacher.task == "classification" else "values"

    def _derivatives(self, pool: Pool, domain: str) -> Tensor:
        r"""Derivatives (n, K, D) of the teacher's outputs at a pool's inputs."""
        assert isinstance(self.teacher, NetworkTeacher)
        assert isinstance(pool.x, Tensor)
        teacher = Derivatives(self.teacher, domain, pool.x[0].numel())
        teacher.check_size(len(pool.x))
        if domain not in pool.derivatives:
            answers = self.query.label(teacher, self.format.decode(pool.x))
            shape = (len(pool.x), self.teacher.outputs, teacher.inputs)
            pool.derivatives[domain] = torch.as_tensor(answers, dtype=torch.float32).reshape(shape)
        return pool.derivatives[domain]

    def unit(self) -> tuple[Tensor, Tensor]:
        r"""Mean and standard deviation of a regression's targets, (K,); else zeros and ones."""
        targets = torch.as_tensor(self.targets(), dtype=torch.float32)
        if self.teacher.task != "regression":
            return torch.zeros(targets.shape[1]), torch.ones(targets.shape[1])
        return targets.mean(0), targets.std(0, unbiased=False)


def default_loss(task: str) -> Loss:
    r"""The loss of students by default."""
    if task == "classification":
        return losses.cross_entropy()
    return losses.multilabel_cross_entropy() if task == "multilabel" else losses.square_error()


def split(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor | None]:
    r"""Numbers of the rows to learn from, and of those held out if these are enough."""
    held_out = min(MAX_HELD_OUT, round(fraction * n))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    if held_out < MIN_HELD_OUT:
        return torch.arange(n), None
    return order[held_out:].sort().values, order[:held_out].sort().values


def take(x: X, index: Tensor) -> X:
    r"""Some rows."""
    part: X = map_tensors(lambda t: t[index], x)
    return part
