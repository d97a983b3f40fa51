r"""A 2-D Ising model given as an energy function: its student, log Z and energies.

    python examples/ising.py --size 6 --steps 2000 --out pictures

The student is an autoregressive density over spins (a NADE), distilled from chains of the model.
Log Z by bridge sampling between the two is compared with the exact value of the finite lattice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import limbeck as lb

CRITICAL = 2.269185
r"""The temperature, 2 / log(1 + √2), at which an infinite lattice begins to order."""


def energy(x: Tensor) -> Tensor:
    r"""−Σ x_i x_j over neighbours of a periodic lattice, (n,) of spins (n, L, L)."""
    return -(x * (x.roll(1, 1) + x.roll(1, 2))).sum((1, 2))


def checkerboard(temperature: float) -> Callable[..., Tensor]:
    r"""Sweeps that set all black sites at once, then all white ones: neighbours differ in colour.

    They need a lattice of even size, and are many times faster than one site after the other.
    """

    def advance(x: Tensor, sweeps: int = 1, generator: torch.Generator | None = None) -> Tensor:
        size = torch.arange(x.shape[1], device=x.device)
        black = (size[:, None] + size) % 2 == 0
        for _ in range(sweeps):
            for colour in (black, ~black):
                around = x.roll(1, 1) + x.roll(-1, 1) + x.roll(1, 2) + x.roll(-1, 2)
                up = torch.sigmoid(2 / temperature * around)
                noise = torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype)
                x = torch.where(colour, 2.0 * (noise < up) - 1.0, x)
        return x

    return advance


def exact_log_z(size: int, temperature: float) -> float:
    r"""log Z of the periodic lattice: log tr Tᴸ of its transfer matrix T, (2ᴸ, 2ᴸ)."""
    rows = lb.Spins(size).enumerate(0, 2**size, dtype=torch.float64)
    within = (rows * rows.roll(1, 1)).sum(1) / 2
    matrix = torch.exp((rows @ rows.T + within[:, None] + within) / temperature)
    eigenvalues = torch.linalg.eigvalsh(matrix)  # all positive, since spins attract
    return (size * eigenvalues.clamp_min(1e-300).log()).logsumexp(0).item()


def exact_energy(size: int, temperature: float, step: float = 1e-4) -> float:
    r"""The mean energy, −∂log Z/∂(1/T)."""
    one, other = (exact_log_z(size, 1 / (1 / temperature + s)) for s in (-step, step))
    return (one - other) / (2 * step)


@dataclass
class Figures:
    r"""The results of the example; energies are per site.

    Attributes:
        exact_log_z: By the transfer matrix.
        log_z: By bridge sampling, with its standard error.
        exact_energy: The mean, by the transfer matrix; of samples of the model and the student.
        energies: The energies (n,) of the samples behind the histogram, of both.
    """

    size: int
    temperature: float
    sampler: str
    exact_log_z: float
    log_z: float
    std_error: float
    lower_bound: float
    upper_bound: float
    trustworthy: bool
    exact_energy: float
    model_energy: float
    student_energy: float
    seconds: float
    energies: dict[str, list[float]]

    def sentence(self) -> str:
        r"""The result in one sentence."""
        errors = abs(self.log_z - self.exact_log_z) / self.std_error
        trust = "" if self.trustworthy else " and is marked as not trustworthy"
        return (
            f"In {self.seconds:.0f} s an energy function of {self.size**2} spins became a density "
            f"that can be evaluated and sampled, and log Z = {self.log_z:.3f} ± "
            f"{self.std_error:.3f}, which is {errors:.1f} standard errors from the exact "
            f"{self.exact_log_z:.3f}{trust}."
        )


def main(
    size: int = 6,
    steps: int = 2000,
    temperature: float = CRITICAL,
    sampler: str = "sites",
    hidden: int = 100,
    samples: int = 4000,
    burn_in: int = 200,
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
) -> Figures:
    r"""Distil the lattice, estimate log Z and compare energies.

    Arguments:
        size: The number of rows and of columns, 2 to 10.
        steps: Steps of the distillation.
        temperature: The temperature; by default that at which large lattices begin to order.
        sampler: "sites" for the Gibbs sampling that any energy function comes with, or
            "checkerboard" for the model's own.
        hidden: Hidden units of the student.
        samples: Samples of the model, and as many of the student, for log Z and histograms.
        burn_in: Sweeps of the model's chains before they are used.
        seed: Seeds everything.
        device: Where to run.
        out: A folder for the histogram and the figures, if they are wanted.
    """
    if not 2 <= size <= 10:
        raise lb.ArgumentError("size", size, "2 to 10, for which the exact value can be computed")
    if sampler not in ("sites", "checkerboard"):
        raise lb.ArgumentError.unknown("sampler", sampler, ("sites", "checkerboard"))
    if sampler == "checkerboard" and size % 2:
        raise lb.ArgumentError("size", size, "an even number, for the checkerboard")
    began = time.perf_counter()
    advance = checkerboard(temperature) if sampler == "checkerboard" else None
    target = lb.Energy(energy, lb.Spins(size, size), temperature, advance)
    student = lb.NADE(
        size**2,
        hidden,
        support=target.support,
        generator=torch.Generator().manual_seed(seed),
    )
    lb.normalize(
        target,
        student,
        steps=steps,
        chains=1000,
        scheme="block",
        sweeps=2,
        burn_in=burn_in,
        lr=5e-3,
        seed=seed,
        device=device,
    )
    z = lb.log_partition(
        target, student, method="bridge", samples=samples, burn_in=burn_in, seed=seed + 1
    )
    generator = torch.Generator(next(student.parameters()).device).manual_seed(seed + 2)
    drawn = student.sample(samples, generator)
    # samples of the model that owe nothing to the student
    chains = target.support.start(samples, generator, drawn.device)
    energies = {
        "model": energy(target.advance(chains, burn_in, generator)) / size**2,
        "student": energy(drawn) / size**2,
    }
    figures = Figures(
        size=size,
        temperature=temperature,
        sampler=sampler,
        exact_log_z=exact_log_z(size, temperature),
        log_z=z.value,
        std_error=z.std_error,
        lower_bound=float(z.lower_bound),
        upper_bound=float(z.upper_bound),
        trustworthy=z.verdict.trustworthy,
        exact_energy=exact_energy(size, temperature) / size**2,
        model_energy=energies["model"].mean().item(),
        student_energy=energies["student"].mean().item(),
        seconds=time.perf_counter() - began,
        energies={name: values.tolist() for name, values in energies.items()},
    )
    show(figures)
    if out is not None:
        save(figures, Path(out))
    return figures


def show(figures: Figures) -> None:
    r"""Print the figures as a table, and a sentence."""
    table = Table(title=f"Ising model, {figures.size} × {figures.size}", title_justify="left")
    for heading in ("", "exact", "estimate"):
        table.add_column(heading)
    z = f"{figures.log_z:.4f} ± {figures.std_error:.4f}"
    bounds = f"{figures.lower_bound:.3f} … {figures.upper_bound:.3f}"
    exact = f"{figures.exact_energy:.4f}"
    table.add_row("log Z", f"{figures.exact_log_z:.4f}", z)
    table.add_row("bounds on log Z", "", bounds)
    table.add_row("energy per site, model's chains", exact, f"{figures.model_energy:.4f}")
    table.add_row("energy per site, student", exact, f"{figures.student_energy:.4f}")
    console = Console()
    console.print(table)
    console.print(figures.sentence(), soft_wrap=True)


def save(figures: Figures, folder: Path) -> None:
    r"""Write the figures (JSON) and the histogram of energies (PNG)."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ising.json").write_text(json.dumps(asdict(figures)) + "\n", encoding="utf-8")
    picture = Figure(figsize=(6, 3.5), layout="constrained")
    axes = picture.add_subplot()
    step = 4 / figures.size**2  # energies of the lattice are that far apart
    last = max(max(values) for values in figures.energies.values())
    edges = [-2 + step * (k - 0.5) for k in range(round((last + 2) / step) + 2)]
    for name, style in (("model", {"alpha": 0.4}), ("student", {"histtype": "step", "lw": 1.5})):
        axes.hist(figures.energies[name], edges, density=True, label=name, **style)
    axes.axvline(figures.exact_energy, color="black", lw=1, ls=":", label="exact mean")
    axes.set_xlabel("energy per site")
    axes.set_ylabel("density")
    axes.set_title(f"{figures.size} × {figures.size} spins at T = {figures.temperature:.3f}")
    axes.legend(frameon=False)
    picture.savefig(folder / "ising.png", dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--temperature", type=float, default=CRITICAL)
    parser.add_argument("--sampler", choices=("sites", "checkerboard"), default="sites")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--burn-in", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", help="a folder for the histogram and the figures")
    main(**vars(parser.parse_args()))
