r"""Samples drawn many at a time: one large draw costs a GPU hardly more than a small one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from limbeck.arguments import integer
from limbeck.arrays import Batch
from limbeck.inputs.base import Inputs

__all__ = ["Ahead"]


class Ahead(Inputs):
    r"""Independent samples of a model, handed out in batches from blocks drawn ahead.

    Arguments:
        sample: A function of n and a generator that gives samples (n, ...).
        block: How many are drawn at a time.
        seed: The generator's seed; None takes the seed of the distillation.

    >>> Ahead(lambda n, generator: torch.rand(n, 3, generator=generator), block=100)(20).x.shape
    torch.Size([20, 3])
    """

    def __init__(
        self,
        sample: Callable[[int, torch.Generator], Tensor],
        block: int = 20_000,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.sample = sample
        self.block = integer("block", block, "a whole number from 1", least=1)
        self.samples, self.position = torch.empty(0), 0
        self.begun = self.generator.get_state()

    def draw(self, n: int) -> Tensor:
        r"""Samples (n, ...); the few that a block has left at its end are dropped."""
        if self.position + n > len(self.samples):
            self.begun, self.position = self.generator.get_state(), 0
            self.samples = self._drawn(max(n, self.block))
        self.position += n
        return self.samples[self.position - n : self.position]

    def build(self, drawn: Tensor) -> Batch:
        return Batch(drawn)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self._forget()

    def state_dict(self) -> dict[str, Tensor]:
        r"""Where the present block began, how large it is and what is used of it."""
        place = torch.tensor([len(self.samples), self.position])
        return {"generator": self.begun.clone(), "place": place}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        size, position = state["place"].tolist()
        self._forget()
        if size:
            self.samples, self.position = self._drawn(size), position

    def _forget(self) -> None:
        self.begun, self.samples, self.position = self.generator.get_state(), torch.empty(0), 0

    def _drawn(self, n: int) -> Tensor:
        with torch.no_grad():
            return self.sample(n, self.generator)
