r"""The restricted Boltzmann machine over zeros and ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.arrays import as_part, floating, random, tensor_float
from limbeck.errors import ArgumentError, rename_argument
from limbeck.models import rbm_files
from limbeck.models.checks import Device, Generator
from limbeck.models.energy import Unnormalized
from limbeck.models.kernels.nade_op import triton_kernels
from limbeck.progress import tracked
from limbeck.supports import Binary
from limbeck.training.result import History

Numbers = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]


def softplus(z: Tensor) -> Tensor:
    r"""log(1 + eᶻ), also in float64: torch's own is z from 20 on, and leaves out up to 2e-9."""
    return F.softplus(z, threshold=40.0)


class RBM(Unnormalized):
    r"""A restricted Boltzmann machine: log p̃(x) = a·x + Σ_j softplus(b_j + x·W_j).

    It has I visible units x and J hidden units h that are zero or one, and is a target
    (`limbeck.samplers.chains.Target`) whose sweeps are block Gibbs, x → h → x.

    Arguments:
        W: Weights (I, J), as a tensor, an array or nested lists.
        a: Visible biases (I,).
        b: Hidden biases (J,).
        dtype: float32 or float64. Default: that of the tensors and arrays.
        device: The parameters' device. Default: that of W.

    >>> rbm = RBM([[1.0, -1.0], [0.0, 2.0], [0.5, 0.5]], [0.0, 0.0, -1.0], [0.0, 0.0])
    >>> rbm.log_unnormalized(torch.zeros(1, 3)).exp()
    tensor([4.], grad_fn=<ExpBackward0>)
    """

    exact = True
    capturable = True  # sweeps never wait for a GPU
    history: History | None = None  # of a training by `fit`
    stop_reason = ""
    constant = 0.0  # is added to log p̃; `limbeck.clamp` sets it

    @arg.checked_arguments
    def __init__(
        self, W: arg.UserObject[Numbers], a: arg.UserObject[Numbers], b: arg.UserObject[Numbers], *,
        dtype: torch.dtype | None = None, device: Device = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dtype = None if dtype is None else floating(dtype)
        raw: dict[str, Numbers] = {"W": W, "a": a, "b": b}
        parts = {name: as_part(value, name).values for name, value in raw.items()}
        shapes = {name: tuple(part.shape) for name, part in parts.items()}
        if len(shape := shapes["W"]) != 2:
            raise ArgumentError("W", f"shape {shape}", "shape (I, J), visible by hidden units")
        if (shapes["a"], shapes["b"]) == (shape[1:], shape[:1]) and shape[0] != shape[1]:
            expected = f"shape {shape[::-1]}, to go with a {shape[1:]} and b {shape[:1]}"
            raise ArgumentError("W", f"shape {shape}, which looks transposed", expected)
        for name, size in (("a", shape[:1]), ("b", shape[1:])):
            if shapes[name] != size:
                expected = f"shape {size}, to go with W {shape}"
                raise ArgumentError(name, f"shape {shapes[name]}", expected)
        if dtype is None:  # numbers in lists have no type of their own
            typed = {parts[name].dtype for name in raw if hasattr(raw[name], "dtype")}
            dtype = torch.float64 if torch.float64 in typed else torch.float32
        device = parts["W"].device if device is None else torch.device(device)
        if device.type == "meta":
            raise ArgumentError("device", "'meta'", "a device whose tensors have values")
        for name, part in parts.items():
            parts[name] = part.to(device, dtype, copy=True).contiguous()
            if not parts[name].isfinite().all():
                largest = f"values of up to {part.abs().max().item():g}"
                raise ArgumentError(name, largest, f"values within the range of {dtype}")
        self.W, self.a, self.b = map(nn.Parameter, parts.values())
        self.visible, self.hidden = self.W.shape
        self.support = Binary(self.visible)

    @classmethod
    @arg.checked_arguments
    def random(
        cls, visible: arg.Count, hidden: arg.Count, scale: arg.FromZero = 0.1,
        generator: Generator = None, *, dtype: torch.dtype | None = None, device: Device = None,
    ) -> Self:  # fmt: skip
        r"""An RBM with normal weights and biases of standard deviation `scale`."""
        sizes, dtype = (visible, hidden), floating(dtype)
        # drawn on the generator's device: a CPU generator gives equal ones everywhere
        like = torch.empty(0, dtype=dtype, device="cpu" if generator is None else generator.device)
        shapes = (sizes, sizes[:1], sizes[1:])
        W, a, b = (scale * random(torch.randn, shape, like, generator) for shape in shapes)
        return cls(W, a, b, device=device)

    @classmethod
    @arg.checked_arguments
    def fit(cls, data: arg.UserObject[Numbers], hidden: arg.Count, **settings: Any) -> RBM:
        r"""An RBM trained on binary data (n, I): see `limbeck.models.rbm_training.train_rbm`."""
        from limbeck.models.rbm_training import train_rbm

        return train_rbm(data, hidden, **settings)

    @classmethod
    @arg.checked_arguments
    def load(
        cls, path: arg.PathLike, *, dtype: torch.dtype = torch.float32, device: Device = None
    ) -> Self:
        r"""An RBM of a .npz, .safetensors or .mat file: W, a, b or vishid, visbiases, hidbiases."""
        arrays = rbm_files.read(Path(path))
        try:
            return cls(**arrays, dtype=dtype, device=device)
        except ArgumentError as error:
            if error.argument not in arrays:
                raise
            received = f"{path}, whose {error.argument} has {error.received}"
            raise ArgumentError("path", received, error.expected) from error

    @arg.checked_arguments
    def save(self, path: arg.PathLike) -> Path:
        r"""Write W, a and b as .npz or .safetensors; a failure leaves no partial file."""
        if self.constant:
            received = f"{path}, for an RBM with the constant {self.constant:g} of clamped units"
            raise ArgumentError("path", received, "an RBM without clamped units: save that one")
        return rbm_files.write(Path(path), {"W": self.W, "a": self.a, "b": self.b})

    def log_unnormalized(self, x: Tensor) -> Tensor:
        r"""log p̃(x), (n,), of x (n, I); differentiable, also at x between zero and one."""
        x = self._units(x, self.visible, "x")
        return x @ self.a + softplus(x @ self.W + self.b).sum(-1) + self.constant

    forward = log_unnormalized

    def _exact_log_z(self) -> float:
        with rename_argument("target", "z"):
            parts = list(log_z_parts(self, 2**25, None, False))
        return torch.stack(parts).logsumexp(0).item()

    def hidden_probabilities(self, x: Tensor) -> Tensor:
        r"""p(h_j = 1 | x), (n, J)."""
        return torch.sigmoid(self._units(x, self.visible, "x") @ self.W + self.b)

    def visible_probabilities(self, h: Tensor) -> Tensor:
        r"""p(x_i = 1 | h), (n, I)."""
        return torch.sigmoid(self._units(h, self.hidden, "h") @ self.W.T + self.a)

    @torch.no_grad()
    @arg.checked_arguments
    def advance(
        self, x: Tensor, sweeps: arg.CountFromZero = 1, generator: Generator = None,
    ) -> Tensor:  # fmt: skip
        r"""Chains (n, I) after some sweeps of block Gibbs, x → h → x, as a new tensor."""
        # nothing waits for a GPU, so that sweeps can be captured in a CUDA graph
        state = self._units(x, self.visible, "x")
        if x.dim() != 2:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.visible})")
        if sweeps == 0:
            return x.clone()
        v = state.new_empty(len(state), self.visible)
        h = state.new_empty(len(state), self.hidden)
        products, bits = BitProducts(self.W.detach()), Bits(2 * sweeps, state.device, generator)
        for _ in range(sweeps):
            bits(products(self.b, state, h))
            bits(products(self.a, h, v, back=True))
            state = v
        return v.to(x.dtype)

    @arg.checked_arguments
    def start(self, n: arg.CountFromZero, generator: Generator = None) -> Tensor:
        r"""Uniform bits (n, I) to start chains from."""
        return self.support.start(n, generator, self.W.device, self.W.dtype)

    def _units(self, x: Tensor, size: int, argument: str) -> Tensor:
        r"""States (n, size) in the weights' type; only shape and type, which tracers know."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ArgumentError(argument, kind, f"a floating-point tensor (n, {size})")
        if x.dim() == 0 or x.shape[-1] != size:
            raise ArgumentError(argument, f"shape {tuple(x.shape)}", f"shape (n, {size})")
        if x.device != self.W.device:
            raise ArgumentError(argument, f"a tensor on {x.device}", f"one on {self.W.device}")
        return x.to(self.W.dtype)

    def extra_repr(self) -> str:
        return f"visible={self.visible:,}, hidden={self.hidden:,}"


class BitProducts:
    r"""x W + bias and h Wᵀ + bias, for x and h of zeros and ones.

    Bits are exact in TF32, with 11 significant bits, and weights are the sum of two such numbers:
    two products on tensor cores are as exact as one in float32, and faster.
    """

    def __init__(self, W: Tensor) -> None:
        split = W.is_cuda and W.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        self.parts = halves(W) if split else (W,)

    def __call__(self, bias: Tensor, bits: Tensor, out: Tensor, back: bool = False) -> Tensor:
        r"""x W + bias, (n, J), or `back` h Wᵀ + bias, (n, I)."""
        first, *second = (part.T for part in self.parts) if back else self.parts
        with tensor_float() if second else nullcontext():
            torch.addmm(bias, bits, first, out=out)
            return out.addmm_(bits, *second) if second else out


def halves(W: Tensor) -> tuple[Tensor, Tensor]:
    r"""Two float32 tensors whose sum is W exactly, the first with 11 significant bits."""
    high = (W.contiguous().view(torch.int32) & -(2**13)).view(torch.float32)
    return high, W - high


class Bits:
    r"""Turns logits into bits with probability σ(logit), in place, without waiting for a GPU."""

    def __init__(self, draws: int, device: torch.device, generator: torch.Generator | None) -> None:
        self.generator, self.called = generator, 0
        self._kernels = triton_kernels() if device.type == "cuda" else None
        if self._kernels is not None:
            self._seeds = torch.empty((draws, 1), dtype=torch.int64, device=device)
            self._seeds.random_(generator=generator)

    def __call__(self, logits: Tensor) -> Tensor:
        if self._kernels is not None and logits.dtype == torch.float32:
            self.called += 1
            return self._kernels.bits_(logits, self._seeds[self.called - 1])
        return logits.sigmoid_().gt_(torch.empty_like(logits).uniform_(generator=self.generator))


TOGETHER = 4  # units of the other side that share a matrix product
LARGEST = 690.0  # the largest exponent in float64, nearly


def log_z_parts(rbm: RBM, limit: int, block: int | None, progress: bool) -> Iterator[Tensor]:
    r"""log of parts of Σ_h exp(b·h) Π_i (1 + exp(z_i)) over the smaller side, z = a + Wh.

    The factors of four units i are Σ_s exp(s·z) over the subsets s of them. The bits h are split
    into high and low ones, so that all pairs of these make a matrix product of two small tables of
    exponentials. Logarithms are of products as large as float64's range allows.
    """
    size = min(rbm.visible, rbm.hidden)
    if 2**size > limit:
        received = f"{rbm.visible:,} visible and {rbm.hidden:,} hidden units"
        expected = f"at most {int(math.log2(limit))} on one side, or an estimate of log Z"
        raise ArgumentError("target", received, expected)
    W, a, b = (p.detach().double() for p in (rbm.W, rbm.a, rbm.b))
    weights, own, other = (W, a, b) if rbm.visible == size else (W.T, b, a)  # sides by size
    padded = -len(other) % TOGETHER  # units without weights: each is a factor of two
    weights, other = F.pad(weights, (0, padded)), F.pad(other, (0, padded))
    block = block or (2**20 if W.is_cuda else 2**16)
    at_once = min(size, int(math.log2(block)))
    low = min(at_once, 10)
    here, there = slice(size - low, size), slice(0, size - low)
    bits = _bits(0, 2**low, low, W)
    low_z, low_own = bits @ weights[here], bits @ own[here]
    rows = 2 ** (at_once - low)
    # no exponent within a factor, nor the factor's logarithm, is larger than `most`
    reach = other.abs() + weights.abs().sum(0) + math.log(2)
    most = reach.reshape(-1, TOGETHER).sum(1).amax().item()
    count = int(LARGEST / most) if most <= LARGEST else 0  # of factors in a product, if any
    table = _subsets(low_z).transpose(1, 2).contiguous() if count else None  # (groups, 16, 2^low)
    for start in tracked(range(0, 2 ** (size - low), rows), "enumerating", progress):
        bits = _bits(start, start + rows, size - low, W)
        high_z = other + bits @ weights[there]
        total = (bits @ own[there])[:, None] + low_own - padded * math.log(2)
        if table is None:
            for row, z in zip(total, high_z, strict=True):
                row += softplus(z + low_z).sum(1)
        else:
            product, factor = torch.ones_like(total), torch.empty_like(total)
            pairs = zip(_subsets(high_z), table, strict=True)
            for number, (left, right) in enumerate(pairs, start=1):
                product *= torch.mm(left, right, out=factor)
                if number % count == 0:
                    total += product.log_()
                    product.fill_(1.0)
            total += product.log_()
        yield total.flatten().logsumexp(0) + rbm.constant


def _bits(start: int, stop: int, size: int, like: Tensor) -> Tensor:
    r"""The binary digits of start … stop−1, (stop − start, size)."""
    number = torch.arange(start, stop, device=like.device)
    places = torch.arange(size - 1, -1, -1, device=like.device)
    return ((number[:, None] >> places) & 1).to(like.dtype)


def _subsets(z: Tensor) -> Tensor:
    r"""exp(s·z) of the subsets s of each group of units, (groups, n, 16), of z (n, units)."""
    groups = z.reshape(len(z), -1, TOGETHER)
    return (groups @ _bits(0, 2**TOGETHER, TOGETHER, z).T).exp().transpose(0, 1).contiguous()
