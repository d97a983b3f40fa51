r"""Condense the posterior of a logistic regression into ten pseudo-draws."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.condensation.condense import condense
from limbeck.condensation.logistic import ep_logistic
from limbeck.condensation.logistic import predict as gaussian
from limbeck.condensation.models import logistic
from limbeck.condensation.sample_bag import SampleBag
from limbeck.distributions.discrete import Bernoulli
from limbeck.inputs import Noise
from limbeck.report import plots
from limbeck.report.canvas import COLOURS, canvas, save
from limbeck.samplers.slice import Slice
from limbeck.text import compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from limbeck.demo import Tour

PRIOR_VARIANCE = 100.0
COMPONENTS = 10
POOL = 3000  # inputs at which the average over all draws is taken
TURNS = 15  # timings of each prediction
SIDE = torch.linspace(-8, 8, 65, dtype=torch.float64)
GRID = torch.cartesian_prod(SIDE, SIDE)  # where predictions are compared: [−8, 8]² in steps of ¼


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


def run(tour: Tour) -> dict[str, Any]:
    r"""Sample a posterior, and condense it in several ways; draw it, if matplotlib is there."""
    (x, y), chains = points(tour.seed), 100
    what = f"a logistic regression on {len(x)} points: {chains} chains"
    tour.console.print(f"\nSampling the posterior of {what} …")
    start = time.perf_counter()
    slices = sampler(x.float(), y, chains, 100, tour.seed)
    stored = torch.stack([slices.step() for _ in range(100)], 1)  # (chains, sweeps, 2)
    seconds = {"all draws": time.perf_counter() - start, "ten draws": 0.0}
    draws, inputs = stored.flatten(0, 1), Noise(2, scale=math.sqrt(10))
    average, ten = MonteCarlo(draws), draws[:: len(draws) // COMPONENTS]
    # every way to predict, as a function of inputs (n, 2) that gives probabilities (n,)
    surfaces: dict[str, Callable[[Tensor], Tensor]] = {
        # 100 inputs at a time stay in a processor's cache
        "all draws": lambda x: torch.cat([average(part) for part in x.split(100)]),
        "ten draws": MonteCarlo(ten),
    }
    sizes = {"EP": 8 * 6, "all draws": draws.nbytes, "ten draws": ten.nbytes}
    ways: dict[str, dict[str, Any]] = {
        "batch": {"posterior": stored, "pool": POOL},
        "online": {"posterior": slices, "batch_size": chains},
    }
    options = {"inputs": inputs, "steps": max(1, tour.steps // 3), **tour.training}
    bags: dict[str, SampleBag] = {}
    results = {}
    for name, arguments in ways.items():
        tour.console.print(f"Condensing into {COMPONENTS} draws: {name} …")
        result = condense(predict=logistic(), components=COMPONENTS, **options, **arguments)
        assert isinstance(result.student, SampleBag)
        results[name], bags[name], surfaces[name] = result, result.student, _surface(result.student)
        seconds[name], sizes[name] = result.seconds, result.bytes
    start = time.perf_counter()
    posterior = ep_logistic(x, y, prior_covariance=PRIOR_VARIANCE)
    seconds["EP"] = time.perf_counter() - start
    surfaces["EP"] = lambda x: gaussian(posterior.mean, posterior.covariance, x)
    values = {name: surface(GRID.float()).double() for name, surface in surfaces.items()}
    truth, batch = values["all draws"], torch.randn(1000, 2, generator=tour.generator())
    rows: list[dict[str, Any]] = []
    for name, surface in surfaces.items():
        error = (truth - values[name]).abs()
        times = timeit.repeat(partial(surface, batch), repeat=TURNS, number=1)
        rows.append({
            "way": name, "draws": {"all draws": len(draws), "EP": 0}.get(name, COMPONENTS),
            "mean_error": float(error.mean()), "max_error": float(error.max()),
            "bytes": sizes[name], "milliseconds": 1e3 * statistics.median(times),
            "seconds": seconds[name],
        })  # fmt: skip
    file = None
    if importlib.util.find_spec("matplotlib"):
        file = tour.folder / "condense.png"
        thinned = draws[:: len(draws) // 1000].T
        posteriors: dict[str, Callable[[Axes], object]] = {
            "all draws": lambda ax: ax.plot(*thinned, ".", color=COLOURS[0], markersize=1)
        }
        for name, bag in bags.items():
            flat, share = bag._flat.detach(), bag.weights.detach()
            posteriors[name] = partial(plots.weights, draws=flat, share=share)
        mean, covariance = posterior[:2]
        posteriors["EP"] = partial(plots.ellipses, mean=mean, covariance=covariance)
        errors = {row["way"]: row["mean_error"] for row in rows}
        draw_posteriors(posteriors, values, errors, x, y, file)
    finding = show(tour, rows, file)
    tour.add("condense", results["batch"], finding, x=GRID.float(), points=x, labels=y)
    return {"rows": rows, "picture": file and str(file)}


def draw_posteriors(
    posteriors: dict[str, Callable[[Axes], object]], values: dict[str, Tensor],
    errors: dict[str, float], x: Tensor, y: Tensor, path: Path,
) -> str:  # fmt: skip
    r"""Draw approximations of the posterior above their predictions; a description."""
    ends, texts = ((-12.0, 36.0), (-24.0, 24.0)), []
    across, up = (torch.linspace(*end, 121, dtype=x.dtype) for end in ends)
    log = log_posterior(x, y)(torch.cartesian_prod(across, up))
    with canvas(2, len(posteriors), (2.4, 2.4)) as (figure, axes):
        for (name, draw), above, below in zip(posteriors.items(), *axes, strict=True):
            plots.density(above, across, up, (log - log.max()).exp())
            draw(above)
            above.set(title=name, xlim=ends[0], ylim=ends[1], xlabel="$w_1$", aspect="equal")
            image = plots.surface(below, SIDE, values[name])
            plots.classes(below, x, y)
            error = errors[name]  # 0 of all draws
            title = f"mean |t − f| {error:.4f}" if error else "t"
            below.set(title=title, xlabel="$x_1$", aspect="equal")
            texts.append(f"{name}, mean error {error:.4f}" if error else name)
        axes[0][0].set_ylabel("$w_2$")
        axes[1][0].set_ylabel("$x_2$")
        figure.colorbar(image, ax=axes[1], shrink=0.8, label="probability of y = 1")
        alt = (
            "Above, the posterior of two weights and its approximations; below, the probabilities "
            f"of the label 1 that follow on [−8, 8]²: {'; '.join(texts)}."
        )
        save(figure, path, alt)
    return alt


def _surface(bag: SampleBag) -> Callable[[Tensor], Tensor]:
    r"""The closed form of a bag: Σₖ πₖ σ(xᵀwₖ)."""
    with torch.no_grad():
        across, share = bag._flat.T.contiguous(), bag.weights
    return lambda x: Bernoulli(logits=x @ across).mean @ share


def show(tour: Tour, rows: list[dict[str, Any]], file: Path | None) -> str:
    r"""Print the table, and return a one-sentence summary."""
    every, ten, bag, _, ep = rows
    times = (every["milliseconds"], bag["milliseconds"])
    speed = compared(*times, "faster", "slower", "as fast", " times")
    finding = (
        f"{COMPONENTS} trained draws predict like all {every['draws']:,} within "
        f"{bag['mean_error']:.4f} on average ({ten['mean_error']:.4f} if they are not trained, and "
        f"{ep['mean_error']:.4f} by EP), in {bag['bytes']} bytes where all draws take "
        f"{every['bytes']:,}, and {speed}, both as plain matrix products."
    )
    note = (
        f"t is the average over all draws; batch takes it at {POOL:,} inputs; online sees each "
        "draw once, as the chains run, and keeps none; EP is a Gaussian in place of draws.\n"
    )
    columns = {
        "way": "", "draws": ",", "mean |t − f|": ".4f", "largest": ".3f", "bytes": ",",
        "ms / 1,000 inputs": ".3g", "seconds": ".2g",
    }  # fmt: skip
    title = "A Bayesian logistic regression, condensed (errors on [−8, 8]²)"
    cells = [row | {"draws": row["draws"] or None} for row in rows]
    where = "" if file is None else f" The picture is in {file}."
    tour.show(title, columns, cells, note, finding + where, rules=(1, 3))
    return finding
