r"""What samplers of a user's log density share: starts, randomness, evaluation, states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import as_numbers, per_row
from limbeck.errors import ArgumentError, CheckpointError, warn
from limbeck.inputs.base import Stateful

Numbers = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray | Tensor


class Sampler(Stateful, Iterator[Tensor]):
    r"""Chains that leave a density invariant, side by side: an endless iterator over draws.

    Attributes:
        chains: The number of chains.
        dim: The number of coordinates of a point.
        sweeps_done: Sweeps of all chains so far.
        evaluations: Points at which the log density was evaluated.
    """

    STATE: ClassVar[tuple[str, ...]] = ("_x", "_log", "sweeps_done", "evaluations")

    def __init__(
        self, log_density: Callable[[Tensor], Tensor], start: Numbers, seed: int,
        generator: torch.Generator | None,
    ) -> None:  # fmt: skip
        self.log_density = log_density
        x = as_numbers(start, "start").detach().clone()
        if not x.is_floating_point() or isinstance(start, list | tuple):
            x = x.to(torch.get_default_dtype())
        if x.dim() != 2 or x.dtype not in (torch.float32, torch.float64):
            expected = "finite points (chains, dim) in single or double precision"
            raise ArgumentError("start", f"shape {tuple(x.shape)} of {x.dtype}", expected)
        self._x, (self.chains, self.dim) = x, x.shape
        if generator is None:
            generator = torch.Generator(x.device).manual_seed(seed)
        elif generator.device.type != x.device.type:
            expected = f"one on {x.device}, where the chains are"
            raise ArgumentError("generator", f"one on {generator.device}", expected)
        self.generator = generator
        self.sweeps_done = self.evaluations = 0
        self._warned = False
        self._log = x.new_empty(0)  # (chains,), where the chains are

    def step(self) -> Tensor:
        r"""One sweep: the draws (chains, dim)."""
        raise NotImplementedError

    def __next__(self) -> Tensor:
        return self.step()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        stored, here = (f"{tuple(x.shape)} of {x.dtype}" for x in (state["x"], self._x))
        if stored != here:
            raise CheckpointError(f"checkpoint: the chains in it are {stored}, and here {here}")
        super().load_state_dict(state)

    def _warn_once(self, count: int, trials: int, text: str) -> None:
        r"""Warn if far more than 1% of trials went wrong, whatever the chance of a few."""
        usual = 0.01 * trials
        if count > usual + 4 * math.sqrt(usual) + 1 and not self._warned:
            self._warned = True
            warn(text)

    def _require_mass(self) -> None:
        r"""Refuse starts where the density is zero."""
        if nowhere := int((self._log == -math.inf).sum()):
            received = f"a density of zero at {nowhere:,} of {self.chains:,} points"
            raise ArgumentError("start", received, "points with a density above zero")

    def _evaluate(self, points: Tensor, finite: Tensor | None = None) -> Tensor:
        r"""The log density (n,) of points (n, dim); `finite` are those where it must be known."""
        log = per_row(self.log_density(points), len(points), "log_density")
        self.evaluations += len(points)
        wrong = ~(log < math.inf)
        wrong = wrong if finite is None else wrong & finite
        if wrong.any():
            received = f"{log[wrong][0].item()} at {points[wrong][0].tolist()}"
            raise ArgumentError("log_density", received, "numbers, or −∞ where there is no density")
        return log

    def _uniform(self, n: int) -> Tensor:
        x = self._x
        return torch.rand(n, generator=self.generator, device=x.device, dtype=x.dtype)
