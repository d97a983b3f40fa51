r"""Chapter 3's nine mixture experiments: chains, students, and how far each is from the truth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.models.mixture import GaussianMixture
from limbeck.samplers.diagnostics import r_hat
from reproduction.chapter3_exact import exact_log_density, marginals
from reproduction.chapter3_mixtures import (
    GRID,
    Recorded,
    batch_student,
    chains,
    divergence,
    log_density,
    observations,
    online_student,
    sampler,
    truth,
)

__all__ = ["MixtureSettings", "curve", "experiment", "limbecks", "packed", "texts"]

SHOWN = (GRID >= -10) & (GRID <= 10)
r"""Where densities are drawn."""

BINS = 60

RESTARTS, START = 16, 1000
r"""Mixtures that stepwise EM starts, from so many samples of as many draws as a minibatch has."""


class MixtureSettings(Protocol):
    r"""What the mixture experiments need to know; `reproduction.chapter3.Settings`."""

    @property
    def seed(self) -> int: ...
    @property
    def chains(self) -> int: ...
    @property
    def repeats(self) -> int: ...
    @property
    def burn_in(self) -> int: ...
    @property
    def draws(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def steps(self) -> int: ...


def texts() -> StepwiseEM:
    r"""Stepwise EM as in the text: a rate from 1 to 0, and nothing averaged; but with restarts."""
    return StepwiseEM("linear", restarts=RESTARTS, start=START, average=0, window=0)


def limbecks() -> StepwiseEM:
    r"""The same with limbeck's average over the last half of the steps."""
    return StepwiseEM("linear", restarts=RESTARTS, start=START, window=60)


def curve(student: GaussianMixture) -> Tensor:
    r"""A student's log density on the grid."""
    with torch.no_grad():
        return student.log_prob(GRID)


def experiment(count: int, settings: MixtureSettings) -> tuple[dict[str, Any], Tensor]:
    r"""One of the experiments, of so many observations.

    Students are made twice over. "text": of single chains of the text's length, each giving a batch
    student of all its draws and an online one that sees them a minibatch at a time. "parallel": of
    as many chains as a minibatch has draws, with one of each; the batch student has as many draws
    as before, the online one, which keeps none, sees more.

    Returns:
        Numbers and curves for the results; and the draws (chains, draws, 3), for further trials.
    """
    began = time.perf_counter()
    x = observations(count, settings.seed)
    exact, spent = exact_log_density(x), {}
    spent["quadrature"] = _since(began)
    long = chains(sampler(x, settings.chains, settings.burn_in, settings.seed), settings.draws)
    spent["chains"] = _since(began) - spent["quadrature"]
    pooled = log_density(long.flatten(0, 1))
    own = [log_density(chain) for chain in long[: settings.repeats]]
    wide = sampler(x, settings.batch, settings.burn_in, settings.seed + 1)
    side = chains(wide, settings.steps + 1).transpose(0, 1)  # (sweeps, chains, 3), as they come
    made: dict[str, list[Tensor]] = {}
    for name, rows in {
        "text": [*long[: settings.repeats]],
        "parallel": [side.flatten(0, 1)],
    }.items():
        update = texts if name == "text" else limbecks
        for seed, draws in enumerate(rows):
            clock = time.perf_counter()
            batch = batch_student(draws[: settings.draws], settings.samples, seed)
            spent[f"batch, {name}"] = _since(clock)
            clock = time.perf_counter()
            # the first minibatch is only looked at, to start from
            taken = len(draws) // settings.batch - 1
            online = online_student(Recorded(draws), taken, settings.batch, seed, update())
            spent[f"online, {name}"] = _since(clock)
            made.setdefault(f"batch, {name}", []).append(curve(batch))
            made.setdefault(f"online, {name}", []).append(curve(online))
    width = long.element_size() * long.shape[-1]
    found = {
        "observations": count,
        "r_hat": round(max(r_hat(long[:, :, k]) for k in range(long.shape[-1])), 4),
        "pooled": {"draws": long.shape[0] * long.shape[1], "kl": divergence(exact, pooled)},
        "chain": _scores(own, exact, pooled),
        "between_chains": max(divergence(a, b) for a in own for b in own if a is not b)
        if len(own) > 1
        else None,
        "students": {name: _scores(curves, exact, pooled) for name, curves in made.items()},
        "bytes": {
            "batch": settings.draws * width,
            "online": settings.batch * width,
            "student": 9 * long.element_size(),
        },
        "seconds": {name: round(value, 2) for name, value in spent.items()},
        "curves": {"x": packed(GRID[SHOWN], 2)}
        | {
            name: packed(values[SHOWN].exp())
            for name, values in {
                "true": curve(truth()), "exact": exact, "Monte Carlo": own[0],
                "batch": made["batch, text"][0], "online": made["online, text"][0],
                "online, parallel": made["online, parallel"][0],
            }.items()
        },
        "histograms": _histograms(x, long[0]),
    }  # fmt: skip
    return found, long


def _scores(curves: Iterable[Tensor], exact: Tensor, pooled: Tensor) -> dict[str, Any]:
    r"""KL from the exact predictive density and from the pool of chains, of one or more."""
    found: dict[str, Any] = {"kl": [], "kl_pooled": []}
    for each in curves:
        found["kl"].append(divergence(exact, each))
        found["kl_pooled"].append(divergence(pooled, each))
    return found | {"mean": statistics.mean(found["kl"]), "highest": max(found["kl"])}


def _histograms(x: Tensor, draws: Tensor) -> dict[str, Any]:
    r"""The posterior of each mean, (3, bins): of a chain's draws, and exactly."""
    at, p = marginals(x)
    weight = p.sum(0) / p.sum()
    mean = weight @ at
    wide = 4 * (weight @ (at - mean).square()).sqrt()
    low, high = float((mean - wide).clamp_min(at[0])), float((mean + wide).clamp_max(at[-1]))
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    step = float(edges[1] - edges[0])
    own = [torch.histogram(column.contiguous(), edges).hist for column in draws.T]
    centres = (edges[1:] + edges[:-1]) / 2
    nearest = torch.searchsorted(at, centres).clamp(1, len(at) - 1)
    part = (centres - at[nearest - 1]) / (at[1] - at[0])
    exact = torch.lerp(p[:, nearest - 1], p[:, nearest], part) / (at[1] - at[0])
    return {
        "edges": packed(edges, 3),
        "chain": [packed(each / len(draws) / step) for each in own],
        "exact": [packed(each) for each in exact],
    }


def packed(values: Tensor, digits: int = 5) -> str:
    r"""Numbers in order as one string, which takes one line of a file.

    >>> packed(torch.tensor([[0.5, -0.0], [1e-9, 2.0]]), 2)
    '0.5 0 0 2'
    """
    found = (round(float(value), digits) + 0.0 for value in values.flatten())
    return " ".join(f"{value:.{digits}f}".rstrip("0").rstrip(".") or "0" for value in found)


def _since(began: float) -> float:
    return time.perf_counter() - began
