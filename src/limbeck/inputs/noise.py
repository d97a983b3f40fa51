r"""Normal noise: inputs for those who have no data."""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.core.batch import Batch
from limbeck.core.checks import number, whole_number
from limbeck.core.inputs import Inputs
from limbeck.errors import ArgumentError

__all__ = ["Noise"]


class Noise(Inputs):
    r"""Independent draws from a normal distribution.

    Arguments:
        shape: The shape of one input, or its length.
        scale: The standard deviation.
        mean: The mean.
        seed: The generator's seed; None takes the seed of the distillation.

    >>> Noise((2, 3), scale=0.1)(5).x.shape
    torch.Size([5, 2, 3])
    """

    def __init__(
        self,
        shape: int | tuple[int, ...],
        scale: float = 1.0,
        mean: float = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        accepted = "a positive integer, or a tuple of them"
        sizes = (shape,) if hasattr(shape, "__index__") else shape
        if not isinstance(sizes, tuple | list):
            raise ArgumentError("shape", repr(shape), accepted)
        self.shape = tuple(whole_number("shape", size, accepted, least=1) for size in sizes)
        self.scale = number("scale", scale, "a finite number above zero", lambda v: v > 0)
        self.mean = number("mean", mean, "a finite number", lambda v: True)
        self.dtype = torch.get_default_dtype()

    def draw(self, n: int) -> Tensor:
        return torch.randn(
            n, *self.shape, generator=self.generator, device=self.device, dtype=self.dtype
        )

    def build(self, drawn: Tensor) -> Batch:
        return Batch(self.mean + self.scale * drawn)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self.dtype = dtype
