r"""The posterior of a hierarchical logistic regression, condensed into ten pseudo-draws.

    pip install 'limbeck[chains]' arviz     # or: pip install emcee arviz
    python examples/hierarchical.py --out pictures

Does a household with a contaminated well switch to another one? Households live in villages, and
villages differ: each has its own intercept, drawn from a normal distribution whose mean and scale
are inferred too. The data are simulated, after the well-known study of wells in Bangladesh. NumPyro
(or emcee, with fewer villages) samples the posterior, and `lb.condense` distils it from ArviZ's
object. Some households of each village are held out, and all of one village.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from hierarchical_picture import draw
from hierarchical_posterior import SAMPLERS, UNSEEN, Households, simulate
from rich.console import Console
from rich.table import Table
from torch import Tensor

import limbeck as lb

VARIABLES = ["alpha", "alpha_new", "beta"]  # what predictions need of all that was sampled


def predict(draw: dict[str, Tensor], x: dict[str, Tensor]) -> lb.Bernoulli:
    r"""The model for one draw: all that limbeck needs to know about it.

    A village without data is predicted with `alpha_new`, which the sampler draws from the
    distribution of villages, once per draw. The student learns it as one more variable.
    """
    own = draw["alpha"][x["group"].clamp_min(0)]
    alpha = torch.where(x["group"] >= 0, own, draw["alpha_new"])
    return lb.Bernoulli(logits=alpha + x["features"] @ draw["beta"])


def as_tree(posterior: Any) -> Any:
    r"""ArviZ's InferenceData as the DataTree that has taken its place."""
    import xarray

    return xarray.DataTree.from_dict({"posterior": posterior["posterior"]})


def average(draws: dict[str, Tensor], x: dict[str, Tensor]) -> Tensor:
    r"""The probability at each input, (n,), averaged over draws."""
    return torch.vmap(lambda draw: predict(draw, x).mean, chunk_size=500)(draws).mean(0)


@dataclass
class Figures:
    r"""The results of the example.

    Attributes:
        rows: By the kind of prediction: log predictive densities of the held-out households and of
            the unseen village's, an observation; the divergence of held-out predictions from those
            of all draws; bytes; milliseconds for 1,000 predictions.
        probabilities: Held-out probabilities by all draws and by the student, with the villages.
        unseen: Households of the unseen village, and of the others that were held out.
    """

    sampler: str
    groups: int
    draws: int
    components: int
    r_hat: float
    difference: float
    held_out: int
    unseen: int
    seconds: dict[str, float]
    rows: dict[str, dict[str, float]]
    probabilities: dict[str, list[float]]

    def sentence(self) -> str:
        r"""The result in one sentence."""
        full, small = self.rows["all draws"], self.rows["student"]
        return (
            f"{self.components} pseudo-draws predict {self.held_out:,} held-out households within "
            f"{abs(self.difference):.1g} nat an observation of all {self.draws:,} draws, in "
            f"{full['bytes'] / small['bytes']:.0f} times fewer bytes and "
            f"{full['milliseconds'] / small['milliseconds']:.0f} times less time."
        )


def main(
    sampler: str = "auto",
    groups: int | None = None,
    draws: int = 4000,
    components: int = 10,
    steps: int = 2000,
    container: str = "inferencedata",
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = True,
) -> Figures:
    r"""Simulate, sample, condense and compare.

    Arguments:
        sampler: "numpyro", "emcee", or "auto", which takes the first of them that is installed.
        groups: Villages; 40 by default, and 8 for emcee, which is slow in many dimensions.
        draws: Draws of all chains together.
        components: Pseudo-draws of the student.
        steps: Steps of the distillation.
        container: How the posterior is handed over: "inferencedata" or "datatree".
        seed: Seeds everything.
        out: A folder for the picture and the figures, if they are wanted.
        progress: Whether to show bars.
    """
    if sampler == "auto":
        sampler = "numpyro" if importlib.util.find_spec("numpyro") else "emcee"
    if sampler not in SAMPLERS:
        raise lb.ArgumentError.unknown("sampler", sampler, SAMPLERS)
    if container not in ("inferencedata", "datatree"):
        raise lb.ArgumentError.unknown("container", container, ("inferencedata", "datatree"))
    for library in (sampler, "arviz"):
        if importlib.util.find_spec(library) is None:
            raise lb.LimbeckError(f"this needs {library}: pip install {library}")
    groups = (40 if sampler == "numpyro" else 8) if groups is None else groups
    if groups < 2:
        raise lb.ArgumentError("groups", groups, "2 or more, to learn how villages differ")
    if draws < 100:
        raise lb.ArgumentError("draws", draws, "100 or more")
    train, test, unseen = simulate(groups, seed)
    began = time.perf_counter()
    posterior = SAMPLERS[sampler](train, groups, draws, seed)
    sampled = time.perf_counter()

    def anyone(n: int, generator: torch.Generator) -> dict[str, Tensor]:
        r"""Possible households: features of the data, in any village, with data or without."""
        rows = torch.randint(len(train.y), (n,), generator=generator)
        group = torch.randint(UNSEEN, groups, (n,), generator=generator)
        return {"group": group, "features": train.features[rows]}

    result = lb.condense(
        as_tree(posterior) if container == "datatree" else posterior,
        predict,
        lb.inputs.Function(anyone),
        var_names=VARIABLES,
        components=components,
        steps=steps,
        seed=seed,
        device="cpu",
        progress=progress,
    )
    print(result)
    figures = compared(result, posterior, test, unseen, sampler, groups)
    figures.seconds = {"sampling": sampled - began, "condensing": result.seconds}
    show(figures)
    if out is not None:
        save(figures, Path(out))
    return figures


def compared(
    result: Any, posterior: Any, test: Households, unseen: Households, sampler: str, groups: int
) -> Figures:
    r"""The student compared with all draws, ten of them, and their mean."""
    held = posterior["posterior"]
    full = {
        name: torch.tensor(held[name].values).flatten(0, 1).to(test.features) for name in VARIABLES
    }
    count, k = len(full["beta"]), result.student.components
    few = {name: part[:: count // k][:k] for name, part in full.items()}
    mean = {name: part.mean(0, keepdim=True) for name, part in full.items()}
    kinds: dict[str, tuple[Callable[[Any], Tensor], int]] = {
        "all draws": (lambda x: average(full, x), _bytes(full)),
        f"{k} of them": (lambda x: average(few, x), _bytes(few)),
        "their mean": (lambda x: average(mean, x), _bytes(mean)),
        "student": (lambda x: result.predict(x).mean, result.bytes),
    }
    rows, t = {}, average(full, test.x)
    for name, (call, size) in kinds.items():
        density, new = (log_density(call(part.x), part.y) for part in (test, unseen))
        spent = _milliseconds(lambda call=call: call(test.x)) * 1000 / len(test.y)
        rows[name] = {
            "log_density": density,
            "unseen": new,
            "kl": divergence(t, call(test.x)),
            "bytes": size,
            "milliseconds": spent,
        }
    order = test.group.argsort(stable=True)
    probabilities = {
        "group": test.group[order].tolist(),
        "y": test.y[order].tolist(),
        "all draws": t[order].tolist(),
        "few": average(few, test.x)[order].tolist(),
        "student": result.predict(test.x).mean.double()[order].tolist(),
    }
    r_hat = float(result.diagnostics.r_hat.nan_to_num(0.0).max())
    apart = rows["student"]["log_density"] - rows["all draws"]["log_density"]
    sizes = (len(test.y), len(unseen.y))
    return Figures(sampler, groups, count, k, r_hat, apart, *sizes, {}, rows, probabilities)


def log_density(p: Tensor, y: Tensor) -> float:
    r"""The mean log predictive density of outcomes y (n,) that have probabilities p (n,)."""
    return torch.where(y > 0.5, p.double(), 1 - p.double()).log().mean().item()


def divergence(t: Tensor, f: Tensor) -> float:
    r"""The mean of KL(t ‖ f) of probabilities (n,)."""
    sides = ((t.double(), f.double()), (1 - t.double(), 1 - f.double()))
    return sum((p * (p / q).log()).mean().item() for p, q in sides)


def _bytes(draws: dict[str, Tensor]) -> int:
    return 4 * sum(part.numel() for part in draws.values())  # as float32, like the student


def _milliseconds(call: Callable[[], Any], turns: int = 5) -> float:
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def show(figures: Figures) -> None:
    r"""Print the figures as a table, and a sentence."""
    title = f"{figures.held_out:,} held-out households of {figures.groups} villages"
    table = Table(title=title, title_justify="left")
    headings = ("", "log density", "KL", "unseen village", "bytes", "ms/1,000")
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for name, row in figures.rows.items():
        table.add_row(
            name, f"{row['log_density']:.5f}", f"{row['kl']:.1e}", f"{row['unseen']:.4f}",
            f"{row['bytes']:,}", f"{row['milliseconds']:.3g}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(figures.sentence(), soft_wrap=True)


def save(figures: Figures, folder: Path) -> None:
    r"""Write the figures (JSON) and held-out probabilities by village (PNG)."""
    content = asdict(figures)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1) + "\n"
    (folder / "hierarchical.json").write_text(text, encoding="utf-8")
    draw(content, folder / "hierarchical.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sampler", default="auto", choices=("auto", *SAMPLERS))
    parser.add_argument("--groups", type=int, help="villages; 40, or 8 for emcee")
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    kinds = ("inferencedata", "datatree")
    parser.add_argument("--container", default="inferencedata", choices=kinds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a folder for the picture and the figures")
    main(**vars(parser.parse_args()))
