r"""From independent bits to an RBM, and from an RBM to a NADE."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import number, whole_number
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError
from limbeck.models.kernels.bits import Bits
from limbeck.models.rbm import RBM, softplus

__all__ = ["RBMPath", "base_biases", "binary", "means", "weights"]


class RBMPath:
    r"""log p̃_β(x) = (1 − β) base·x + β a·x + Σ_j softplus(β (b_j + x·W_j)).

    At β = 0 the bits are independent, with log odds `base`, and the J hidden units are still
    counted: each is zero or one at will, so log Z is J log 2 + Σ_i softplus(base_i). At β = 1 it
    is the RBM's own log p̃. Block Gibbs moves x; on x alone it is reversible, so its time reversal
    is itself.

    β is a number, or a tensor of no dimensions, so that a captured CUDA graph can be replayed at
    other values. Nothing waits for a GPU. Values are summed over units in float64.

    Arguments:
        rbm: The model; its present parameters are copied.
        base: Visible biases (I,) of the start; None is zeros, so that all x are equally likely.
            `base_biases(data)` gives those of the data's means, which shorten the path.
    """

    def __init__(self, rbm: RBM, base: Any = None) -> None:
        self.support = rbm.support
        self.W, self.a, self.b = (p.detach().clone() for p in (rbm.W, rbm.a, rbm.b))
        self.base = torch.zeros_like(self.a) if base is None else as_part(base, "base").values
        if self.base.shape != self.a.shape:
            expected = f"shape {tuple(self.a.shape)}, one for each visible unit"
            raise ArgumentError("base", f"shape {tuple(self.base.shape)}", expected)
        self.base = self.base.to(self.a)
        self.difference = self.a - self.base
        free = softplus(self.base.double()).sum().item()
        self.log_z = rbm.hidden * math.log(2) + free

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        n = whole_number("n", n, "a whole number from 0", least=0)
        return Bits(1, self.W.device, generator)(self.base.repeat(n, 1))

    @torch.no_grad()
    def log_unnormalized(self, x: Tensor, beta: float | Tensor) -> Tensor:
        r"""log p̃_β(x), (n,), in float64."""
        beta = _checked("beta", beta)
        x = x.to(self.W.dtype)
        hidden = softplus(self._activation(x).mul_(beta)).sum(1, dtype=torch.float64)
        return hidden + (x @ self._visible(beta)).double()

    @torch.no_grad()
    def advance(
        self,
        x: Tensor,
        beta: float | Tensor,
        generator: torch.Generator | None = None,
        *,
        reverse: bool = False,
    ) -> Tensor:
        beta = _checked("beta", beta)
        activation = self._activation(x.to(self.W.dtype)).mul_(beta)
        return self._resample(activation, beta, generator).to(x.dtype)

    @torch.no_grad()
    def climb(
        self,
        x: Tensor,
        before: float | Tensor,
        after: float | Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        before, after = _checked("before", before), _checked("after", after)
        bits = x.to(self.W.dtype)
        activation = self._activation(bits)  # (n, J), for the gain and for the sweep
        scaled = activation * after
        hidden = softplus(scaled).sub_(softplus(activation.mul_(before)))
        visible = (bits @ self.difference).double() * (after - before)
        gain = hidden.sum(1, dtype=torch.float64) + visible
        return gain, self._resample(scaled, after, generator).to(x.dtype)

    def _activation(self, x: Tensor) -> Tensor:
        return torch.addmm(self.b, x, self.W)

    def _visible(self, beta: float | Tensor) -> Tensor:
        if isinstance(beta, Tensor):
            return torch.addcmul(self.base, self.difference, beta)
        return torch.add(self.base, self.difference, alpha=beta)

    def _resample(
        self, scaled: Tensor, beta: float | Tensor, generator: torch.Generator | None
    ) -> Tensor:
        r"""x from h from β(b + xW), which is overwritten."""
        bits = Bits(2, scaled.device, generator)
        h = bits(scaled)
        if isinstance(beta, Tensor):
            x = torch.addmm(self._visible(beta), h.mul_(beta), self.W.T)
        else:
            x = torch.addmm(self._visible(beta), h, self.W.T, alpha=beta)
        return bits(x)


def base_biases(data: Any, smoothing: float = 1.0) -> Tensor:
    r"""Log odds (I,) of each bit of binary data (n, I), as if seen `smoothing` times more each way.

    >>> base_biases([[0, 1], [0, 1], [0, 0]], smoothing=0.5).exp()
    tensor([0.1429, 1.6667])
    """
    smoothing = number("smoothing", smoothing, "a number above 0", lambda s: s > 0)
    bits = binary(data)
    ones = bits.sum(0, dtype=torch.float64)
    return torch.log((ones + smoothing) / (len(bits) - ones + smoothing)).float()


def binary(data: Any) -> Tensor:
    r"""Data (n, I) of zeros and ones, of any type that holds them, as a tensor."""
    bits = as_part(data, "data").values
    if bits.dim() != 2:
        expected = "shape (n, I): one row for each example, as x.reshape(len(x), -1) gives"
        raise ArgumentError("data", f"shape {tuple(bits.shape)}", expected)
    other = (bits != 0) & (bits != 1)
    if other.any():
        received = f"{int(other.sum()):,} values such as {bits[other][0].item():g}"
        expected = "zeros and ones: binarise first, as (x > 0.5) does"
        raise ArgumentError("data", received, expected)
    return bits


def _checked(argument: str, beta: float | Tensor) -> float | Tensor:
    if isinstance(beta, Tensor):  # whose value is not looked at: a GPU would have to be waited for
        return beta
    return number(argument, beta, "a number from 0 to 1", lambda value: 0 <= value <= 1)


CHAINS, BURN_IN, LOOKS, APART, SEED = 100, 500, 50, 10, 0
r"""Chains, their sweeps before the first look, looks, sweeps between them, and their seed.

Few chains for long find better means than many for a short time: chains start far away.
"""

RARE = 0.05
r"""Means below this count as zero: the centre is as good, and most inputs of such variables stay
zero, which saves kernels on a CPU a third of their time on images."""


def weights(rbm: Any) -> tuple[Tensor, Tensor, Tensor]:
    r"""W, a and b of an RBM, if they fit together."""
    expected = "an RBM with W (I, J), a (I,) and b (J,), all finite"
    try:
        W, a, b = (torch.as_tensor(getattr(rbm, name)).detach() for name in ("W", "a", "b"))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise ArgumentError("rbm", f"a {type(rbm).__name__}", expected) from None
    shapes = [tuple(each.shape) for each in (W, a, b)]
    if W.ndim != 2 or shapes[1:] != [(W.shape[0],), (W.shape[1],)]:
        raise ArgumentError("rbm", f"W, a, b of shapes {shapes}", expected)
    if not all(each.isfinite().all() for each in (W, a, b)):
        raise ArgumentError("rbm", "weights that are not finite", expected)
    return W, a.to(W), b.to(W)


@torch.no_grad()
def means(rbm: Any) -> Tensor | None:
    r"""The means of an RBM's bits by short chains, alike each time; None if it has no chains."""
    if not (hasattr(rbm, "advance") and hasattr(rbm, "start")):
        return None
    device = torch.as_tensor(rbm.W).device
    generator = torch.Generator(device).manual_seed(SEED)
    x: Tensor = rbm.advance(rbm.start(CHAINS, generator), BURN_IN, generator)
    total = x.mean(0)
    for _ in range(LOOKS - 1):
        x = rbm.advance(x, APART, generator)
        total = total + x.mean(0)
    found = total / LOOKS
    return found.where((found >= RARE) | (found < 0), 0)
