r"""The neural spline flow, by zuko: a density of numbers that is evaluated and sampled exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.models.mlp import is_count
from limbeck.supports import Real

__all__ = ["Flow", "zuko"]

# variables up to which each depends on all before it; more are taken in two halves
FULLY = 16


def zuko() -> Any:
    r"""The library; an error says how to get it."""
    try:
        return import_module("zuko")
    except ImportError:
        expected = "an installation with it: pip install 'limbeck[flows]'"
        raise ArgumentError("flow", "no zuko, which it is made with", expected) from None


class Flow(nn.Module):
    r"""A normalizing flow: normal variables, bent by monotonic splines (Durkan et al. 2019).

    Variables are shifted and scaled first, as `start_from` finds them; splines bend what is within
    five deviations, and farther away the density is normal.

    Arguments:
        dim: The number of variables D.
        hidden: Hidden sizes of the nets that place the splines.
        transforms: How many times all variables are bent.
        bins: Pieces of a spline.
        dtype: The parameters' type.
        generator: Where the first weights are drawn from; None is torch's global one.

    Attributes:
        support: What x may be: real numbers (n, D).
    """

    output_form = "log_density"
    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (64, 64),
        transforms: int = 3,
        bins: int = 8,
        *,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dim = whole_number("dim", dim, "a whole number from 1", least=1)
        if isinstance(hidden, str) or not all(map(is_count, hidden)):
            raise ArgumentError("hidden", repr(hidden), "sizes of hidden layers, as in (64, 64)")
        self.hidden = tuple(map(int, hidden))
        self.transforms = whole_number("transforms", transforms, "a whole number from 1", least=1)
        self.bins = whole_number("bins", bins, "a whole number from 2", least=2)
        self.support = Real(self.dim)
        library = zuko()
        with torch.random.fork_rng(devices=[]):  # zuko draws from the global generator
            if generator is not None:
                seed = torch.randint(2**31, (), generator=generator, device=generator.device)
                torch.manual_seed(int(seed))
            self.flow = library.flows.NSF(
                self.dim, bins=self.bins, transforms=self.transforms,
                passes=None if self.dim <= FULLY else 2, hidden_features=self.hidden,
            )  # fmt: skip
        self.register_buffer("shift", torch.zeros(self.dim))
        self.register_buffer("scale", torch.ones(self.dim))
        self.to(dtype)

    def start_from(self, x: Tensor) -> Self:
        r"""Take shift and scale from the means and deviations of samples (n, D)."""
        rows = self._rows(x).double()
        mean = rows.mean(0)
        deviation = (rows - mean).square().mean(0).sqrt()
        if bool((constant := deviation <= 1e-12 * rows.abs().amax(0)).any()):
            received = f"samples whose variable {int(constant.nonzero()[0])} never changes"
            raise ArgumentError("x", received, "samples of a density")
        self.shift.copy_(mean)
        self.scale.copy_(deviation)
        return self

    def log_prob(self, x: Tensor) -> Tensor:
        r"""Log density (n,) of rows (n, D)."""
        z = (self._rows(x) - self.shift) / self.scale
        found: Tensor = self.flow().log_prob(z) - self.scale.log().sum()
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.log_prob(x)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent samples (n, D)."""
        n = whole_number("n", n, "a whole number from 0", least=0)
        lives = self.shift.device if generator is None else generator.device
        z = torch.randn(n, self.dim, generator=generator, device=lives, dtype=self.shift.dtype)
        bent: Tensor = self.flow().transform.inv(z.to(self.shift.device))
        return bent * self.scale + self.shift

    def spec(self) -> dict[str, Any]:
        r"""All but the weights, as JSON can hold it."""
        return {
            "type": type(self).__name__,
            "dim": self.dim,
            "hidden": list(self.hidden),
            "transforms": self.transforms,
            "bins": self.bins,
            "dtype": str(self.shift.dtype).removeprefix("torch."),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        r"""A flow of the same shape, freshly initialised."""
        fields = dict(spec)
        names = {"type", "dim", "hidden", "transforms", "bins", "dtype"}
        if set(fields) != names or fields.pop("type") != cls.__name__:
            raise ArgumentError("spec", dict(spec), f"what {cls.__name__}.spec() gives")
        return cls(**fields | {"dtype": getattr(torch, fields["dtype"])})

    def _rows(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != self.dim:
            received = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError("x", received, f"a tensor (n, {self.dim})")
        return x
