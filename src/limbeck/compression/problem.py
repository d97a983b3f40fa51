r"""What is to be compressed: a teacher, rows to ask it about, and its word on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck import losses
from limbeck.arrays import X, join, map_tensors, part_of, rows
from limbeck.compression.generators import fresh
from limbeck.compression.rows import Kind
from limbeck.losses.base import Loss
from limbeck.teachers.keys import count
from limbeck.teachers.query import Derivatives, safe_scale
from limbeck.teachers.stored import Stored

__all__ = ["Pool", "Problem", "default_loss", "split", "take"]

FEWEST_HELD_OUT, MOST_HELD_OUT = 20, 10_000
r"""Rows held out to measure students by: at least, or none are; and at most."""


@dataclass
class Pool:
    r"""Inputs with the teacher's word on them.

    Attributes:
        x: The inputs: the user's rows first, then generated ones.
        targets: What the teacher says, (n, K), and labels where they are mixed in.
        derivatives: Its derivatives (n, K, D) by domain, as far as they were asked for.
    """

    x: X
    targets: np.ndarray
    derivatives: dict[str, Tensor] = field(default_factory=dict)


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
        ask: The teacher's word on inputs, (n, K): cached, in batches, with a bar. A second argument
            is asked in place of the teacher.
        own: Its word on the rows to learn from, where it is not simply asked: out of fold, or with
            labels mixed in.
        loss: What students are trained by.
        progress: Whether to show bars.
        kept: Whether answers are kept on disk, so that even a torch teacher is asked beforehand.
        given: The rows to learn from as the user has them, which is what the teacher is asked
            about; None where it is not asked about them any more.
        held_given: The same of the rows held out.
    """

    predictor: Any
    kind: Kind
    x: X
    index: Tensor
    held_out: X | None
    ask: Callable[..., np.ndarray]
    own: Callable[[], np.ndarray] | None
    loss: Loss
    progress: bool = True
    kept: bool = False
    given: Any = None
    held_given: Any = None
    _kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        r"""Whether the loop can ask the teacher itself, at fresh inputs each step."""
        return self.differentiable and not self.kept

    @property
    def differentiable(self) -> bool:
        r"""Whether the targets have derivatives with respect to inputs: those of a torch module.

        It takes rows of numbers as they are, and nothing else is mixed in. A module that looks
        whole numbers up has none.
        """
        codes = self.kind.whole and getattr(self.predictor, "looks_up", False)
        taken = isinstance(self.x, Tensor) and not codes
        return self.predictor.module is not None and self.own is None and taken

    def targets(self) -> np.ndarray:
        r"""The teacher's word on the rows to learn from, (n, K)."""
        if "own" not in self._kept:
            given = self.kind.decode(self.x) if self.given is None else self.given
            self._kept["own"] = self.ask(given) if self.own is None else self.own()
        found: np.ndarray = self._kept["own"]
        return found

    def held_out_targets(self) -> np.ndarray:
        r"""The same of the rows held out."""
        if "held out" not in self._kept:
            assert self.held_out is not None
            own = count(self.held_given)
            made = part_of(self.held_out, own, rows(self.held_out) - own)
            answers = [self.ask(self.held_given), self.ask(self.kind.decode(made))]
            self._kept["held out"] = np.concatenate(answers)
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
        derivatives = {
            domain: self._derivatives(pool, domain) / safe_scale(scale)[:, None]
            for domain in {term.domain for _, term in self.loss if "derivatives" in term.asks}
        }
        return Stored((values - shift) / safe_scale(scale), form, derivatives=derivatives)

    def _derivatives(self, pool: Pool, domain: str) -> Tensor:
        r"""Derivatives (n, K, D) of the teacher's word on a pool's inputs."""
        asked = Derivatives(self.predictor, domain, pool.x[0].numel())  # type: ignore[index]
        asked.check_size(rows(pool.x))
        if domain not in pool.derivatives:
            found = self.ask(self.kind.decode(pool.x), asked)
            shape = (rows(pool.x), self.predictor.outputs, asked.inputs)
            pool.derivatives[domain] = torch.as_tensor(found, dtype=torch.float32).reshape(shape)
        return pool.derivatives[domain]

    def unit(self) -> tuple[Tensor, Tensor]:
        r"""Mean and standard deviation of a regression's targets, (K,); zeros and ones else."""
        targets = torch.as_tensor(self.targets(), dtype=torch.float32)
        if self.predictor.task != "regression":
            return torch.zeros(targets.shape[1]), torch.ones(targets.shape[1])
        return targets.mean(0), targets.std(0, unbiased=False)


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
