r"""Products and draws of bits."""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.arrays import tensor_float
from limbeck.models.kernels import triton_kernels


class BitProducts:
    r"""x W + bias and h Wᵀ + bias, for x and h of zeros and ones.

    Bits are exact in TF32, with 11 significant bits, and weights are the sum of two such numbers:
    two products on tensor cores are as exact as one in float32, and faster.
    """

    def __init__(self, W: Tensor) -> None:
        split = W.is_cuda and W.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        self.parts = halves(W) if split else (W,)

    def forth(self, bias: Tensor, x: Tensor, out: Tensor) -> Tensor:
        r"""x W + bias, (n, J)."""
        return self._product(bias, x, self.parts, out)

    def back(self, bias: Tensor, h: Tensor, out: Tensor) -> Tensor:
        r"""h Wᵀ + bias, (n, I)."""
        return self._product(bias, h, tuple(part.T for part in self.parts), out)

    @staticmethod
    def _product(bias: Tensor, x: Tensor, parts: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if len(parts) == 1:
            return torch.addmm(bias, x, parts[0], out=out)
        with tensor_float():
            torch.addmm(bias, x, parts[0], out=out)
            return out.addmm_(x, parts[1])


def halves(W: Tensor) -> tuple[Tensor, Tensor]:
    r"""Two float32 tensors whose sum is W exactly, the first with 11 significant bits."""
    high = (W.contiguous().view(torch.int32) & -(2**13)).view(torch.float32)
    return high, W - high


class Bits:
    r"""Turns logits into bits with probability σ(logit), in place, without waiting for a GPU."""

    def __init__(self, draws: int, device: torch.device, generator: torch.Generator | None) -> None:
        self.generator, self.called = generator, 0
        self._noise: dict[torch.Size, Tensor] = {}
        self._kernels = triton_kernels() if device.type == "cuda" else None
        if self._kernels is not None:
            self._seeds = torch.empty((draws, 1), dtype=torch.int64, device=device)
            self._seeds.random_(generator=generator)

    def __call__(self, logits: Tensor) -> Tensor:
        if self._kernels is not None and logits.dtype == torch.float32:
            self.called += 1
            return self._kernels.bits_(logits, self._seeds[self.called - 1])
        if logits.shape not in self._noise:
            self._noise[logits.shape] = torch.empty_like(logits)
        return logits.sigmoid_().gt_(self._noise[logits.shape].uniform_(generator=self.generator))
