r"""Random bits from logits in place, by the quickest way that the device has."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

__all__ = ["Bits"]


class Bits:
    r"""Turns logits into bits in place, each one with probability σ(logit).

    It never waits for a GPU, so that it can be captured in a CUDA graph.

    Arguments:
        draws: How many times it will be called.
        device: Where the logits are.
        generator: Where random numbers come from.
    """

    def __init__(self, draws: int, device: torch.device, generator: torch.Generator | None) -> None:
        self.generator, self.called = generator, 0
        self._seeds: Tensor | None = None
        self._noise: dict[torch.Size, Tensor] = {}
        if device.type == "cuda" and _has_triton():
            shape = (draws, 1)
            self._seeds = torch.empty(shape, dtype=torch.int64, device=device)
            self._seeds.random_(generator=generator)

    def __call__(self, logits: Tensor) -> Tensor:
        if self._seeds is not None and logits.dtype == torch.float32:
            from limbeck.models.kernels.bits_triton import bits_

            self.called += 1
            return bits_(logits, self._seeds[self.called - 1])
        if logits.shape not in self._noise:
            self._noise[logits.shape] = torch.empty_like(logits)
        noise = self._noise[logits.shape].uniform_(generator=self.generator)
        return logits.sigmoid_().gt_(noise)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
