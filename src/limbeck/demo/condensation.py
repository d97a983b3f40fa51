r"""Condense: the posterior of a logistic regression into ten draws that predict like all."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.condensation.condense import condense
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.logistic import Gaussian, ep_logistic
from limbeck.condensation.logistic import predict as gaussian
from limbeck.condensation.models import logistic
from limbeck.condensation.sample_bag import SampleBag
from limbeck.demo.tour import Tour, print_table
from limbeck.distributions.discrete import Bernoulli
from limbeck.inputs import Noise
from limbeck.report.plots import Kept, picture
from limbeck.samplers.slice import Slice
from limbeck.text import compared

__all__ = [
    "GRID",
    "NEAR",
    "PRIOR_VARIANCE",
    "SIDE",
    "Errors",
    "MonteCarlo",
    "Row",
    "errors",
    "log_posterior",
    "points",
    "run",
    "sampler",
]

PRIOR_VARIANCE = 100.0
COMPONENTS = 10
POOL = 3000  # inputs at which the average over all draws is taken
TURNS = 15  # timings of each prediction
SIDE = torch.linspace(-8, 8, 65, dtype=torch.float64)
GRID = torch.cartesian_prod(SIDE, SIDE)  # where predictions are compared: [−8, 8]² in steps of ¼
NEAR = GRID.norm(dim=1) <= 2  # which of these places are near the origin


class Errors(NamedTuple):
    r"""|t − f|: its mean and maximum on the grid, and its mean near the origin."""

    mean: float
    highest: float
    near: float


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


def errors(truth: Tensor, predictions: Tensor) -> Errors:
    r"""Errors of predictions on the grid."""
    error = (truth - predictions).abs()
    return Errors(float(error.mean()), float(error.max()), float(error[NEAR].mean()))


@dataclass
class Row:
    r"""One way to predict: how near to all draws, how small, how quick, how long to make."""

    way: str
    draws: int
    mean_error: float
    max_error: float
    bytes: int
    milliseconds: float
    seconds: float


def run(tour: Tour) -> dict[str, Any]:
    r"""Sample a posterior, and condense it in several ways; draw it, if matplotlib is there."""
    x, y = points(tour.seed)
    chains = 100
    tour.console.print(
        f"\nSampling the posterior of a logistic regression on {len(x)} points: {chains} chains …"
    )
    began = time.perf_counter()
    slices = sampler(x.float(), y, chains, 100, tour.seed)
    stored = torch.stack([slices.step() for _ in range(100)], 1)  # (chains, sweeps, 2)
    seconds = {"all draws": time.perf_counter() - began, "ten draws": 0.0}
    draws, inputs = stored.flatten(0, 1), Noise(2, scale=math.sqrt(10))
    ways: dict[str, dict[str, Any]] = {
        "batch": {"posterior": stored, "pool": POOL},
        "online": {"posterior": slices, "batch_size": chains},
    }
    sizes = {"EP": 8 * 6, "all draws": draws.nbytes, "ten draws": draws[:COMPONENTS].nbytes}
    bags: dict[str, SampleBag] = {}
    results: dict[str, Condensed] = {}
    for name, arguments in ways.items():
        tour.console.print(f"Condensing into {COMPONENTS} draws: {name} …")
        results[name] = result = condense(
            predict=logistic(), inputs=inputs, components=COMPONENTS,
            steps=max(1, tour.steps // 3), **tour.training, **arguments,
        )  # fmt: skip
        assert isinstance(result.student, SampleBag)
        bags[name], seconds[name], sizes[name] = result.student, result.seconds, result.bytes
    began = time.perf_counter()
    posterior = ep_logistic(x, y, prior_covariance=PRIOR_VARIANCE)
    seconds["EP"] = time.perf_counter() - began
    surfaces = _surfaces(draws, bags, posterior)
    values = {name: surface(GRID.float()).double() for name, surface in surfaces.items()}
    rows = []
    for name, surface in surfaces.items():
        mean, highest, _ = errors(values["all draws"], values[name])
        count = {"all draws": len(draws), "EP": 0}.get(name, COMPONENTS)
        milliseconds = 1e3 * _seconds(surface)
        rows.append(Row(name, count, mean, highest, sizes[name], milliseconds, seconds[name]))
    file = None
    if importlib.util.find_spec("matplotlib"):
        file = tour.folder / "condense.png"
        _draw(x, y, values, draws, bags, posterior, file)
    if tour.tables:
        show(rows, file, tour.console)
    tour.add("condense", results["batch"], finding(rows), x=GRID.float(), points=x, labels=y)
    return {"rows": [asdict(row) for row in rows], "picture": None if file is None else str(file)}


def show(rows: list[Row], file: Path | None, console: Console) -> None:
    r"""Print the table and the finding."""
    cells = [
        (
            row.way, f"{row.draws:,}" if row.draws else "", f"{row.mean_error:.4f}",
            f"{row.max_error:.3f}", f"{row.bytes:,}", f"{row.milliseconds:.3g}",
            f"{row.seconds:.2g}",
        )
        for row in rows
    ]  # fmt: skip
    title = "A Bayesian logistic regression, condensed (errors on [−8, 8]²)"
    columns = ("kept", "draws", "mean |t − f|", "largest", "bytes", "ms / 1,000 inputs", "seconds")
    print_table(console, title, columns, cells, left=("kept",), sections=(1, 3))
    console.print(
        f"t is the average over all draws; batch takes it at {POOL:,} inputs; online sees each "
        "draw once, as the chains run, and keeps none; EP is a Gaussian in place of draws.\n"
    )
    where = "" if file is None else f" The picture is in {file}."
    console.print(finding(rows) + where, soft_wrap=True)


def finding(rows: list[Row]) -> str:
    r"""The one sentence to tell a colleague."""
    every, few, bag, _, gauss = rows
    quick = compared(every.milliseconds, bag.milliseconds, "faster", "slower", "as fast", " times")
    return (
        f"{COMPONENTS} trained draws predict like all {every.draws:,} within {bag.mean_error:.4f} "
        f"on average ({few.mean_error:.4f} if they are not trained, and {gauss.mean_error:.4f} by "
        f"EP), in {bag.bytes} bytes where all draws take {every.bytes:,}, and {quick}, both as "
        "plain matrix products."
    )


def _surfaces(
    draws: Tensor, bags: dict[str, SampleBag], posterior: Gaussian
) -> dict[str, Callable[[Tensor], Tensor]]:
    r"""Every way to predict, as a function of inputs (n, 2) that gives probabilities (n,)."""
    average = MonteCarlo(draws)
    return {
        # 100 inputs at a time stay in a processor's cache
        "all draws": lambda x: torch.cat([average(part) for part in x.split(100)]),
        "ten draws": MonteCarlo(draws[:: len(draws) // COMPONENTS]),
        **{name: _closed(bag) for name, bag in bags.items()},
        "EP": lambda x: gaussian(posterior.mean, posterior.covariance, x),
    }


def _closed(bag: SampleBag) -> Callable[[Tensor], Tensor]:
    r"""The closed form of a bag: Σₖ πₖ σ(xᵀwₖ)."""
    with torch.no_grad():
        across, share = bag._flat.T.contiguous(), bag.weights
    return lambda x: Bernoulli(logits=x @ across).mean @ share


def _seconds(surface: Callable[[Tensor], Tensor]) -> float:
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        surface(x)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _draw(
    x: Tensor,
    y: Tensor,
    values: dict[str, Tensor],
    draws: Tensor,
    bags: dict[str, SampleBag],
    posterior: Gaussian,
    file: Path,
) -> None:
    across, up = (
        torch.linspace(*ends, 121, dtype=x.dtype) for ends in ((-12.0, 36.0), (-24.0, 24.0))
    )
    log = log_posterior(x, y)(torch.cartesian_prod(across, up))
    truth = values["all draws"]
    shown = {"all draws": Kept(truth, draws=draws[:: len(draws) // 1000])}
    for name, bag in bags.items():
        flat, share = bag._flat.detach(), bag.weights.detach()
        shown[name] = Kept(values[name], errors(truth, values[name]).mean, flat, share)
    moments = (posterior.mean, posterior.covariance)
    shown["EP"] = Kept(values["EP"], errors(truth, values["EP"]).mean, gaussian=moments)
    picture(shown, x, y, SIDE, (across, up, (log - log.max()).exp()), file)
