r"""Predictions of a compact student beside the average over all draws, and beside EP.

Bayesian logistic regression on 24 points: 10,000 draws of the posterior, a bag of ten trained ones,
and EP's Gaussian with vectorised quadrature and with MacKay's approximation. Each predicts 1,000
inputs of N(0, 10·I), in turn, round after round. Errors are from the exact predictive probability.
What counts is the bag as it is called, `bag(x).mean`; its bare formula is beside. One JSON line a
figure.

    python benchmarks/predict.py [--threads 2] [--inputs 1000]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import machine, report, side_by_side
from torch import Tensor

from limbeck.condensation.sample_bag import SampleBag

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction.chapter3_logistic import PRIOR_VARIANCE, best_bag, exact_surface, points, sampler
from reproduction.expectation_propagation import ep_logistic, mackay_mean, sigmoid_mean

DRAWS, CHAINS, BURN_IN = 10_000, 100, 200
COMPONENTS = (5, 10, 20)
STEPS = 3000
NODES = (8, 16, 32)
BLOCK = 100  # inputs whose predictions by all draws stay in a processor's cache


def average(draws: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    r"""The average over draws, for so many rows at once: a product, sigmoids, a mean."""
    across = draws.T.contiguous()
    return lambda x: torch.cat([(part @ across).sigmoid_().mean(1) for part in x.split(rows)])


def formula(bag: SampleBag) -> Callable[[Tensor], Tensor]:
    r"""The bag's closed form, as one would write it down: a product, sigmoids, a product."""
    across, weights = bag._flat.detach().T.contiguous(), bag.weights.detach()
    return lambda x: (x @ across).sigmoid_() @ weights


def called(bag: SampleBag) -> Callable[[Tensor], Tensor]:
    r"""The bag as users call it, which gives a distribution."""

    @torch.no_grad()
    def of(x: Tensor) -> Tensor:
        mean: Tensor = bag(x).mean
        return mean

    return of


def gaussian(
    mean: Tensor, covariance: Tensor, integral: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    r"""EP's predictions without checks: the moments of xᵀw, then an integral over it."""
    m, s = mean.float(), covariance.float()
    return lambda x: integral(x @ m, ((x @ s) * x).sum(1))


def gauss_hermite(nodes: int) -> Callable[[Tensor, Tensor], Tensor]:
    r"""The mean of σ under Gaussians by one rule for all: sigmoids at all nodes, a product."""
    at, weight = np.polynomial.hermite_e.hermegauss(nodes)
    z = torch.tensor(at, dtype=torch.float32)
    share = torch.tensor(weight / weight.sum(), dtype=torch.float32)
    return lambda m, v: torch.addcmul(m[:, None], v.sqrt()[:, None], z).sigmoid_() @ share


def main() -> None:
    r"""Make the posterior and the students, then time all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--inputs", type=int, default=1000)
    ask = parser.parse_args()
    torch.set_num_threads(ask.threads)
    report("machine", **machine(), load=os.getloadavg()[0])
    data, labels = points(0)
    chains = sampler(data, labels, CHAINS, BURN_IN, seed=0)
    draws = torch.cat([chains.step() for _ in range(DRAWS // CHAINS)]).float()
    x = 10**0.5 * torch.randn(ask.inputs, 2, generator=torch.Generator().manual_seed(1))
    truth = exact_surface(data, labels, x.double())
    posterior = ep_logistic(data, labels, prior_covariance=PRIOR_VARIANCE)
    moments = posterior.mean, posterior.covariance
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        f"average over {DRAWS:,} draws": average(draws, BLOCK),
        f"average over {DRAWS:,} draws, all inputs at once": average(draws, ask.inputs),
    }
    for count in COMPONENTS:
        bag, _ = best_bag(draws, steps=STEPS, components=count, seed=0)
        ways[f"bag of {count}"] = formula(bag)
        ways[f"bag of {count}, as a distribution"] = called(bag)
    for nodes in NODES:
        ways[f"EP, Gauss–Hermite, {nodes} nodes"] = gaussian(*moments, gauss_hermite(nodes))
    ways["EP, limbeck's two rules"] = gaussian(*moments, sigmoid_mean)
    ways["EP, MacKay"] = gaussian(*moments, mackay_mean)
    took = side_by_side({name: (lambda f=f: f(x)) for name, f in ways.items()}, calls=10, rounds=15)
    whole = next(iter(ways))
    for name, way in ways.items():
        apart = (way(x).double() - truth).abs()
        must = "at least 100×" if name == "bag of 10, as a distribution" else ""
        report(
            name, microseconds=took.microseconds(name), usual=took.microseconds(whole),
            ratio=took.ratio(whole, name), mean_error=float(apart.mean()),
            highest_error=float(apart.max()), must=must,
        )  # fmt: skip
    report("load at the end", load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
