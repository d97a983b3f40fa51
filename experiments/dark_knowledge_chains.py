r"""Bayesian nets for dark knowledge: their posterior, chains of it, and the plain net beside.

SGLD is that of `posteriors`, NUTS that of BlackJAX, both wrapped in examples/running_chain.py.
Where neither is installed, limbeck's slice sampler runs the small net of the toy problem.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import limbeck as lb
from limbeck.condensation.models import MLPRegression, mlp
from limbeck.progress import tracked

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from running_chain import Hamiltonian, Langevin, log_density

__all__ = [
    "Net",
    "installed",
    "langevin",
    "mean_and_error",
    "nuts",
    "plain",
    "slices",
    "weights_mix_slowly",
]


def installed(name: str) -> bool:
    r"""Whether a library is there."""
    return importlib.util.find_spec(name) is not None


@contextmanager
def weights_mix_slowly() -> Iterator[None]:
    r"""No warnings of R̂ of single weights, which results have: they are the same net in any order.

    What matters is the average of predictions, which is compared with that of another sampler.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="posterior: R̂")
        yield


def mean_and_error(values: list[float]) -> dict[str, Any]:
    r"""Values over seeds, their mean, and its standard error (None for one seed)."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"values": values, "mean": statistics.mean(values), "error": error}


class Net:
    r"""A net of rectified units with a normal prior on all weights, and its data.

    Arguments:
        sizes: Numbers of inputs, hidden units and classes.
        x: Inputs (N, D).
        y: Classes (N,).
        scale: The prior's standard deviation.
    """

    def __init__(self, sizes: tuple[int, ...], x: Tensor, y: Tensor, scale: float) -> None:
        self.sizes, self.x, self.y, self.scale = sizes, x, y, scale
        self.predict: MLPRegression = mlp(*sizes, hidden="relu")
        self.dim = self.predict.structure.dim

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        r"""Logits (chains, m, K) of weights (chains, dim) at inputs (chains, m, D)."""
        parts = list(self.predict.structure.unflatten(w).values())
        layers = list(zip(parts[::2], parts[1::2], strict=True))
        for number, (weight, bias) in enumerate(layers):
            x = torch.baddbmm(bias.unsqueeze(1), x if not number else x.relu(), weight.mT)
        return x

    def log_posterior(self, w: Tensor, rows: Tensor | None = None) -> Tensor:
        r"""(chains,) of weights (chains, dim), by all data or some rows (chains, m) of each."""
        if rows is None:
            rows = torch.arange(len(self.y)).expand(len(w), -1)
        logs = self.outputs(w, self.x[rows]).log_softmax(2)
        known = logs.gather(2, self.y[rows].unsqueeze(2)).squeeze(2)
        return len(self.y) * known.mean(1) - (w / self.scale).square().sum(1) / 2

    def start(self, chains: int, seed: int) -> Tensor:
        r"""Weights (chains, dim) such as nets are initialised with."""
        generator = torch.Generator().manual_seed(seed)
        nets = (lb.MLP(*self.sizes, generator=generator) for _ in range(chains))
        return torch.stack([torch.cat([p.detach().flatten() for p in net.parameters()])
                            for net in nets])  # fmt: skip

    def average(self, draws: Tensor, x: Tensor) -> Tensor:
        r"""Probabilities of the classes at x, averaged over draws (S, dim): (n, K)."""
        total = torch.zeros(len(x), self.sizes[-1], dtype=torch.float64)
        for some in draws.split(200):
            total += self.outputs(some, x.expand(len(some), -1, -1)).softmax(2).double().sum(0)
        return total / len(draws)


def langevin(
    net: Net, chains: int, rate: float, batch: int, burn_in: int, thin: int, seed: int,
    temperature: float = 1.0, progress: bool = False,
) -> Langevin:  # fmt: skip
    r"""SGLD chains past their burn-in, in which the rate falls from ten times to once."""

    def rates(done: Tensor) -> float:
        return rate * (1 + 9 * max(0.0, 1 - 2 * float(done) / max(1, burn_in)))

    def rows(generator: torch.Generator) -> Tensor:
        return torch.randint(len(net.y), (chains, batch), generator=generator)

    start = net.start(chains, seed)
    found = Langevin(net.log_posterior, rows, start, rates, thin, seed, temperature)
    for _ in tracked(range(burn_in // thin), "burning in", progress):
        found.step()
    return found


def nuts(net: Net, chains: int, warm_up: int, thin: int, seed: int) -> Hamiltonian:
    r"""NUTS of BlackJAX, for a net of one hidden layer."""
    density = log_density(net.x, net.y, net.scale, net.sizes)
    return Hamiltonian(density, net.start(chains, seed).numpy(), warm_up, thin, seed)


def slices(net: Net, chains: int, burn_in: int, seed: int) -> lb.samplers.Slice:
    r"""limbeck's own slice sampler, for a small net."""
    start = net.start(chains, seed)
    return lb.samplers.Slice(net.log_posterior, start, seed=seed).burn_in(burn_in)


def plain(net: Net, steps: int, seed: int, rate: float = 0.01) -> Tensor:
    r"""The plain net, trained by Adam to the posterior's maximum: weights (1, dim)."""
    w = net.start(1, seed).requires_grad_()
    optimizer = torch.optim.Adam([w], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (-net.log_posterior(w).sum() / len(net.y)).backward()
        optimizer.step()
        schedule.step()
    return w.detach()
