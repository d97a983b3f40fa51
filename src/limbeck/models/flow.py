r"""The neural spline flow of zuko: a density that can be evaluated and sampled exactly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from limbeck.arguments import Count, CountFromZero, Items, Whole, checked_arguments, integer
from limbeck.arrays import random
from limbeck.environment import import_extra
from limbeck.errors import ArgumentError
from limbeck.models.checks import DtypeName, Generator, Sizes, Specified, matrix
from limbeck.supports import Real


def zuko() -> Any:
    r"""The library zuko, if it is installed."""
    return import_extra("zuko", "flows", "flow: it needs")


class Flow(Specified):
    r"""A normalizing flow: normal variables, transformed by monotonic splines (Durkan et al. 2019).

    Variables are shifted and scaled first, by `start_from`. Splines act within five deviations.
    Each of `transforms` splines has `bins` pieces, placed by nets with `hidden` sizes.
    """

    output_form = "log_density"
    fields: ClassVar[Mapping[str, Any]] = dict(
        dim=int, hidden=Sizes, transforms=int, bins=int, dtype=DtypeName
    )

    @checked_arguments
    def __init__(
        self, dim: Count, hidden: Items[Sequence[int]] = (64, 64), transforms: Count = 3,
        bins: Annotated[int, Whole(2)] = 8, *, dtype: torch.dtype | None = None,
        generator: Generator = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.transforms, self.bins, self.support = dim, transforms, bins, Real(dim)
        expected = "sizes of hidden layers, as in (64, 64)"
        self.hidden = tuple(integer("hidden", size, expected, least=1) for size in hidden)
        with torch.random.fork_rng(devices=[]):  # zuko draws from the global generator
            if generator is not None:
                seed = torch.randint(2**31, (), generator=generator, device=generator.device)
                torch.manual_seed(int(seed))
            # up to 16 variables each depends on all before it; more are split into two halves
            options = {"bins": bins, "transforms": transforms, "hidden_features": self.hidden}
            self.flow = zuko().flows.NSF(dim, passes=None if dim <= 16 else 2, **options)
        self.shift, self.scale = nn.Buffer(torch.zeros(dim)), nn.Buffer(torch.ones(dim))
        self.to(dtype)

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        # a net for each transform, from the variables to 3 · bins − 1 numbers of each
        sizes = (fields["dim"], *fields["hidden"], fields["dim"] * (3 * fields["bins"] - 1))
        count = sum(before * after for before, after in itertools.pairwise(sizes))
        return fields["transforms"] * count

    def start_from(self, x: Tensor) -> Self:
        r"""Take shift and scale from the means and deviations of samples (n, D)."""
        rows = matrix(x, self.dim).double()
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
        z = (matrix(x, self.dim) - self.shift) / self.scale
        return self.flow().log_prob(z) - self.scale.log().sum()

    forward = log_prob

    @torch.no_grad()
    def sample(self, n: CountFromZero, generator: Generator = None) -> Tensor:
        r"""Independent samples (n, D)."""
        return self.rsample(n, generator)

    @checked_arguments
    def rsample(self, n: CountFromZero, generator: Generator = None) -> Tensor:
        r"""The same, differentiable with respect to the parameters."""
        z = random(torch.randn, (n, self.dim), self.shift, generator)
        return self.flow().transform.inv(z) * self.scale + self.shift
