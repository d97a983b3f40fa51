r"""Sources made of other sources: seeds, devices, losses and state are passed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from limbeck.core.batch import Batch
from limbeck.core.checkpoint import under
from limbeck.core.inputs import Inputs
from limbeck.inputs.eager import Eager

__all__ = ["Nested", "spread"]


class Nested(Eager):
    r"""A source that draws from others, each with a seed of its own.

    Arguments:
        sources: The sources drawn from; their states are saved under '0.', '1.', ...
        seed: The generator's seed; None takes the seed of the distillation.
    """

    def __init__(self, sources: Sequence[Inputs], seed: int | None = None) -> None:
        super().__init__(seed)
        self.sources = list(sources)
        self._seed_sources(self.seed or 0)

    def bind(self, loss_of: Callable[[Batch], Tensor]) -> None:
        for source in self.sources:
            source.bind(loss_of)

    def convert(self) -> None:
        super().convert()
        for source in self.sources:
            if isinstance(source, Eager):
                source.convert()

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        own = seed if self.seed is None else self.seed
        for source, other in zip(self.sources, spread(own, len(self.sources)), strict=True):
            source.to(device, dtype, other)

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        for i, source in enumerate(self.sources):
            state |= {f"{i}.{key}": value for key, value in source.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        for i, source in enumerate(self.sources):
            source.load_state_dict(under(f"{i}.", state))

    def _seed_sources(self, seed: int) -> None:
        for source, other in zip(self.sources, spread(seed, len(self.sources)), strict=True):
            if source.seed is None:
                source.generator.manual_seed(other)
                if isinstance(source, Nested):
                    source._seed_sources(other)


def spread(seed: int, count: int) -> list[int]:
    r"""Different seeds that follow from one."""
    generator = torch.Generator().manual_seed(seed)
    return [int(s) for s in torch.randint(2**32, (count,), generator=generator)]
