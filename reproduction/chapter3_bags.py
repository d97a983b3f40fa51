r"""Chapter 3's logistic regression over data sets: students of every kind beside EP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from limbeck.condensation.sample_bag import SampleBag
from reproduction.chapter3_density import packed
from reproduction.chapter3_findings import INDEPENDENT, SHARED
from reproduction.chapter3_logistic import (
    GRID,
    LOSSES,
    PRIOR_VARIANCE,
    MonteCarlo,
    best_bag,
    errors,
    exact_surface,
    independent,
    log_posterior,
    points,
    sampler,
    text_bag,
)
from reproduction.expectation_propagation import ep_logistic
from reproduction.expectation_propagation import predict as gaussian

__all__ = ["LogisticSettings", "data_set", "shown"]

SPARE = 40
r"""Minibatches of draws that are only looked at before an online student's first step."""

PICTURE = torch.linspace(-8, 8, 41, dtype=torch.float64)

POSTERIOR = ((-12.0, 36.0), (-24.0, 24.0))
r"""Which weights are drawn."""


class LogisticSettings(Protocol):
    r"""What the regressions need to know; `reproduction.chapter3.Settings`."""

    @property
    def burn_in(self) -> int: ...
    @property
    def draws(self) -> int: ...
    @property
    def wide_sets(self) -> int: ...
    @property
    def counted_sets(self) -> int: ...
    @property
    def counts(self) -> tuple[int, ...]: ...
    @property
    def components(self) -> int: ...
    @property
    def bag_steps(self) -> int: ...
    @property
    def bag_batch(self) -> int: ...


def data_set(number: int, settings: LogisticSettings) -> dict[str, Any]:
    r"""All that is made of one set of 24 points: errors, seconds and bytes by student."""
    x, y = points(number)
    truth, batch = exact_surface(x, y), settings.bag_batch
    began = time.perf_counter()
    sweeps = max(settings.draws // batch, settings.bag_steps + SPARE)
    running = sampler(x, y, batch, settings.burn_in, seed=number)
    side = torch.stack([running.step() for _ in range(sweeps)]).float()  # (sweeps, chains, 2)
    sampling = time.perf_counter() - began
    stored = side[: settings.draws // batch].flatten(0, 1)
    text: dict[str, Any] = {
        "steps": settings.bag_steps, "batch": batch, "components": settings.components,
        "seed": number,
    }  # fmt: skip
    bags: dict[str, tuple[SampleBag, float]] = {}
    variances = (10.0, 100.0) if number < settings.wide_sets else (10.0,)
    for variance in variances:
        for loss in LOSSES:
            for online in (False, True):
                name = f"{loss} {'online' if online else 'batch'}"
                name += "" if variance == variances[0] else f", inputs N(0, {variance:.0f}·I)"
                bags[name] = text_bag(
                    loss, side.flatten(0, 1) if online else stored, online=online,
                    variance=variance, **text,
                )  # fmt: skip
    bags |= _calmer(side.flatten(0, 1), independent(x, y, side.shape[0] * batch, number), text)
    best: dict[str, Any] = {
        "steps": settings.bag_steps,
        "components": settings.components,
        "seed": number,
    }
    bags["limbeck"] = best_bag(stored, **best)
    bags["limbeck, inputs N(0, 10·I)"] = best_bag(stored, **best, inputs={10.0: 1.0})
    surfaces: dict[str, Callable[[Tensor], Tensor]] = {
        name: _surface(bag) for name, (bag, _) in bags.items()
    }
    surfaces["exact"] = lambda at: exact_surface(x, y, at)
    surfaces["MCMC"] = lambda at: _averaged(stored, at)
    began = time.perf_counter()
    posterior = ep_logistic(x, y, prior_covariance=PRIOR_VARIANCE)
    spent = time.perf_counter() - began
    mean, covariance = posterior.mean, posterior.covariance
    surfaces["EP"] = lambda at: gaussian(mean, covariance, at)
    surfaces["EP, MacKay"] = lambda at: gaussian(mean, covariance, at, "mackay")
    seconds = {name: round(taken, 2) for name, (_, taken) in bags.items()}
    found = {
        "data_set": number,
        "errors": {
            name: errors(truth, surface(GRID))
            for name, surface in surfaces.items()
            if name != "exact"
        },
        "seconds": seconds | {"MCMC": round(sampling, 2), "EP": round(spent, 3)},
        "bytes": {
            "MCMC": stored.nbytes, "online": side[0].nbytes,
            "bag": bags["CE batch"][0]._flat.nbytes,
            "weighted bag": bags["limbeck"][0]._flat.nbytes + bags["limbeck"][0].weights.nbytes,
            "EP": mean.nbytes + covariance.nbytes,
        },
    }  # fmt: skip
    if number < settings.counted_sets:
        found["components"] = {
            str(count): errors(
                truth, _surface(best_bag(stored, **best | {"components": count})[0])(GRID)
            )
            for count in settings.counts
        }
    if number == 0:
        found["shown"] = shown(x, y, surfaces, bags, stored, mean, covariance)
    return found


def _calmer(
    draws: Tensor, apart: Tensor, text: Mapping[str, Any]
) -> dict[str, tuple[SampleBag, float]]:
    r"""Online students with less noise, by the text's schedule and inputs N(0, 10·I)."""
    ways = {SHARED: (draws, text["batch"]), INDEPENDENT: (apart, 1)}
    return {
        f"{loss} online, {way}": text_bag(
            loss, own, online=True, variance=10.0, share=share, **text
        )
        for way, (own, share) in ways.items()
        for loss in LOSSES
    }


def shown(
    x: Tensor,
    y: Tensor,
    surfaces: dict[str, Callable[[Tensor], Tensor]],
    bags: dict[str, tuple[SampleBag, float]],
    stored: Tensor,
    mean: Tensor,
    covariance: Tensor,
) -> dict[str, Any]:
    r"""What the pictures are drawn of: points, the posterior, weights, surfaces."""
    across, up = (torch.linspace(*ends, 61, dtype=x.dtype) for ends in POSTERIOR)
    weights = torch.cartesian_prod(across, up)
    log = log_posterior(x, y)(weights)
    at = torch.cartesian_prod(PICTURE, PICTURE)
    drawn = {name: surface(at) for name, surface in surfaces.items() if "," not in name}
    return {
        "points": packed(x, 3),
        "labels": y.tolist(),
        "posterior": {
            "across": packed(across, 1),
            "up": packed(up, 1),
            "density": packed((log - log.max()).exp(), 4),
        },
        "draws": packed(stored[:: max(1, len(stored) // 1000)], 2),
        "weights": {
            name: {"draws": packed(bag._flat.detach(), 3), "share": packed(bag.weights.detach(), 4)}
            for name, (bag, _) in bags.items()
        },
        "gaussian": {"mean": packed(mean, 3), "covariance": packed(covariance, 3)},
        "surface": {
            "side": packed(PICTURE, 1),
            "values": {name: packed(values, 4) for name, values in drawn.items()},
        },
    }


def _surface(bag: SampleBag) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def surface(at: Tensor) -> Tensor:
        found: Tensor = bag(at).mean.double()
        return found

    return surface


@torch.no_grad()
def _averaged(draws: Tensor, at: Tensor) -> Tensor:
    model = MonteCarlo(draws)
    return torch.cat([model(part.float()).double() for part in at.split(500)])
