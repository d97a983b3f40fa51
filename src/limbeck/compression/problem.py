r"""What is to be compressed: a teacher, rows to ask it about, and its word on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck import losses
from limbeck.compression.data import Kind
from limbeck.compression.generators import fresh
from limbeck.core.batch import X, map_tensors, rows
from limbeck.core.loss import Loss
from limbeck.core.stored import Stored
from limbeck.inputs.join import join

__all__ = ["Pool", "Problem", "default_loss", "divisor", "split", "take"]

FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 10_000
r"""Rows held out to measure students by: at least, or none are; and at most."""


@dataclass
class Pool:
    r"""Inputs with the teacher's word on them.

    Attributes:
        x: The inputs: the user's rows first, then generated ones.
        targets: What the teacher says, (n, K), and labels where they are mixed in.
    """

    x: X
    targets: np.ndarray


@dataclass
class Problem:
    r"""A teacher and the rows it is asked about.

    Attributes:
        predictor: The teacher on arrays or frames.
        kind: What the rows are, and how tensors become what the teacher eats.
        x: The rows to learn from.
        index: Their numbers among the user's rows.
        held_out: Inputs to measure students by: rows held out, and these mixed with their
            neighbours, since a teacher may know the rows themselves by heart. None where there are
            too few.
        ask: The teacher's word on inputs, (n, K): cached, in batches, with a bar.
        own: Its word on the rows to learn from, where it is not simply asked: out of fold, or with
            labels mixed in.
        loss: What students are trained by.
    """

    predictor: Any
    kind: Kind
    x: X
    index: Tensor
    held_out: X | None
    ask: Callable[[Any], np.ndarray]
    own: Callable[[], np.ndarray] | None
    loss: Loss
    progress: bool = True
    _kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        r"""Whether the loop can ask the teacher itself, at fresh inputs each step."""
        return self.predictor.module is not None and self.own is None

    def targets(self) -> np.ndarray:
        r"""The teacher's word on the rows to learn from, (n, K)."""
        if "own" not in self._kept:
            asked = self.own or (lambda: self.ask(self.kind.decode(self.x)))
            self._kept["own"] = asked()
        found: np.ndarray = self._kept["own"]
        return found

    def held_out_targets(self) -> np.ndarray:
        r"""The same of the rows held out."""
        if "held out" not in self._kept:
            self._kept["held out"] = self.ask(self.kind.decode(self.held_out))  # type: ignore[arg-type]
        found: np.ndarray = self._kept["held out"]
        return found

    def pool(self, name: Any, size: int, seed: int) -> Pool:
        r"""The user's rows, and generated ones to make up the size, with the teacher's word."""
        wanted = max(0, size - rows(self.x)) if name != "data" else 0
        if (name, wanted, seed) not in self._kept:
            x, targets = self.x, self.targets()
            if wanted:
                more = fresh(name, self.kind, self.x, wanted, seed, self.progress)
                x = join([x, more])
                targets = np.concatenate([targets, self.ask(self.kind.decode(more))])
            self._kept[name, wanted, seed] = Pool(x, targets)
        found: Pool = self._kept[name, wanted, seed]
        return found

    def stored(self, pool: Pool, shift: Tensor, scale: Tensor) -> Stored:
        r"""The pool's targets as a teacher that looks them up; (t − shift) / scale of them."""
        values = torch.as_tensor(pool.targets, dtype=torch.float32)
        form = "probabilities" if self.predictor.task == "classification" else "values"
        return Stored((values - shift) / divisor(scale), form)

    def unit(self) -> tuple[Tensor, Tensor]:
        r"""Mean and standard deviation of a regression's targets, (K,); zeros and ones else."""
        targets = torch.as_tensor(self.targets(), dtype=torch.float32)
        if self.predictor.task != "regression":
            return torch.zeros(targets.shape[1]), torch.ones(targets.shape[1])
        return targets.mean(0), targets.std(0, unbiased=False)


def divisor(scale: Tensor) -> Tensor:
    r"""What targets are divided by: the scale, or 1 where they are constant."""
    return torch.where(scale > 0, scale, 1.0)


def default_loss(task: str) -> Loss:
    r"""What students are trained by, if nobody says."""
    if task == "classification":
        return losses.cross_entropy()
    return losses.multilabel_cross_entropy() if task == "multilabel" else losses.square_error()


def split(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor | None]:
    r"""Row numbers to learn from, and of those held out if they are enough to tell."""
    held = min(MOST_HELD_OUT, round(fraction * n))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    if held < FEWEST_HELD_OUT:
        return torch.arange(n), None
    return order[held:].sort().values, order[:held].sort().values


def take(x: X, index: Tensor) -> X:
    r"""Some rows."""
    return map_tensors(lambda t: t[index], x)
