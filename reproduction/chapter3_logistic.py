r"""Chapter 3's logistic regression: 24 points, the posterior of two weights, bags of ten draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.condensation.condense import condense
from limbeck.condensation.predict_function import ClassLogs
from limbeck.condensation.sample_bag import SampleBag
from limbeck.distributions.discrete import Bernoulli
from limbeck.inputs import Dataset, Noise
from limbeck.losses import cross_entropy, derivative_error
from limbeck.losses.base import Loss
from limbeck.samplers.slice import Slice
from limbeck.training.distill import distill

__all__ = [
    "GRID",
    "LOSSES",
    "NEAR",
    "PRIOR_VARIANCE",
    "THINNED",
    "Errors",
    "MonteCarlo",
    "best_bag",
    "errors",
    "exact_surface",
    "independent",
    "log_posterior",
    "points",
    "sampler",
    "squares",
    "text_bag",
]

PRIOR_VARIANCE = 100.0
SIDE = torch.linspace(-8, 8, 65, dtype=torch.float64)
GRID = torch.cartesian_prod(SIDE, SIDE)  # where predictions are compared: [−8, 8]² in steps of ¼

LOSSES: dict[str, Callable[[], Loss]] = {
    "CE": cross_entropy,
    "DSE": lambda: derivative_error(weight="teacher"),
}

NEAR = GRID.norm(dim=1) <= 2
r"""Which places of the grid are near the origin."""

REACH, STEP = 55.0, 0.5
r"""The grid of weights over which the posterior is integrated."""

THINNED = (2000, 300, 20)
r"""Of draws that are nearly independent: chains, their burn-in, and sweeps from draw to draw."""

POOL, BEST_INPUTS = 20_000, {10.0: 0.8, 1.0: 0.2}
r"""How many inputs limbeck's own bags are trained on; a fifth of them are near the origin."""

BLOCK = 4000
r"""Rows at which many draws are averaged at once."""


class MonteCarlo(nn.Module):
    r"""The average over draws (S, 2): the probability (n,) of the label 1."""

    output_form = "probabilities"
    draws: Tensor

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.register_buffer("draws", draws)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.draws.T).sigmoid().mean(1)


def points(seed: int) -> tuple[Tensor, Tensor]:
    r"""24 points (24, 2) and their labels (24,): 12 of N((−4, 0), I), 12 of N((4, 0), I)."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(2).repeat_interleave(12)
    x = torch.randn(24, 2, generator=generator, dtype=torch.float64)
    x[:, 0] += 4 * (2 * label - 1)
    return x, label


def log_posterior(x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    r"""log p(w | points) up to a constant, (n,), of weights w (n, 2)."""
    signed = (2 * y - 1)[:, None] * x

    def log_density(w: Tensor) -> Tensor:
        return F.logsigmoid(w @ signed.T).sum(1) - w.square().sum(1) / (2 * PRIOR_VARIANCE)

    return log_density


def sampler(x: Tensor, y: Tensor, chains: int, burn_in: int, seed: int) -> Slice:
    r"""Chains of the posterior that start at 0."""
    start = torch.zeros(chains, x.shape[1], dtype=x.dtype)
    return Slice(log_posterior(x, y), start, seed=seed).burn_in(burn_in)


class Errors(NamedTuple):
    r"""|t − f|: its mean and maximum on the grid, and its mean near the origin."""

    mean: float
    highest: float
    near: float


def errors(truth: Tensor, predictions: Tensor) -> Errors:
    r"""Errors of predictions on the grid."""
    error = (truth - predictions).abs()
    return Errors(float(error.mean()), float(error.max()), float(error[NEAR].mean()))


def independent(x: Tensor, y: Tensor, count: int, seed: int) -> Tensor:
    r"""About `count` draws (n, 2) by many chains, one after another, that are thinned as well.

    Neighbours are of different chains, and draws of a chain are far apart.
    """
    chains, burn_in, thin = THINNED
    running = sampler(x, y, min(chains, count), burn_in, seed)
    times = math.ceil(count / min(chains, count))
    sweeps = [running.step() for _ in range(thin * times)]
    return torch.cat(sweeps[thin - 1 :: thin]).float()


def exact_surface(x: Tensor, y: Tensor, at: Tensor = GRID) -> Tensor:
    r"""p(y = 1 | x, D) at the places (n, 2), by quadrature over the weights: (n,)."""
    side = torch.arange(-REACH, REACH + STEP / 2, STEP, dtype=x.dtype)
    weights = torch.cartesian_prod(side, side)
    log = log_posterior(x, y)(weights)
    p = (log - log.max()).exp()
    some = p > 1e-10
    weights, p = weights[some], p[some] / p[some].sum()
    return torch.cat([(part @ weights.T).sigmoid() @ p for part in at.split(BLOCK)])


def predict(w: Tensor, x: Tensor) -> Bernoulli:
    r"""What one draw says of all inputs."""
    return Bernoulli(logits=x @ w)


def squares(rows: Tensor, batch: int) -> Iterator[Tensor]:
    r"""Draws (n, 2) a minibatch at a time."""
    return iter(rows.split(batch))


def text_bag(
    loss: str,
    draws: Tensor,
    *,
    online: bool,
    variance: float,
    steps: int,
    batch: int,
    components: int,
    seed: int,
    share: int = 1,
) -> tuple[SampleBag, float]:
    r"""A bag by the text's schedule: plain gradients, a rate from 1 to 0, fresh inputs.

    Arguments:
        loss: "CE" or "DSE".
        draws: Draws (n, 2). In batch, the teacher is the average over all of them; online, they
            come a minibatch at a time.
        online: Which of the two.
        variance: The inputs are of N(0, variance · I).
        steps: Steps.
        batch: Inputs a step.
        components: Draws in the bag.
        seed: Of inputs, and of where the bag starts.
        share: Online, by how many draws of its minibatch each input is predicted.

    Returns:
        The bag, and the seconds it took.
    """
    scale = math.sqrt(variance)
    if online:
        result: Any = condense(
            squares(draws, batch), predict, Noise((2,), scale=scale), components=components,
            loss=LOSSES[loss](), preset="thesis", steps=steps, batch_size=batch,
            draws_per_input=share,
            seed=seed, device="cpu", progress=False,
        )  # fmt: skip
        return result.student, result.seconds
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(steps * batch, 2, generator=generator)  # each is used once
    bag = SampleBag(predict, draws, components, start="normal", scaled=False, generator=generator)
    return _distilled(
        bag, draws, x, LOSSES[loss](), steps=steps, batch_size=batch, optimizer="sgd", lr=1.0,
        schedule="linear", seed=seed,
    )  # fmt: skip


def best_bag(
    draws: Tensor,
    *,
    steps: int,
    components: int,
    seed: int,
    inputs: Mapping[float, float] = BEST_INPUTS,
) -> tuple[SampleBag, float]:
    r"""A weighted bag by Adam on cross entropy and a little derivative error, and its seconds.

    Arguments:
        draws: Draws (n, 2), over all of which the teacher averages.
        steps: Steps, of 200 inputs each.
        components: Draws in the bag.
        seed: Of inputs, and of where the bag starts.
        inputs: The shares of inputs by the variances of the normal distributions they are of.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.cat([
        math.sqrt(variance) * torch.randn(round(share * POOL), 2, generator=generator)
        for variance, share in inputs.items()
    ])  # fmt: skip
    bag = SampleBag(predict, draws, components, weighted=True, generator=generator)
    loss = LOSSES["CE"]() + 0.1 * LOSSES["DSE"]()
    return _distilled(bag, draws, x, loss, steps=steps, batch_size=200, lr=0.05, seed=seed)


def _distilled(
    bag: SampleBag, draws: Tensor, x: Tensor, loss: Loss, **options: Any
) -> tuple[SampleBag, float]:
    r"""A bag, trained on the average over draws at inputs x (n, 2), and the seconds it took."""
    student = ClassLogs(bag)
    result = distill(
        MonteCarlo(draws), student, Dataset(x), loss, precompute=True, device="cpu",
        progress=False, **options,
    )  # fmt: skip
    return bag, result.seconds
