r"""Slice sampling coordinate by coordinate, of any density, on many chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import as_numbers
from limbeck.errors import ArgumentError, shown
from limbeck.progress import tracked
from limbeck.samplers.base import Numbers, Sampler


class Slice(Sampler):
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

    >>> sampler = Slice(lambda x: -x.square().sum(1) / 2, torch.zeros(100, 2)).burn_in(10)
    >>> sampler.step().shape
    torch.Size([100, 2])
    """

    STATE = (*Sampler.STATE, "width")

    @arg.checked_arguments
    def __init__(
        self, log_density: arg.Function[Callable[[Tensor], Tensor]],
        start: arg.UserObject[Numbers], width: arg.UserObject[Numbers] = 1.0, *,
        seed: arg.Seed = 0, generator: torch.Generator | None = None,
        max_steps_out: arg.Count = 1000,
    ) -> None:  # fmt: skip
        super().__init__(log_density, start, seed, generator)
        x = self._x
        expected = f"a finite number above zero, or {self.dim} of them"
        widths = as_numbers(width, "width").to(x, copy=True)
        if widths.shape not in ((), (self.dim,)) or not ((widths > 0) & (widths < math.inf)).all():
            raise ArgumentError("width", shown(width), expected)
        self.width = widths.expand(self.dim).contiguous()
        self.max_steps_out = max_steps_out
        with torch.no_grad():
            self._log = self._evaluate(self._x.clone()).clone()
        self._require_mass()

    def step(self) -> Tensor:
        r"""One sweep, an update of each coordinate of each chain: the draws (chains, dim)."""
        _, far = self._sweep()
        text = (
            f"stepping out took more than half of max_steps_out={self.max_steps_out} in {far:,}"
            f" of {self._x.numel():,} updates: the width is far too small (`burn_in` tunes it),"
            " or the density does not fall off"
        )
        self._warn_once(far, self._x.numel(), text)
        return self._x.clone()

    @arg.checked_arguments
    def burn_in(self, sweeps: arg.CountFromZero, progress: arg.Flag = False) -> Slice:
        r"""Discard the first sweeps, and tune the width to the mean interval of the draws.

        It is set after 1, 2, 4, 8, … sweeps and after the last one, each time from the latest ones.

        Arguments:
            sweeps: The number of sweeps.
            progress: Whether to show a bar. Default: False.
        """
        total, since = torch.zeros_like(self.width), 0
        for done in tracked(range(1, sweeps + 1), "burning in", progress):
            total, since = total + self._sweep()[0], since + 1
            if done == sweeps or done & (done - 1) == 0:
                self.width = torch.where(total > 0, total / since, self.width)
                total, since = torch.zeros_like(total), 0
        return self

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
