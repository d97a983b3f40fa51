r"""The contract of an input source: random draws outside, pure tensor work inside the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limbeck.core.batch import Batch
from limbeck.core.checks import whole_number

__all__ = ["Inputs"]


class Inputs(ABC):
    r"""A source of inputs: `inputs(n)` gives a Batch of n.

    A draw has two halves, so that as much as possible is compiled with the step:

    * `draw(n)` does everything random and everything that changes state, and returns a few
      tensors (row numbers, noise) in dicts, tuples or lists;
    * `build(drawn)` is a pure function of those tensors and of constants, and gives the Batch.

    A source draws from its own generator on its own device, so equal seeds give equal batches.

    Arguments:
        seed: The generator's seed; None takes the seed of the distillation.

    Attributes:
        own_batches: Whether the data come in batches already, as those of a loader. The loop then
            takes these, by `own_batch`, and not n inputs at a time.
        batch_size: The size of these batches, but for a shorter last one; None if they differ or
            nobody can say.
    """

    own_batches = False
    batch_size: int | None = None

    def __init__(self, seed: int | None = None) -> None:
        self.seed = None if seed is None else whole_number("seed", seed, "a whole number, or None")
        self.device = torch.device("cpu")
        self.generator = torch.Generator().manual_seed(self.seed or 0)

    @abstractmethod
    def draw(self, n: int) -> Any:
        r"""Everything random of n inputs, as tensors."""

    @abstractmethod
    def build(self, drawn: Any) -> Batch:
        r"""The batch that a draw stands for: a pure function of tensors."""

    def own_batch(self) -> Any:
        r"""The next of the batches that the data come in, as `draw` gives it."""
        raise NotImplementedError

    def __call__(self, n: int) -> Batch:
        return self.build(self.draw(n))

    def probe(self, n: int) -> Batch:
        r"""At most n inputs to look at before the first step, without moving on."""
        state = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        batch = self(min(n, len(self)) if hasattr(self, "__len__") else n)
        self.load_state_dict(state)
        return batch

    def bind(self, loss_of: Callable[[Batch], Tensor]) -> None:  # noqa: B027 - most need nothing
        r"""Take notice of the present loss (n,) of any batch, for sources that seek it."""

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        r"""Move to the student's device and floating type, and start the generator.

        Sources that hold data override this, call `super().to(...)` and move it;
        those that hold other sources pass the call on with different seeds.
        """
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device)
        self.generator.manual_seed(seed if self.seed is None else self.seed)

    def state_dict(self) -> dict[str, Tensor]:
        r"""All that is needed to go on drawing as if never interrupted: tensors only."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Go on from where `state_dict` was taken."""
        self.generator.set_state(state["generator"].cpu())
