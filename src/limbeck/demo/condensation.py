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
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.condensation.condense import condense
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.logistic import Gaussian, ep_logistic
from limbeck.condensation.logistic import predict as gaussian
from limbeck.condensation.models import logistic
from limbeck.condensation.sample_bag import SampleBag
from limbeck.demo.tour import Tour
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

CENTRE, EACH = 4.0, 12
r"""Points of a class, about (±4, 0)."""

SIDE = torch.linspace(-8, 8, 65, dtype=torch.float64)
GRID = torch.cartesian_prod(SIDE, SIDE)
r"""Where predictions are compared: [−8, 8]² in steps of ¼."""

NEAR = GRID.norm(dim=1) <= 2
r"""Which of these places are near the origin."""


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
    label = torch.arange(2).repeat_interleave(EACH)
    x = torch.randn(2 * EACH, 2, generator=generator, dtype=torch.float64)
    x[:, 0] += CENTRE * (2 * label - 1)
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


def errors(truth: Tensor, found: Tensor) -> Errors:
    r"""How far predictions on the grid are from the truth."""
    apart = (truth - found).abs()
    return Errors(float(apart.mean()), float(apart.max()), float(apart[NEAR].mean()))


CHAINS, BURN_IN, SWEEPS = 100, 100, 100
COMPONENTS = 10
POOL = 3000
r"""Inputs at which the average over all draws is taken."""

INPUTS = 1000
r"""Inputs whose predictions are timed."""

BLOCK = 100
r"""Inputs that all draws predict at once: so many stay in a processor's cache."""

TURNS = 15
SHOWN = 1000
r"""Draws in the picture."""

FILE = "condense.png"
WEIGHTS = ((-12.0, 36.0), (-24.0, 24.0))
r"""Which weights are drawn."""


EP_BYTES = 8 * 6
r"""Of a mean and a covariance, in double precision."""


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


def run(
    steps: int, seed: int, console: Console, progress: bool, shown: bool, tour: Tour
) -> dict[str, Any]:
    r"""Sample a posterior, condense it in several ways, and print the table if it is to be shown.

    The picture is written to the tour's folder, if matplotlib is there.
    """
    x, y = points(seed)
    console.print(
        f"\nSampling the posterior of a logistic regression on {len(x)} points: {CHAINS} chains …"
    )
    began = time.perf_counter()
    chains = sampler(x.float(), y, CHAINS, BURN_IN, seed)
    stored = torch.stack([chains.step() for _ in range(SWEEPS)], 1)  # (chains, sweeps, 2)
    sampling = time.perf_counter() - began
    draws = stored.flatten(0, 1)
    inputs = Noise(2, scale=math.sqrt(10))
    ways: dict[str, dict[str, Any]] = {
        "batch": {"posterior": stored, "pool": POOL},
        "online": {"posterior": chains, "batch_size": CHAINS},
    }
    made: dict[str, Condensed] = {}
    bags: dict[str, SampleBag] = {}
    seconds: dict[str, float] = {}
    for name, arguments in ways.items():
        console.print(f"Condensing into {COMPONENTS} draws: {name} …")
        made[name] = result = condense(
            predict=logistic(), inputs=inputs, components=COMPONENTS, steps=max(1, steps // 3),
            seed=seed, device="cpu", progress=progress, **arguments,
        )  # fmt: skip
        assert isinstance(result.student, SampleBag)
        bags[name], seconds[name] = result.student, result.seconds
    began = time.perf_counter()
    posterior = ep_logistic(x, y, prior_covariance=PRIOR_VARIANCE)
    seconds |= {"EP": time.perf_counter() - began, "all draws": sampling, "ten draws": 0.0}
    surfaces = _surfaces(draws, bags, posterior)
    values = {name: surface(GRID.float()).double() for name, surface in surfaces.items()}
    sizes = {name: result.bytes for name, result in made.items()}
    sizes |= {"EP": EP_BYTES, "all draws": _bytes(draws), "ten draws": _bytes(draws[:COMPONENTS])}
    rows = [
        _row(name, surface, values, len(draws), sizes[name], seconds[name])
        for name, surface in surfaces.items()
    ]
    file = None
    if importlib.util.find_spec("matplotlib"):
        file = tour.folder / FILE
        _draw(x, y, values, draws, bags, posterior, file)
    if shown:
        show(rows, file, console)
    tour.add("condense", made["batch"], finding(rows), x=GRID.float(), points=x, labels=y)
    return {"rows": [asdict(row) for row in rows], "picture": None if file is None else str(file)}


def show(rows: list[Row], file: Path | None, console: Console) -> None:
    r"""Print the table and what was found."""
    table = Table(
        title="A Bayesian logistic regression, condensed (errors on [−8, 8]²)", title_justify="left"
    )
    columns = ("kept", "draws", "mean |t − f|", "largest", "bytes", "ms / 1,000 inputs", "seconds")
    for column in columns:
        table.add_column(column, justify="left" if column == "kept" else "right")
    for i, row in enumerate(rows):
        table.add_row(
            row.way, f"{row.draws:,}" if row.draws else "", f"{row.mean_error:.4f}",
            f"{row.max_error:.3f}", f"{row.bytes:,}", f"{row.milliseconds:.3g}",
            f"{row.seconds:.2g}", end_section=i in (1, 3),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"t is the average over all draws; batch takes it at {POOL:,} inputs; online sees each "
        "draw once, as the chains run, and keeps none; EP is a Gaussian in place of draws.\n"
    )
    where = "" if file is None else f" The picture is in {file}."
    console.print(finding(rows) + where, soft_wrap=True)


def finding(rows: list[Row]) -> str:
    r"""The one sentence to tell a colleague."""
    every, few, bag, _, gauss = rows
    spent = every.milliseconds, bag.milliseconds
    quick = compared(*spent, "faster", "slower", "as fast", " times")
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
    every, ten = MonteCarlo(draws), MonteCarlo(draws[:: len(draws) // COMPONENTS])
    trained = {name: _closed(bag) for name, bag in bags.items()}
    return {
        "all draws": lambda x: torch.cat([every(part) for part in x.split(BLOCK)]),
        "ten draws": ten,
        **trained,
        "EP": lambda x: gaussian(posterior.mean, posterior.covariance, x),
    }


def _closed(bag: SampleBag) -> Callable[[Tensor], Tensor]:
    r"""The closed form of a bag: Σₖ πₖ σ(xᵀwₖ)."""
    with torch.no_grad():
        across, share = bag._flat.T.contiguous(), bag.weights
    return lambda x: Bernoulli(logits=x @ across).mean @ share


def _row(
    name: str,
    surface: Callable[[Tensor], Tensor],
    values: dict[str, Tensor],
    draws: int,
    size: int,
    seconds: float,
) -> Row:
    mean, highest, _ = errors(values["all draws"], values[name])
    count = {"all draws": draws, "EP": 0}.get(name, COMPONENTS)
    return Row(name, count, mean, highest, size, 1e3 * _seconds(surface), seconds)


def _bytes(draws: Tensor) -> int:
    return draws.numel() * draws.element_size()


def _seconds(surface: Callable[[Tensor], Tensor]) -> float:
    x = torch.randn(INPUTS, 2, generator=torch.Generator().manual_seed(0))
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
    across, up = (torch.linspace(*ends, 121, dtype=x.dtype) for ends in WEIGHTS)
    log = log_posterior(x, y)(torch.cartesian_prod(across, up))
    shown = {name: value for name, value in values.items() if name != "ten draws"}
    far = {name: errors(values["all draws"], value).mean for name, value in shown.items()}
    kept = {"all draws": Kept(values["all draws"], draws=draws[:: len(draws) // SHOWN])}
    for name, bag in bags.items():
        flat, share = bag._flat.detach(), bag.weights.detach()
        kept[name] = Kept(values[name], far[name], flat, share)
    moments = (posterior.mean, posterior.covariance)
    kept["EP"] = Kept(values["EP"], far["EP"], gaussian=moments)
    picture(kept, x, y, SIDE, (across, up, (log - log.max()).exp()), file)
