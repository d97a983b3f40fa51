r"""Chapter 3's density estimation: a mixture with unknown means, its posterior, and small students.

The posterior of the three means is sampled by slice sampling, and its predictive density is
distilled into a mixture of three Gaussians: in batch from stored draws, or online from a stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from limbeck.arrays import Batch, strip_prefix
from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.inputs.base import Inputs
from limbeck.losses import kl
from limbeck.models.mixture import GaussianMixture
from limbeck.progress import tracked
from limbeck.samplers.slice import Slice
from limbeck.training.distill import distill

__all__ = [
    "COMPONENTS",
    "GRID",
    "MEANS",
    "PRIOR_VARIANCE",
    "VARIANCES",
    "Predicted",
    "Recorded",
    "batch_student",
    "chains",
    "divergence",
    "log_density",
    "log_posterior",
    "observations",
    "online_student",
    "sampler",
    "truth",
]

MEANS, VARIANCES = (-3.0, 0.0, 2.0), (2.0, 5.0, 1.0)
r"""Of the true mixture, whose three weights are equal; its means are unknown to the model."""

PRIOR_VARIANCE = 100.0

COMPONENTS = 3

GRID = torch.linspace(-60, 60, 1201, dtype=torch.float64)
r"""Where densities are compared: sums over it are integrals, for the least deviation is near 1."""

BLOCK = 2**22
r"""Numbers that `log_density` holds at once."""


def truth() -> GaussianMixture:
    r"""The mixture that the observations are from."""
    found = GaussianMixture(3, dtype=torch.float64, generator=torch.Generator())
    return found.set_([1 / 3] * 3, MEANS, VARIANCES)


def observations(count: int, seed: int) -> Tensor:
    r"""Observations (count,) of the true mixture."""
    generator = torch.Generator().manual_seed(10_000 * seed + count)
    return truth().sample(count, generator)[:, 0]


def log_posterior(x: Tensor) -> Callable[[Tensor], Tensor]:
    r"""log p(w | x) up to a constant, (n,), of means w (n, 3)."""

    def of(w: Tensor) -> Tensor:
        total: Any = None
        for k, variance in enumerate(VARIANCES):
            log = (x - w[:, k : k + 1]).square_().mul_(-0.5 / variance)  # (n, observations)
            log.sub_(0.5 * math.log(variance))
            total = log if total is None else torch.logaddexp(total, log)
        return total.sum(1) - w.square().sum(1) / (2 * PRIOR_VARIANCE)

    return of


def sampler(x: Tensor, count: int, burn_in: int, seed: int, progress: bool = False) -> Slice:
    r"""Chains of the posterior that start at 0, as in the text."""
    start = torch.zeros(count, len(MEANS), dtype=torch.float64)
    return Slice(log_posterior(x), start, seed=seed).burn_in(burn_in, progress)


def chains(running: Slice, sweeps: int, progress: bool = False) -> Tensor:
    r"""Draws (chains, sweeps, 3)."""
    every = [running.step() for _ in tracked(range(sweeps), "slice sampling", progress)]
    return torch.stack(every, 1)


def log_density(draws: Tensor, at: Tensor = GRID) -> Tensor:
    r"""log p_MC (points,): of the average over draws (n, 3) of what each predicts."""
    total = torch.zeros_like(at)
    for part in draws.split(max(1, BLOCK // len(at))):
        for k, variance in enumerate(VARIANCES):
            z = (at - part[:, k : k + 1]).square_().mul_(-0.5 / variance).exp_()
            total += z.sum(0) / math.sqrt(2 * math.pi * variance)
    return (total / (len(VARIANCES) * len(draws))).log()


def divergence(log_p: Tensor, log_q: Tensor) -> float:
    r"""KL(p ‖ q) of log densities on `GRID`, by quadrature."""
    return float((log_p.exp() * (log_p - log_q)).sum() * (GRID[1] - GRID[0]))


class Rows(Protocol):
    r"""Whatever hands draws out: a `limbeck.posteriors.stream.Stream`, or `Recorded`."""

    def next(self, n: int) -> Any: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class Recorded:
    r"""Draws (n, 3) of a chain that has run, handed out in order."""

    def __init__(self, draws: Tensor) -> None:
        self.draws, self.used = draws, 0

    def next(self, n: int) -> Tensor:
        self.used += n
        return self.draws[self.used - n : self.used]

    def state_dict(self) -> dict[str, Tensor]:
        return {"used": torch.tensor(self.used)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.used = int(state["used"])


class Predicted(Inputs):
    r"""One x of p(x | w) for each draw w that is handed out.

    Arguments:
        rows: What hands draws out.
        held: How many draws may be in memory at once.
    """

    def __init__(self, rows: Rows, held: int) -> None:
        super().__init__()
        self.rows, self.held = rows, held

    def draw(self, n: int) -> Tensor:
        return predicted(self.rows.next(n), self.generator)

    def probe(self, n: int) -> Batch:
        r"""Several x of each of the first draws, which are not used again."""
        draws = self.rows.next(min(n, self.held))
        again = draws.repeat(-(-n // len(draws)), 1)[:n]
        return Batch(predicted(again, torch.Generator().manual_seed(0)))

    def build(self, drawn: Tensor) -> Batch:
        return Batch(drawn)

    def state_dict(self) -> dict[str, Tensor]:
        own = {f"rows.{name}": tensor for name, tensor in self.rows.state_dict().items()}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.rows.load_state_dict(strip_prefix("rows.", state))


def predicted(draws: Tensor, generator: torch.Generator) -> Tensor:
    r"""One x of p(x | w) for each of the draws (n, 3): (n, 1)."""
    n = len(draws)
    which = torch.randint(len(MEANS), (n, 1), generator=generator)
    noise = torch.randn(n, 1, generator=generator, dtype=draws.dtype)
    scale = torch.tensor(VARIANCES, dtype=draws.dtype).sqrt()
    return draws.gather(1, which) + scale[which] * noise


def batch_student(draws: Tensor, samples: int, seed: int, restarts: int = 20) -> GaussianMixture:
    r"""A mixture fitted by EM to samples of p_MC, which all draws (n, 3) together define."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(draws), (samples,), generator=generator)
    found = GaussianMixture(COMPONENTS, dtype=torch.float64, generator=generator)
    found.fit(
        predicted(draws[rows], generator), restarts=restarts, generator=generator, progress=False
    )
    return found


def online_student(
    rows: Rows, steps: int, batch_size: int, seed: int, update: StepwiseEM | None = None
) -> GaussianMixture:
    r"""A mixture by stepwise EM, from draws that are used once as they come."""
    generator = torch.Generator().manual_seed(seed)
    found = GaussianMixture(COMPONENTS, dtype=torch.float64, generator=generator)
    distill(
        None, found, Predicted(rows, batch_size), kl(), update=update or StepwiseEM(), steps=steps,
        batch_size=batch_size, seed=seed, device="cpu", engine="eager", progress=False,
    )  # fmt: skip
    return found
