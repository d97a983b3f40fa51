r"""Free energy against temperature: log Z, mean energy and heat capacity from one run."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from limbeck.arguments import Count, Flag, PathLike, Seed, UserObject, checked_arguments
from limbeck.arrays import as_part
from limbeck.environment import load_matplotlib
from limbeck.errors import ArgumentError, shown
from limbeck.models.energy import Energy
from limbeck.normalization.densities import Densities, check_target
from limbeck.normalization.estimate import Verdict, recorded_warnings, with_error
from limbeck.normalization.paths import GaussianPath, along_path, log_at
from limbeck.normalization.tempering import Replicas, Tempering, mbar
from limbeck.samplers.chains import Target
from limbeck.storage.files import plain, write_bytes
from limbeck.text import PlainTable, table_text

GROUPS = 25  # of ladders, that are left out in turn for errors


@dataclass(repr=False)
class FreeEnergyCurve:
    r"""log Z(T), mean energy and heat capacity of a target at several temperatures.

    Attributes:
        temperatures: The temperatures T, (m,), in the order in which they were given.
        log_z: log Z(T), (m,).
        log_z_error: Its standard errors; estimates at neighbouring temperatures are correlated.
        energy: The mean energy ⟨E⟩, (m,).
        energy_error: Its standard errors.
        heat_capacity: ⟨(E − ⟨E⟩)²⟩ / T², (m,).
        heat_capacity_error: Its standard errors.
        verdict: Whether to trust it, and why not.
        diagnostics: Numbers by name.
        seconds: Wall-clock seconds.
    """

    temperatures: np.ndarray
    log_z: np.ndarray
    log_z_error: np.ndarray
    energy: np.ndarray
    energy_error: np.ndarray
    heat_capacity: np.ndarray
    heat_capacity_error: np.ndarray
    verdict: Verdict
    diagnostics: dict[str, Any]
    seconds: float = 0.0

    @property
    def free_energy(self) -> np.ndarray:
        r"""−T log Z, (m,)."""
        return -self.temperatures * self.log_z

    def columns(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        r"""Values and errors by name."""
        return {
            "log Z": (self.log_z, self.log_z_error),
            "energy": (self.energy, self.energy_error),
            "heat capacity": (self.heat_capacity, self.heat_capacity_error),
        }

    def to_dict(self) -> dict[str, Any]:
        r"""Everything in plain numbers, words and lists, as JSON takes it."""
        fields = {name: value for name, value in vars(self).items() if name != "verdict"}
        state = {"state": self.verdict.state, "reasons": self.verdict.reasons}
        record: dict[str, Any] = plain(fields | state)
        return record

    def table(self) -> Table:
        r"""A row for each temperature."""
        heads = ("temperature", *self.columns())
        table = PlainTable(*heads, right=heads, title="Free energy by parallel tempering")
        for k, temperature in enumerate(self.temperatures):
            cells = (with_error(v[k], e[k]) for v, e in self.columns().values())
            table.add_row(f"{temperature:g}", *cells)
        return table

    @checked_arguments
    def plot(self, path: PathLike | None = None) -> Any:
        r"""Draw the three curves with bands of two standard errors; a matplotlib figure.

        Arguments:
            path: A file to save the figure to. Default: None.
        """
        load_matplotlib()
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3), layout="constrained")
        order = self.temperatures.argsort()
        T = self.temperatures[order]
        panels = zip(figure.subplots(1, 3), self.columns().items(), strict=True)
        for axes, (name, (value, error)) in panels:
            value, error = value[order], error[order]
            axes.plot(T, value, ".-")
            axes.fill_between(T, value - 2 * error, value + 2 * error, alpha=0.3)
            axes.set(title=name, xlabel="temperature")
        if path is not None:
            content, kind = io.BytesIO(), Path(path).suffix.removeprefix(".").lower() or "png"
            if kind not in figure.canvas.get_supported_filetypes():
                raise ArgumentError("path", str(path), "a name that ends in .png, .svg or .pdf")
            figure.savefig(content, format=kind)
            write_bytes(Path(path), content.getvalue())
        return figure

    def sentence(self) -> str:
        r"""The result in one sentence."""
        count, T = len(self.temperatures), self.temperatures
        where = f"{count} temperatures from {T.min():g} to {T.max():g}"
        where = where if count > 1 else f"the temperature {T[0]:g}"
        if self.verdict:
            return f"log Z at {where}, ± {self.log_z_error.max():.2g} or less; all checks passed."
        return f"Do not trust log Z at {where}: {'; '.join(self.verdict.reasons)}."

    def __str__(self) -> str:
        return table_text(self.table()) + self.sentence()

    __repr__ = __str__


@checked_arguments
def free_energy_curve(
    target: UserObject[Target], temperatures: UserObject[Sequence[float] | Tensor], *,
    samples: Count = 10_000, ladders: Count = 50, burn_in: Count = 100, seed: Seed = 0,
    progress: Flag = True,
) -> FreeEnergyCurve:  # fmt: skip
    r"""log Z, mean energy and heat capacity against temperature, from one tempered run.

    Z(T) = Σ exp(−E(x)/T), where E is the function of an `lb.Energy`, whose own temperature is
    not used. Of an `lb.RBM`, E is the energy of visible and hidden units together, so that Z(1) is
    its Z; of other targets, E = −log p̃. Errors are those of leaving out some of the ladders.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.samplers.chains.Target`.
        temperatures: The temperatures, above zero.
        samples: Draws at each level of the ladders, of all of them together. Default: 10,000.
        ladders: Independent ladders of chains, from 4. Default: 50.
        burn_in: Sweeps between the placement of levels and the first draw. Default: 100.
        seed: Seeds everything. Default: 0.
        progress: Whether to show bars, or lines without a terminal. Default: True.

    >>> from limbeck.supports import Spins
    >>> ring = Energy(lambda x: -(x * x.roll(1, 1)).sum(1), Spins(8))
    >>> free_energy_curve(ring, [1.0, 3.0], samples=500, progress=False).log_z.round(0)
    array([9., 6.])
    """
    began = time.perf_counter()
    check_target(target, chains=False)
    T = as_part(temperatures, "temperatures").values.double().cpu().numpy()
    if T.ndim != 1 or not (T > 0).all():
        expected = "one or more numbers above zero"
        raise ArgumentError("temperatures", shown(temperatures), expected)
    method = Tempering(samples=samples, ladders=ladders, burn_in=burn_in)
    densities = Densities(target, None, seed)
    own = target.temperature if isinstance(target, Energy) else 1.0
    # levels t have log p̃_t = t B with B = −E / hottest (over real numbers, from t = 1 on)
    with recorded_warnings() as texts, densities.at_work():
        if densities.support.discrete:
            power, top = 1.0, own / T.min()
            run = along_path(densities, lambda p: method._run(densities, p, top, progress), False)
        else:
            power, top = own / T.max(), T.max() / T.min()
            run = method._run(densities, GaussianPath(densities, power), top, progress)
    curve = _curve(run, T, own / power)
    doubts, rates = [*densities.exactness_doubts(), *texts, *run.doubts()], run.swap_rates()
    diagnostics = {
        "levels": len(run.levels), "ladders": ladders, "lowest_swap_rate": min(rates),
        "arrivals": run.arrivals, "sweeps": run.sweeps,
    }  # fmt: skip
    log_z, energy, heat = ((value.numpy(), error.numpy()) for value, error in curve)
    seconds = time.perf_counter() - began
    verdict = Verdict(tuple(doubts))
    return FreeEnergyCurve(T, *log_z, *energy, *heat, verdict, diagnostics, seconds)


def _curve(run: Replicas, temperatures: np.ndarray, scale: float) -> Iterable[Any]:
    r"""log Z, energy and heat capacity at temperatures, each with errors; E = −scale · B.

    MBAR gives weights of all draws at any temperature. Groups of ladders are left out in turn, with
    one of Newton's steps from the solution with all of them.
    """
    logs, count = run.log_densities(), run.A.shape[0]

    def solved(ladders: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        part = logs[:, ladders].flatten(1)
        log_z, *_ = mbar(part, start, 200 if start is None else 2)
        mixture = (part - log_z[:, None]).logsumexp(0) + math.log(part.shape[1] / len(part))
        A, B = run.A[ladders].flatten(), run.B[ladders].flatten()
        figures = list[Tensor]()
        for temperature in temperatures:
            t = torch.tensor(scale / temperature, dtype=torch.float64)
            log_w = log_at(A, B, t.clamp_min(1.0) if isinstance(run.path, GaussianPath) else t)
            log_w = log_w - mixture
            w, E = log_w.softmax(0), torch.where(log_w > -torch.inf, -scale * B, 0.0)
            mean = w @ E
            spread = w @ (E - mean).square()
            value = run.path.log_z + log_w.logsumexp(0)
            figures.append(torch.stack([value, mean, spread / temperature**2]))
        return torch.stack(figures, 1), log_z

    everyone = torch.arange(count)
    whole, log_z = solved(everyone, None)
    groups = min(GROUPS, count)
    parts = torch.stack([solved(everyone[everyone % groups != g], log_z)[0] for g in range(groups)])
    errors = (parts.var(0) * (groups - 1) ** 2 / groups).sqrt()
    return zip(whole, errors, strict=True)
