r"""Hamiltonian Monte Carlo of a differentiable density, on many chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck import arguments as arg
from limbeck.arrays import as_numbers
from limbeck.errors import ArgumentError, NotDifferentiableError
from limbeck.progress import tracked
from limbeck.samplers.base import Numbers, Sampler

MAX_DENSE = 400  # coordinates; beyond, a dense covariance costs more than it saves


class Point(NamedTuple):
    r"""Points (n, dim), log densities (n,) and their derivatives (n, dim)."""

    x: Tensor
    log: Tensor
    slope: Tensor


def differentiate(log_density: Callable[[Tensor], Tensor], x: Tensor) -> Point:
    r"""A log density and its derivatives, which are 0 where they are not numbers."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        log = log_density(x)
        if not isinstance(log, Tensor) or not log.requires_grad:
            raise NotDifferentiableError(
                "log_density: expected a tensor that autograd can differentiate, got one without "
                "derivatives with respect to the points; use lb.samplers.Slice, which needs none"
            )
        (slope,) = torch.autograd.grad(log.sum(), x, allow_unused=True, materialize_grads=True)
    return Point(x.detach(), log.detach(), slope.nan_to_num(0.0, 0.0, 0.0))


def leapfrog(
    evaluate: Callable[[Tensor], Point], here: Point, momentum: Tensor, step: float | Tensor,
    scale: Tensor, count: int | Tensor,
) -> tuple[Point, Tensor]:  # fmt: skip
    r"""The ends of trajectories and their momenta, after `count` steps.

    Momenta are standard normal: `scale` is the standard deviations (dim,) of the coordinates, or a
    factor L (dim, dim) of their covariance LLᵀ. Step sizes (n, 1) and counts (n, 1) may differ from
    row to row. Any number in place of a derivative leaves the map reversible, with determinant 1.
    """
    times = torch.mul if scale.dim() == 1 else torch.matmul
    most = int(count.max()) if isinstance(count, Tensor) else count
    for k in range(most):
        size = step if isinstance(count, int) else step * (k < count)  # 0 after a row's last
        momentum = momentum + size / 2 * times(here.slope, scale)
        here = evaluate(here.x + size * times(momentum, scale.t()))
        momentum = momentum + size / 2 * times(here.slope, scale)
    return here, momentum


class Move(NamedTuple):
    r"""Points after a trajectory each, accepted or not."""

    end: Point
    acceptance: Tensor  # the probability that each was accepted with, (n,)
    divergent: Tensor  # which trajectories were unstable, (n,)
    outside: Tensor  # which ended where the density is zero, (n,)


def move(
    evaluate: Callable[[Tensor], Point], here: Point, step: float | Tensor, scale: Tensor,
    count: int | Tensor, generator: torch.Generator,
) -> Move:  # fmt: skip
    r"""One trajectory of each point, with a new momentum; the density stays invariant."""
    x = here.x
    draw: dict[str, Any] = {"generator": generator, "device": x.device, "dtype": x.dtype}
    momentum = torch.randn(x.shape, **draw)
    end, last = leapfrog(evaluate, here, momentum, step, scale, count)
    kinetic = (momentum.square() - last.square()).sum(1) / 2
    gain = end.log - here.log + kinetic
    known = end.x.isfinite().all(1) & ~gain.isnan()
    gain = torch.where(known, gain, -math.inf)
    acceptance = gain.clamp_max(0).exp()
    accepted = torch.rand(len(x), **draw) < acceptance
    wide = accepted[:, None]
    after = Point(*map(torch.where, (wide, accepted, wide), end, here))
    outside = end.log == -math.inf
    # outside, log p̃ is no measure of the error; momenta that grew beyond all bounds are
    unstable = ~known | (torch.where(outside, kinetic, gain) < -1000.0)
    return Move(after, acceptance, unstable, outside & ~unstable)


class StepSize:
    r"""A step size by dual averaging (Hoffman and Gelman, 2014) of the logarithm."""

    def __init__(self, start: float, target: float) -> None:
        self.target, self.centre = target, math.log(10 * start)
        self.count, self.error, self.log, self.mean = 0, 0.0, math.log(start), math.log(start)

    def update(self, acceptance: float) -> float:
        r"""The next step size to try."""
        self.count += 1
        n = self.count
        self.error += (self.target - acceptance - self.error) / (n + 10)
        self.log = self.centre - math.sqrt(n) / 0.05 * self.error
        self.mean += n**-0.75 * (self.log - self.mean)
        return math.exp(self.log)


class HMC(Sampler):
    r"""Chains that leave a differentiable density invariant, by Hamiltonian dynamics.

    A sweep follows a trajectory of each chain, with derivatives by autograd, to a distant point,
    which is accepted with a high probability. `burn_in` adapts the step size and the covariance of
    the coordinates (their variances, where there are few draws) from all chains together;
    afterwards nothing changes. The number of steps is drawn anew at each sweep, so that
    trajectories do not return to where they began. The sampler is an endless iterator over draws.

    Points where the density is zero (−∞) are never accepted. Trajectories that became unstable are
    counted in `divergences`; many of them mean that a part of the density may be missed.

    Arguments:
        log_density: The log density up to a constant, (n,), of points (n, dim), such that autograd
            can differentiate it; −∞ is allowed. A row may not depend on the others.
        start: First points (chains, dim), with a density above zero. They set precision and device.
        step_size: The first step size, in units of the scale. Default: dim^(−1/4).
        scale: Standard deviations (dim,) of the coordinates, or a Cholesky factor
            (dim, dim) of their covariance. Default: ones.
        acceptance: The mean acceptance that the step size is adapted to. Default: 0.8.
        seed: The generator's seed. Default: 0.
        generator: A generator instead of the seed. Default: None.

    Attributes:
        divergences: Trajectories that became unstable, since the burn-in.
        accepted: The mean probability of acceptance of all sweeps since the burn-in.

    >>> sampler = HMC(lambda x: -x.square().sum(1) / 2, torch.zeros(100, 2)).burn_in(50)
    >>> sampler.step().shape, sampler.divergences
    (torch.Size([100, 2]), 0)
    """

    STATE = (
        *Sampler.STATE, "_slope", "scale", "step_size", "_acceptance", "divergences",
        "_trajectories",
    )  # fmt: skip

    @arg.checked_arguments
    def __init__(
        self, log_density: arg.Function[Callable[[Tensor], Tensor]],
        start: arg.UserObject[Numbers], *, step_size: arg.Positive | None = None,
        scale: arg.UserObject[Numbers | None] = None,
        acceptance: arg.InnerFraction = 0.8, seed: arg.Seed = 0,
        generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__(log_density, start, seed, generator)
        coordinates = self.dim
        self.target = acceptance
        expected = f"numbers above zero ({coordinates},), or a factor ({coordinates},) * 2"
        given = 1.0 if scale is None else scale
        factor = as_numbers(given, "scale").to(self._x, copy=True)
        self.scale = factor.expand(coordinates).contiguous() if factor.dim() < 2 else factor
        sizes = self.scale.diagonal() if self.scale.dim() == 2 else self.scale
        square = self.scale.shape in ((coordinates,), (coordinates, coordinates))
        if not square or not ((sizes > 0) & (sizes < math.inf)).all():
            raise ArgumentError("scale", f"shape {tuple(factor.shape)}", expected)
        self.step_size = coordinates**-0.25 if step_size is None else step_size
        self.divergences = self._trajectories = 0
        self._acceptance = 0.0  # the sum over trajectories
        here = self._differentiate(self._x)
        self._log, self._slope = here.log, here.slope
        self._require_mass()

    @property
    def accepted(self) -> float:
        return self._acceptance / self._trajectories if self._trajectories else math.nan

    def step(self) -> Tensor:
        r"""One sweep, a trajectory of each chain: the draws (chains, dim)."""
        moved = self._sweep(self.step_size)
        self._acceptance += float(moved.acceptance.sum())
        self._trajectories += self.chains
        self.divergences += int(moved.divergent.sum())
        text = (
            f"{self.divergences:,} of {self._trajectories:,} trajectories became unstable: the "
            "density has parts that are far narrower than others, which chains may miss; "
            "a longer `burn_in`, other coordinates or a higher `acceptance` may help"
        )
        self._warn_once(self.divergences, self._trajectories, text)
        return self._x.clone()

    @arg.checked_arguments
    def burn_in(self, sweeps: arg.CountFromZero, progress: arg.Flag = False) -> HMC:
        r"""Discard the first sweeps, and adapt the step size and the scale.

        The scale is set after 8, 16, 32, … sweeps, each time from the latest ones, and for the last
        time before the last quarter, which adapts the step size alone.

        Arguments:
            sweeps: The number of sweeps.
            progress: Whether to show a bar. Default: False.
        """
        step, final = self.step_size, sweeps - sweeps // 4
        moments, size = _Moments(self._x), StepSize(step, self.target)
        for done in tracked(range(1, sweeps + 1), "burning in", progress):
            moved = self._sweep(step)
            # the harmonic mean: chains that stand still count more than those that move, but not
            # those that left the support, which no step size prevents
            inside = moved.acceptance[~moved.outside].clamp_min(0.1)
            if len(inside):
                step = size.update(float(1 / (1 / inside).mean()))
            moments.add(self._x)
            power = done >= 8 and done & (done - 1) == 0 and 2 * done <= final
            if (power or done == final) and (scale := moments.scale()) is not None:
                self.scale, moments = scale.to(self._x), _Moments(self._x)
                step = min(max(step, 1e-3), self._x.shape[1] ** -0.25)
                size = StepSize(step, self.target)
        if sweeps:
            self.step_size = math.exp(size.mean)
        self._trajectories = self.divergences = 0
        self._acceptance = 0.0
        return self

    @torch.no_grad()
    def _sweep(self, step: float) -> Move:
        # steps of the longest trajectory, in units of the scale; the shortest is a third of it
        most = min(math.ceil(2.4 / step), 500)
        place: dict[str, Any] = {"generator": self.generator, "device": self.generator.device}
        count = int(torch.randint(math.ceil(most / 3), most + 1, (), **place))
        here = Point(self._x, self._log, self._slope)
        moved = move(self._differentiate, here, step, self.scale, count, self.generator)
        self._x, self._log, self._slope = moved.end
        self.sweeps_done += 1
        return moved

    def _differentiate(self, x: Tensor) -> Point:
        # so far out, a function may overflow; nearer, NaN is an error of the user's
        near = x.abs().amax(1) <= 10 * self._x.abs().max() + 10
        return differentiate(lambda rows: self._evaluate(rows, near), x)


class _Moments:
    r"""The mean and covariance of the draws of all chains."""

    def __init__(self, x: Tensor) -> None:
        self.count, self.centre, self.dense = 0, x.mean(0).double(), x.shape[1] <= MAX_DENSE
        self.sum: Any = 0.0
        self.squares: Any = 0.0

    def add(self, x: Tensor) -> None:
        rows = x.double() - self.centre
        self.count += len(rows)
        self.sum += rows.sum(0)
        self.squares += rows.T @ rows if self.dense else rows.square().sum(0)

    def scale(self) -> Tensor | None:
        r"""Standard deviations, or a factor of the covariance where draws suffice for one.

        None unless every coordinate has varied.
        """
        n, mean = self.count, self.sum / self.count
        variances = (self.squares.diagonal() if self.dense else self.squares) / n - mean.square()
        if n <= 2 or not (variances > 0).all():
            return None
        if self.dense and len(mean) > 1 and n >= 4 * len(mean):
            covariance = self.squares / n - mean.outer(mean)
            weight = n / (n + 5.0)
            covariance = weight * covariance + (1 - weight) * variances.diag()
            factor, failed = torch.linalg.cholesky_ex(covariance)
            if not failed:
                return factor
        return variances.sqrt()
