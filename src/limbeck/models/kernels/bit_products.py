r"""Products of bits with weights: at full precision, and yet on a GPU's tensor cores."""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.engine.precision import tensor_float

__all__ = ["BitProducts", "halves"]


class BitProducts:
    r"""x W + bias and h Wᵀ + bias, for x and h of zeros and ones.

    Tensor cores round factors to TF32, which has 11 significant bits. Bits are exact in it, and
    weights are the sum of two such numbers to 22 bits: two products of rounded factors give what
    one of float32 factors gives, and take less time than that on a GPU.

    Arguments:
        W: Weights (I, J).
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
    r"""Two float32 tensors whose sum is W exactly, the first with 11 significant bits.

    >>> W = torch.tensor([1 / 3])
    >>> high, low = halves(W)
    >>> high.item() == 1365 / 4096, torch.equal(high + low, W)
    (True, True)
    """
    high = (W.contiguous().view(torch.int32) & -(2**13)).view(torch.float32)
    return high, W - high
