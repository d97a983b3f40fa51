r"""Annealed importance sampling: log Z along a path from a density whose log Z is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM, base_biases
from limbeck.normalization.bounds import mean_bound
from limbeck.normalization.bridge import fit_bridge
from limbeck.normalization.densities import Densities
from limbeck.normalization.estimate import LogPartition, Verdict
from limbeck.normalization.importance import log_mean, weight_doubts
from limbeck.normalization.modes import check_modes
from limbeck.normalization.path_check import check_path
from limbeck.normalization.sampling import Starts, as_start
from limbeck.normalization.tails import tail_doubts
from limbeck.normalization.walk import SIGNIFICANT, Walk, drift, starts, target_starts_have_mass
from limbeck.progress import tracked
from limbeck.samplers.diagnostics import pareto_k, weights_effective_size

__all__ = ["SPACINGS", "ais", "temperatures"]

SPACINGS = ("geometric", "linear", "sigmoid")
STEEPNESS = 4.0
APART = 0.25
r"""A drift of log p̃, in its standard deviations, that matters."""

BASE_CHAINS, BASE_SWEEPS = 1000, 200
ACCEPTED = "'2008', a number of temperatures, or increasing numbers from 0 to 1"


def temperatures(
    schedule: str | int | Sequence[float] | Tensor, spacing: str = "linear"
) -> list[float]:
    r"""The inverse temperatures β of a schedule, from 0 to 1.

    Arguments:
        schedule: "2008" for Salakhutdinov and Murray's 14,500 (500 in [0, 0.5), 4,000 in [0.5, 0.9)
            and 10,000 in [0.9, 1]); how many, from 2; or the numbers themselves.
        spacing: How a number of them is spread: "linear"; "sigmoid", closer at both ends;
            "geometric", closer at 0.

    >>> temperatures(5)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if spacing not in SPACINGS:
        raise ArgumentError.unknown("spacing", spacing, SPACINGS)
    if isinstance(schedule, str):
        if schedule != "2008":
            raise ArgumentError("schedule", repr(schedule), ACCEPTED)
        parts = ((0.0, 0.5, 500), (0.5, 0.9, 4000))
        early = [low + (high - low) * k / n for low, high, n in parts for k in range(n)]
        return [*early, *(0.9 + 0.1 * k / 9999 for k in range(9999)), 1.0]
    if isinstance(schedule, int) or not hasattr(schedule, "__len__"):
        return _spread(whole_number("schedule", schedule, ACCEPTED, least=2), spacing)
    betas = [number("schedule", beta, ACCEPTED, lambda b: 0 <= b <= 1) for beta in schedule]
    rising = all(a < b for a, b in itertools.pairwise(betas))
    if len(betas) < 2 or not rising or betas[0] != 0 or betas[-1] != 1:
        few = ", ".join(f"{beta:g}" for beta in betas[:5])
        raise ArgumentError("schedule", f"({few}{', …' if len(betas) > 5 else ''})", ACCEPTED)
    return betas


def _spread(count: int, spacing: str) -> list[float]:
    last = count - 1
    even = [k / last for k in range(count)]
    if spacing == "sigmoid":
        bend = math.tanh(STEEPNESS / 2)
        even = [0.5 + 0.5 * math.tanh(STEEPNESS * (t - 0.5)) / bend for t in even]
    elif spacing == "geometric":
        even = [0.0, *(count ** ((k - last) / last) for k in range(1, last))]
        even.append(1.0)
    return [0.0, *even[1:-1], 1.0]


def ais(
    densities: Densities,
    samples: int,
    *,
    schedule: str | int | Sequence[float] | Tensor = "2008",
    spacing: str = "linear",
    path: Any = None,
    reverse: bool = False,
    start: Any = "target",
    burn_in: int | str = 2000,
    progress: bool = True,
) -> LogPartition:
    r"""log Z by annealing all samples at once; the arguments are those of `log_partition`.

    The mean of the weights is Z without bias, and the mean of their logarithms a lower bound. The
    reverse way, from the target down to the start of the path, gives an upper one; then both ways
    together give a bridge, with which the forward estimate must agree.
    """
    betas = temperatures(schedule, spacing)
    path = _path(densities.target if path is None else path, densities)
    check_path(path, densities, reverse)
    x = path.sample(samples, densities.generator("path"))
    total, x = _up(path, x, betas, densities.generator("annealing"), progress)
    forward = path.log_z + total
    value, error = log_mean(forward)
    modes = check_modes(densities, x[:, None], value, error, forward)
    found = weight_doubts(forward, "weights of the runs") + tail_doubts(densities, x)
    diagnostics: dict[str, Any] = {
        "ess": weights_effective_size(forward),
        "sampling_error": error,
        "pareto_k": pareto_k(forward),
        "temperatures": len(betas),
    }
    sweeps, upper = samples * (len(betas) - 1), None
    unchecked = []
    if reverse:
        steps = whole_number("burn_in", burn_in, "a whole number from 0", least=0)
        origin: Starts = (as_start(start, "start"),)
        if not isinstance(origin[0], str) and target_starts_have_mass(densities):
            origin = (*origin, "target")  # events add to the starts of this check
        backward, more, doubts = _backward(densities, path, betas, samples, origin, steps, progress)
        upper, sweeps = mean_bound(backward), sweeps + more
        both = fit_bridge(backward[:, None], forward)
        diagnostics |= {"both_ways": both.log_z, "both_ways_error": both.std_error}
        found += doubts
        if steps == 0:
            unchecked.append(
                "the upper bound is of chains that were never moved (burn_in=0): whether they are "
                "draws of the target was not checked"
            )
        gap = abs(both.log_z - value)
        if gap > SIGNIFICANT * math.hypot(error, both.std_error):
            found.append(f"the two ways disagree by {gap:.3g} nats")
            error = math.hypot(error, gap)
        if float(upper) < float(mean_bound(forward)):
            found.append("the upper bound is below the lower one")
    found, error = found + modes.reasons, math.hypot(error, modes.lacking)
    diagnostics |= modes.diagnostics
    return LogPartition(
        value,
        error,
        "ais",
        Verdict(tuple(found), tuple(unchecked)),
        mean_bound(forward),
        upper,
        diagnostics,
        samples=samples,
        sweeps=sweeps,
        degrees=max(samples - 1, 1),
    )


def _path(given: Any, densities: Densities) -> Any:
    r"""The path itself, or that of a target."""
    if isinstance(given, RBM):
        return given.path(_base(given, densities.generator("base")))
    own = getattr(given, "path", None)
    path = own() if callable(own) else given
    wanted = ("log_z", "sample", "log_unnormalized", "advance", "climb")
    missing = [name for name in wanted if not hasattr(path, name)]
    if missing:
        what = "no path()" if own is None else f"a path without {' and '.join(missing)}"
        expected = (
            "for method='ais', a target with path(), such as an lb.RBM or an lb.Energy over a "
            "discrete support, or path=; see limbeck.models.energy.Path"
        )
        raise ArgumentError("target", f"a {type(given).__name__} with {what}", expected)
    return path


def _base(rbm: RBM, generator: torch.Generator) -> Tensor:
    r"""Biases near the model's own means, by chains too short to be its samples.

    Any start of a path is right; from uniform bits it would be a longer one by far.
    """
    return base_biases(rbm.advance(rbm.start(BASE_CHAINS, generator), BASE_SWEEPS, generator))


def _backward(
    densities: Densities,
    path: Any,
    betas: list[float],
    samples: int,
    origin: Starts,
    burn_in: int,
    progress: bool,
) -> tuple[Tensor, int, list[str]]:
    r"""Log weights (n,) of runs from the target down, their sweeps, and doubts about them."""
    generator = densities.generator("chains")
    walk = Walk(densities, starts(densities, origin, samples, generator), generator, progress)
    walk.sweep(burn_in // 4)
    early = densities.log_target(walk.x).cpu()
    walk.sweep(burn_in - burn_in // 4)
    now = densities.log_target(walk.x).cpu()
    score, moved = drift(early, now), abs(float((now - early).mean()))
    weights = path.log_z + _down(path, walk.x, betas, generator, progress)
    doubts = []
    if abs(score) > SIGNIFICANT and moved > APART * float(now.std()):
        doubts.append(
            f"the target's chains still drift at the end of their burn-in (z = {score:.1f}): the "
            "upper bound may be none"
        )
    if not densities.exact:
        doubts.append("the target's sampler says that it is not exact")
    return weights, walk.sweeps + samples * (len(betas) - 1), doubts


def _up(
    path: Any, x: Tensor, betas: list[float], generator: torch.Generator, progress: bool
) -> tuple[Tensor, Tensor]:
    r"""The log weights (n,) of runs from β = 0 to 1, and where they end."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    pairs = list(itertools.pairwise(betas))
    for before, after in tracked(pairs, "annealing", progress):
        gain, x = path.climb(x, before, after, generator)
        total += gain
    return _finite(total), x


def _down(
    path: Any, x: Tensor, betas: list[float], generator: torch.Generator, progress: bool
) -> Tensor:
    r"""The same of runs from β = 1 to 0, by the reversed kernels."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    pairs = list(zip(betas[-2::-1], betas[:0:-1], strict=True))
    for before, after in tracked(pairs, "annealing back", progress):
        x = path.advance(x, after, generator, reverse=True)
        gain = path.log_unnormalized(x, after) - path.log_unnormalized(x, before)
        total += gain.double()
    return _finite(total)


def _finite(total: Tensor) -> Tensor:
    total = total.cpu()
    bad = total.isnan() | (total == math.inf)
    if bad.any() or (total == -math.inf).all():
        received = f"log weights such as {total[bad | (total == -math.inf)][0].item()}"
        raise ArgumentError("target", received, "numbers, or −∞ for some of the runs")
    return total
