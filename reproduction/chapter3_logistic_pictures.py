r"""The pictures of chapter 3's logistic regression: weights, surfaces, numbers of components."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, MUTED
from reproduction.canvas import canvas, save
from reproduction.plots import classes, surface
from reproduction.posterior_plots import density, ellipses, numbers, weights

__all__ = ["pictures"]

SURFACES = ("exact", "MCMC", "CE batch", "DSE batch", "EP", "limbeck", "CE online", "DSE online")
r"""In the order of the panels."""

PRIOR_DEVIATION = 10.0

TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def pictures(entries: Sequence[Mapping[str, Any]], out: Path) -> dict[str, str]:
    r"""Draw what the results of the data sets hold, the first of which has curves and surfaces.

    Returns:
        For each picture that was written, by its file's name, what it shows in words.
    """
    shown = entries[0]["shown"]
    said = {
        "setup.png": _setup(shown, out / "setup.png"),
        "weights.png": _weights(shown, out / "weights.png"),
        "surfaces.png": _surfaces(entries[0], out / "surfaces.png"),
    }
    counted = [each for each in entries if "components" in each]
    if counted:
        said["components.png"] = _components(entries, counted, out / "components.png")
    return said


def _setup(shown: Mapping[str, Any], path: Path) -> str:
    with canvas(1, 2, (3.3, 3.0)) as (figure, axes):
        prior, data = axes[0]
        side = np.linspace(-34, 34, 69)
        squares = side[:, None] ** 2 + side**2
        density(prior, side.tolist(), side.tolist(), np.exp(-squares / (2 * PRIOR_DEVIATION**2)))
        prior.set_title("prior of the weights")
        prior.set_xlabel("$w_1$")
        prior.set_ylabel("$w_2$")
        prior.set_xticks(range(-30, 31, 15))
        prior.set_yticks(range(-30, 31, 15))
        classes(data, numbers(shown["points"], 2), shown["labels"])
        data.set_xlim(-8, 8)
        data.set_ylim(-8, 8)
        data.set_title("data")
        data.set_xlabel("$x_1$")
        data.set_ylabel("$x_2$")
        data.set_xticks(range(-8, 9, 4))
        data.set_yticks(range(-8, 9, 4))
        data.legend(loc="upper left")
        for place in axes[0]:
            place.set_aspect("equal")
        alt = (
            "Left, the prior of the two weights, N(0, 100·I). Right, the 24 points: 12 of label 0 "
            "about (−4, 0), 12 of label 1 about (4, 0)."
        )
        save(figure, path, alt)
    return alt


def _weights(shown: Mapping[str, Any], path: Path) -> str:
    names = [name for name in SURFACES if name in shown["surface"]["values"]]
    posterior, said = shown["posterior"], []
    with _panels(names, (2.6, 2.6)) as (figure, axes):
        for place, name in zip(axes.flat, names, strict=False):
            density(place, posterior["across"], posterior["up"], posterior["density"])
            if name == "exact":
                pass
            elif name == "EP":
                ellipses(place, shown["gaussian"]["mean"], shown["gaussian"]["covariance"])
            elif name == "MCMC":
                draws = numbers(shown["draws"], 2)
                place.plot(draws[:, 0], draws[:, 1], ".", color=COLOURS[0], markersize=1)
            else:
                own = shown["weights"][name]
                draws, share = numbers(own["draws"], 2), numbers(own["share"])
                weights(place, draws, share)
                length = np.linalg.norm(draws, axis=1).mean()
                said.append(f"{name}: {len(draws)} draws of mean length {length:.1f}")
            place.set_title("posterior" if name == "exact" else name)
            place.set_xlim(*numbers(posterior["across"])[[0, -1]])
            place.set_ylim(*numbers(posterior["up"])[[0, -1]])
            place.set_aspect("equal")
        _outer(axes, "$w_1$", "$w_2$")
        alt = (
            "The posterior of the weights, with a tenth of all MCMC draws, the Gaussian of EP, and "
            f"the draws that bags were trained to. {'; '.join(said)}."
        )
        save(figure, path, alt)
    return alt


def _surfaces(entry: Mapping[str, Any], path: Path) -> str:
    shown, found = entry["shown"], entry["errors"]
    values, said = shown["surface"]["values"], []
    names = [name for name in SURFACES if name in values]
    with _panels(names, (2.6, 2.6)) as (figure, axes):
        drawn = None
        for place, name in zip(axes.flat, names, strict=False):
            drawn = surface(place, numbers(shown["surface"]["side"]), numbers(values[name]))
            classes(place, numbers(shown["points"], 2), shown["labels"])
            place.set_title(name)
            if name in found:
                mean, highest, _ = found[name]
                place.set_title(f"{name}: {mean:.4f}, {highest:.3f}")
                said.append(f"{name} {mean:.4f} and {highest:.3f}")
        _outer(axes, "$x_1$", "$x_2$")
        figure.colorbar(drawn, ax=axes, shrink=0.6, label="probability of y = 1")
        alt = (
            "Predicted probabilities of the label 1 on [−8, 8]², with the mean and the maximum of "
            f"their error on the grid: {'; '.join(said)}."
        )
        save(figure, path, alt, dpi=130)  # surfaces make large files
    return alt


def _components(
    every: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]], path: Path
) -> str:
    counts = sorted(map(int, counted[0]["components"]))
    labels = ("mean |t − f|", "maximum |t − f|", "mean |t − f| near the origin")
    with canvas(1, 3, (3.0, 2.8)) as (figure, axes):
        said = []
        for which, (place, label) in enumerate(zip(axes[0], labels, strict=True)):
            lines = [[each["components"][str(n)][which] for n in counts] for each in counted]
            middle = [statistics.mean(column) for column in zip(*lines, strict=True)]
            for line in lines:
                place.plot(counts, line, color=COLOURS[2], linewidth=0.6, alpha=0.5)
            place.plot(counts, middle, "o-", color=COLOURS[2], markersize=4, label="limbeck")
            levels: list[float] = []
            for name, colour in (("EP", COLOURS[1]), ("MCMC", MUTED)):
                level = statistics.mean(each["errors"][name][which] for each in every)
                shown = f"{name}, 10,000 draws" if name == "MCMC" else name
                levels.append(level)
                place.axhline(level, color=colour, linestyle="--", linewidth=1, label=shown)
            place.set_xscale("log")
            place.set_yscale("log")
            place.set_xticks(counts, [str(n) for n in counts])
            place.minorticks_off()
            place.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
            place.set_ylim(*_ends(lines, levels))
            place.set_xlabel("components")
            place.set_title(label)
            said.append(f"{label} falls from {middle[0]:.4f} to {middle[-1]:.4f}")
        handles, names = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
        alt = (
            f"Errors of bags against their number of components, {counts[0]} to {counts[-1]}, "
            f"beside EP and the Monte Carlo average: {'; '.join(said)}."
        )
        save(figure, path, alt)
    return alt


def _ends(lines: Sequence[Sequence[float]], levels: Sequence[float]) -> tuple[float, float]:
    every = [*levels, *(value for line in lines for value in line)]
    return min(every) / 1.3, max(every) * 1.3


def _panels(names: Sequence[str], size: tuple[float, float]) -> Any:
    if not names:
        raise ArgumentError("results", "no surfaces", "results with the first data set's")
    across = min(4, len(names))
    return canvas(-(-len(names) // across), across, size, share=True)


def _outer(axes: Any, across: str, up: str) -> None:
    r"""Labels at the edges alone, and no axes where nothing was drawn."""
    for place in axes.flat:
        if not place.get_title(loc="left"):
            place.set_axis_off()
    for place in axes[-1]:
        place.set_xlabel(across)
    for row in axes:
        row[0].set_ylabel(up)
