r"""The restricted Boltzmann machine over zeros and ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limbeck.arguments import number, whole_number
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError
from limbeck.models.kernels.bits import BitProducts, Bits
from limbeck.supports import Binary

if TYPE_CHECKING:
    from limbeck.models.rbm_path import RBMPath

__all__ = ["RBM", "Statistics", "softplus"]

TYPES = (torch.float32, torch.float64)


def softplus(z: Tensor) -> Tensor:
    r"""log(1 + eᶻ), also in float64: torch's own is z from 20 on, and leaves out up to 2e-9."""
    return F.softplus(z, threshold=40.0)


class Statistics(NamedTuple):
    r"""Means of what the parameters multiply: x hᵀ (I, J), x (I,) and h (J,)."""

    W: Tensor
    a: Tensor
    b: Tensor


class RBM(nn.Module):
    r"""A restricted Boltzmann machine: log p̃(x) = a·x + Σ_j softplus(b_j + x·W_j).

    It is p̃(x) = Σ_h exp(xᵀWh + a·x + b·h) over I visible units x and J hidden units h that are
    zero or one. It is a target (`limbeck.models.energy.Target`) whose sweeps are block Gibbs,
    x → h → x.

    Arguments:
        W: Weights (I, J), as a tensor, an array or nested lists.
        a: Visible biases (I,).
        b: Hidden biases (J,).
        dtype: float32 or float64; None keeps that of tensors and arrays.
        device: Where the parameters live; None is where W is.

    >>> rbm = RBM([[1.0, -1.0], [0.0, 2.0], [0.5, 0.5]], [0.0, 0.0, -1.0], [0.0, 0.0])
    >>> rbm.log_unnormalized(torch.zeros(1, 3)).exp()
    tensor([4.], grad_fn=<ExpBackward0>)
    """

    W: nn.Parameter
    a: nn.Parameter
    b: nn.Parameter

    output_form = "log_density"
    exact = True
    capturable = True  # sweeps never wait for a GPU

    def __init__(
        self,
        W: Any,
        a: Any,
        b: Any,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if dtype is not None and dtype not in TYPES:
            raise ArgumentError("dtype", dtype, "torch.float32 or torch.float64")
        raw = {"W": W, "a": a, "b": b}
        given = {name: as_part(value, name).values for name, value in raw.items()}
        _check_fit(**given)
        if dtype is None:  # numbers in lists have no type of their own
            typed = {given[name].dtype for name in raw if hasattr(raw[name], "dtype")} & set(TYPES)
            dtype = max(typed, key=TYPES.index, default=torch.float32)
        place = given["W"].device if device is None else torch.device(device)
        for name, values in given.items():
            values = values.to(place, dtype, copy=True).contiguous()
            if not values.isfinite().all():
                largest = f"values of up to {given[name].abs().max().item():g}"
                raise ArgumentError(name, largest, f"values within the range of {dtype}")
            setattr(self, name, nn.Parameter(values))
        self.visible, self.hidden = self.W.shape
        self.support = Binary(self.visible)

    @classmethod
    def random(
        cls,
        visible: int,
        hidden: int,
        scale: float = 0.1,
        generator: torch.Generator | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        r"""One with normal weights and biases of a given standard deviation.

        They are drawn where the generator lives, so that a CPU generator gives equal ones
        everywhere.
        """
        shape = [
            whole_number(name, size, "a whole number from 1", least=1)
            for name, size in (("visible", visible), ("hidden", hidden))
        ]
        scale = number("scale", scale, "a number from 0", lambda s: s >= 0)
        source = "cpu" if generator is None else generator.device
        drawn = [
            scale * torch.randn(*sizes, generator=generator, device=source, dtype=dtype)
            for sizes in (shape, shape[:1], shape[1:])
        ]
        return cls(*drawn, device=device)

    @classmethod
    def fit(cls, data: Any, hidden: int, **settings: Any) -> RBM:
        r"""One trained on binary data (n, I): see `limbeck.models.rbm_training.train_rbm`."""
        from limbeck.models.rbm_training import train_rbm

        return train_rbm(data, hidden, **settings)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Self:
        r"""One from a file: .npz or .safetensors with W, a and b, or .mat with vishid,
        visbiases and hidbiases (either names are taken in each).
        """
        from limbeck.models.rbm_training import build, read

        return build(cls, Path(path), read(Path(path)), dtype=dtype, device=device)

    def save(self, path: str | Path) -> Path:
        r"""Write W, a and b as .npz or .safetensors, whole or not at all."""
        from limbeck.models.rbm_training import write

        return write(Path(path), {"W": self.W, "a": self.a, "b": self.b})

    def log_unnormalized(self, x: Tensor) -> Tensor:
        r"""log p̃(x), (n,), of x (n, I); differentiable, also at x between zero and one."""
        x = self._of(x, self.visible, "x")
        return x @ self.a + softplus(x @ self.W + self.b).sum(-1)

    forward = log_unnormalized

    def log_unnormalized_hidden(self, h: Tensor) -> Tensor:
        r"""log p̃(h), (n,), of hidden states (n, J), with the same Z."""
        h = self._of(h, self.hidden, "h")
        return h @ self.b + softplus(h @ self.W.T + self.a).sum(-1)

    def score(self, x: Tensor) -> Tensor:
        r"""∂log p̃(x)/∂x, (n, I)."""
        return self.a + self.hidden_probabilities(x) @ self.W.T

    def hidden_probabilities(self, x: Tensor) -> Tensor:
        r"""p(h_j = 1 | x), (n, J)."""
        return torch.sigmoid(self._of(x, self.visible, "x") @ self.W + self.b)

    def visible_probabilities(self, h: Tensor) -> Tensor:
        r"""p(x_i = 1 | h), (n, I)."""
        return torch.sigmoid(self._of(h, self.hidden, "h") @ self.W.T + self.a)

    @torch.no_grad()
    def statistics(self, x: Tensor) -> Statistics:
        r"""Means over x (n, I) and p(h | x): the gradient of the mean of log p̃(x)."""
        x = self._of(x, self.visible, "x")
        if x.dim() != 2 or len(x) == 0:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.visible}), n > 0")
        h = self.hidden_probabilities(x)
        return Statistics(x.T @ h / len(x), x.mean(0), h.mean(0))

    @torch.no_grad()
    def advance(
        self, x: Tensor, sweeps: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        r"""Chains (n, I) moved on by so many sweeps of block Gibbs, x → h → x, as a new tensor.

        It never waits for a GPU, so that it can be captured in a CUDA graph.
        """
        sweeps = whole_number("sweeps", sweeps, "a whole number from 0", least=0)
        state = self._of(x, self.visible, "x")
        if x.dim() != 2:
            raise ArgumentError("x", f"shape {tuple(x.shape)}", f"shape (n, {self.visible})")
        if sweeps == 0:
            return x.clone()
        v = state.new_empty(len(state), self.visible)
        h = state.new_empty(len(state), self.hidden)
        products, bits = BitProducts(self.W.detach()), Bits(2 * sweeps, state.device, generator)
        for _ in range(sweeps):
            bits(products.forth(self.b, state, h))
            bits(products.back(self.a, h, v))
            state = v
        return v.to(x.dtype)

    def start(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Uniform bits (n, I) to start chains from."""
        n = whole_number("n", n, "a whole number from 0", least=0)
        return self.support.start(n, generator, self.W.device, self.W.dtype)

    def path(self, base: Any = None) -> RBMPath:
        r"""The annealing path from independent bits: see `limbeck.models.rbm_path.RBMPath`."""
        from limbeck.models.rbm_path import RBMPath

        return RBMPath(self, base)

    def _of(self, x: Tensor, size: int, argument: str) -> Tensor:
        # shapes and types only, which tracers know
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ArgumentError(argument, kind, f"a floating-point tensor (n, {size})")
        if x.dim() == 0 or x.shape[-1] != size:
            raise ArgumentError(argument, f"shape {tuple(x.shape)}", f"shape (n, {size})")
        if x.device != self.W.device:
            expected = f"one on {self.W.device}, where the RBM is"
            raise ArgumentError(argument, f"a tensor on {x.device}", expected)
        return x.to(self.W.dtype)

    def extra_repr(self) -> str:
        return f"visible={self.visible:,}, hidden={self.hidden:,}"


def _check_fit(W: Tensor, a: Tensor, b: Tensor) -> None:
    if W.dim() != 2:
        expected = "shape (I, J), visible by hidden units"
        raise ArgumentError("W", f"shape {tuple(W.shape)}", expected)
    (visible, hidden), fits = W.shape, tuple(a.shape) + tuple(b.shape)
    if fits == (hidden, visible) != (visible, hidden) and a.dim() == b.dim() == 1:
        received = f"shape {tuple(W.shape)}, which looks transposed"
        raise ArgumentError(
            "W", received, f"shape {fits}, to go with a {fits[:1]} and b {fits[1:]}"
        )
    for name, bias, size in (("a", a, visible), ("b", b, hidden)):
        if tuple(bias.shape) != (size,):
            expected = f"shape ({size},), to go with W {tuple(W.shape)}"
            raise ArgumentError(name, f"shape {tuple(bias.shape)}", expected)
