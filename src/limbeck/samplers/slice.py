r"""Slice sampling coordinate by coordinate, of any density, on many chains at once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import (
    Count,
    CountFromZero,
    Flag,
    Function,
    Seed,
    UserObject,
    checked_arguments,
)
from limbeck.errors import ArgumentError, CheckpointError, shown
from limbeck.progress import tracked

Numbers = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray | Tensor


class Slice:
    r"""Chains that leave a density invariant: Neal's slice sampling (2003), one coordinate a time.

    An update draws a height below the density at the present point; the slice is where the density
    is above it. An interval around the point steps out until both ends have left the slice, and
    shrinks to points drawn from it until one is inside. The sampler is an endless iterator over
    draws.

    Arguments:
        log_density: The log density up to a constant, (n,), of points (n, dim); −∞ is allowed.
        start: First points (chains, dim), with a density above zero. They set precision and device.
        width: How far an end steps: a number, or one for each coordinate. Default: 1.0.
        seed: The generator's seed. Default: 0.
        generator: A generator instead of the seed. Default: None.
        max_steps_out: The most steps that both ends may take together. Default: 1000.
        tune: Whether `burn_in` changes the width. Default: True.

    >>> sampler = Slice(lambda x: -x.square().sum(1) / 2, torch.zeros(100, 2)).burn_in(10)
    >>> sampler.step().shape
    torch.Size([100, 2])
    """

    @checked_arguments
    def __init__(
        self, log_density: Function[Callable[[Tensor], Tensor]], start: UserObject[Numbers],
        width: UserObject[Numbers] = 1.0, *, seed: Seed = 0,
        generator: torch.Generator | None = None, max_steps_out: Count = 1000, tune: Flag = True,
    ) -> None:  # fmt: skip
        if not callable(log_density):
            expected = "a function of points (n, dim)"
            raise ArgumentError("log_density", f"a {type(log_density).__name__}", expected)
        self.log_density = log_density
        expected = "finite points (chains, dim) in single or double precision"
        x = _tensor("start", start, expected)
        if not x.is_floating_point() and not x.is_complex():
            x = x.to(torch.get_default_dtype())
        if x.dim() != 2 or x.numel() == 0 or x.dtype not in (torch.float32, torch.float64):
            raise ArgumentError("start", f"shape {tuple(x.shape)} of {x.dtype}", expected)
        if x.is_meta or not x.isfinite().all():
            raise ArgumentError("start", "NaN or infinite numbers", expected)
        self._x, (self.chains, self.dim) = x, x.shape
        expected = f"a finite number above zero, or {self.dim} of them"
        widths = _tensor("width", width, expected, x.dtype).to(x.device)
        if widths.shape not in ((), (self.dim,)) or not ((widths > 0) & (widths < math.inf)).all():
            raise ArgumentError("width", shown(width), expected)
        self.width = widths.expand(self.dim).contiguous()
        self.max_steps_out, self.tune = max_steps_out, tune
        if generator is None:
            generator = torch.Generator(self._x.device).manual_seed(seed)
        elif generator.device.type != self._x.device.type:
            expected = f"one on {self._x.device}, where the chains are"
            raise ArgumentError("generator", f"one on {generator.device}", expected)
        self.generator = generator
        self.sweeps_done = self.evaluations = 0
        self._warned = False
        with torch.no_grad():
            self._log = self._evaluate(self._x.clone()).clone()  # (chains,), where the chains are
        if nowhere := int((self._log == -math.inf).sum()):
            received = f"a density of zero at {nowhere:,} of {self.chains:,} points"
            raise ArgumentError("start", received, "points with a density above zero")

    def step(self) -> Tensor:
        r"""One sweep, an update of each coordinate of each chain: the draws (chains, dim)."""
        _, far = self._sweep()
        usual = 0.01 * self._x.numel()
        # of a few chains several may be far out by chance, as of a Cauchy distribution
        if far > usual + 4 * math.sqrt(usual) + 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"stepping out took more than half of max_steps_out={self.max_steps_out} in {far:,}"
                f" of {self._x.numel():,} updates: the width is far too small (`burn_in` tunes it),"
                " or the density does not fall off",
                stacklevel=2,
            )
        return self._x.clone()

    __next__ = step

    def __iter__(self) -> Iterator[Tensor]:
        return self

    @checked_arguments
    def burn_in(self, sweeps: CountFromZero, progress: Flag = False) -> Slice:
        r"""Discard the first sweeps, and tune the width to the mean interval of the draws.

        It is set after 1, 2, 4, 8, … sweeps and after the last one, each time from the latest ones.

        Arguments:
            sweeps: The number of sweeps.
            progress: Whether to show a bar. Default: False.
        """
        total, since = torch.zeros_like(self.width), 0
        for done in tracked(range(1, sweeps + 1), "burning in", progress):
            total, since = total + self._sweep()[0], since + 1
            if self.tune and (done == sweeps or done & (done - 1) == 0):
                self.width = torch.where(total > 0, total / since, self.width)
                total, since = torch.zeros_like(total), 0
        return self

    def state_dict(self) -> dict[str, Tensor]:
        r"""The state that is needed to continue exactly: tensors only."""
        tensors = {"chains": self._x, "log_density": self._log, "width": self.width}
        return {name: tensor.clone() for name, tensor in tensors.items()} | {
            "counts": torch.tensor([self.sweeps_done, self.evaluations]),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Continue from a state of `state_dict`."""
        stored, here = (f"{tuple(x.shape)} of {x.dtype}" for x in (state["chains"], self._x))
        if stored != here:
            raise CheckpointError(f"checkpoint: the chains in it are {stored}, and here {here}")
        self._x = state["chains"].to(self._x, copy=True)
        self._log = state["log_density"].to(self._log, copy=True)
        self.width = state["width"].to(self.width, copy=True)
        self.sweeps_done, self.evaluations = state["counts"].tolist()
        self.generator.set_state(state["generator"].cpu())

    @torch.no_grad()
    def _sweep(self) -> tuple[Tensor, int]:
        r"""Move all chains: mean intervals (dim,), and updates with over half of the steps out."""
        intervals, far = torch.empty_like(self.width), 0
        for coordinate in range(self.dim):
            drop = torch.empty_like(self._log).exponential_(generator=self.generator)
            height = self._log - drop  # log(u · density), u uniform
            left, right, steps = self._step_out(coordinate, height)
            intervals[coordinate] = self._shrink(coordinate, height, left, right)
            far += int((2 * steps > self.max_steps_out).sum())
        self.sweeps_done += 1
        return intervals, far

    def _step_out(self, coordinate: int, height: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Left ends, right ends and the steps that both have taken, (chains,) each."""
        n, limit, width = self.chains, self.max_steps_out, self.width[coordinate]
        left = self._x[:, coordinate] - width * self._uniform(n)
        ends = torch.cat([left, left + width])  # (2n,): the left ones, then the right ones
        to_left = torch.randint(limit + 1, (n,), generator=self.generator, device=ends.device)
        steps = torch.cat([to_left, limit - to_left])  # that an end has left
        moving = steps.nonzero()[:, 0]
        while len(moving):
            chain = moving % n
            inside = self._log_at(chain, coordinate, ends[moving]) >= height[chain]
            moving = moving[inside]
            ends[moving] += torch.where(moving < n, -width, width)
            steps[moving] -= 1
            moving = moving[steps[moving] > 0]
        left, right = ends.view(2, n)
        return left, right, limit - steps.view(2, n).sum(0)

    def _shrink(self, coordinate: int, height: Tensor, left: Tensor, right: Tensor) -> Tensor:
        r"""Move each chain to a point in its slice; the mean interval left. Ends move in place."""
        here = self._x[:, coordinate].clone()
        chain = torch.arange(self.chains, device=here.device)
        while len(chain):
            low, high = left[chain], right[chain]
            point = low + (high - low) * self._uniform(len(chain))
            log = self._log_at(chain, coordinate, point)
            # Its own point is in a chain's slice, however a density is rounded: so this ends.
            log = torch.where(point == here[chain], self._log[chain], log)
            inside = log >= height[chain]
            hit = chain[inside]
            self._x[hit, coordinate], self._log[hit] = point[inside], log[inside]
            chain, point = chain[~inside], point[~inside]
            below = point < here[chain]
            left[chain[below]], right[chain[~below]] = point[below], point[~below]
        return (right - left).mean()

    def _log_at(self, chain: Tensor, coordinate: int, value: Tensor) -> Tensor:
        r"""The log density (n,) where n of the chains would be with this value of a coordinate."""
        points = self._x[chain]
        points[:, coordinate] = value
        return self._evaluate(points)

    def _evaluate(self, points: Tensor) -> Tensor:
        log, n = self.log_density(points), len(points)
        self.evaluations += n
        if not isinstance(log, Tensor) or log.shape != (n,):
            received = f"a {type(log).__name__} of shape {tuple(getattr(log, 'shape', ()))}"
            expected = f"a tensor of shape ({n},) for points {tuple(points.shape)}"
            raise ArgumentError("log_density", received, expected)
        wrong = ~(log < math.inf)
        if wrong.any():
            received = f"{float(log[wrong][0])} at {points[wrong][0].tolist()}"
            raise ArgumentError("log_density", received, "numbers, or −∞ where there is no density")
        return log

    def _uniform(self, n: int) -> Tensor:
        x = self._x
        return torch.rand(n, generator=self.generator, device=x.device, dtype=x.dtype)


def _tensor(
    argument: str, value: Numbers, expected: str, dtype: torch.dtype | None = None
) -> Tensor:
    try:
        tensor = torch.as_tensor(value, dtype=dtype).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(argument, shown(value), expected) from None
    if tensor.layout != torch.strided:
        raise ArgumentError(argument, f"a tensor of layout {tensor.layout}", expected)
    return tensor
