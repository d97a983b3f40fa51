r"""The pictures of chapter 3: posteriors and predictive densities of mixtures, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, INK, LINES, MUTED
from reproduction import chapter3_logistic_pictures as chapter3_logistic
from reproduction.canvas import canvas, save
from reproduction.posterior_plots import numbers

__all__ = ["pictures"]

MEANS = (-3.0, 0.0, 2.0)
r"""True means of the mixture."""

CURVES: dict[str, dict[str, Any]] = {
    "true": {"color": MUTED, "linestyle": "--", "linewidth": 1.0},
    "Monte Carlo": {"color": LINES, "linewidth": 4.0},
    "batch": {"color": COLOURS[0]},
    "online": {"color": COLOURS[1], "linestyle": (0, (4, 1.5))},
}

SCORES = {
    "a chain of the text's length": ("chain", "mean", MUTED, "o--"),
    "all chains together": ("pooled", "kl", INK, "x:"),
    "batch, one chain": ("batch, text", "mean", COLOURS[0], "s-"),
    "online, one chain": ("online, text", "mean", COLOURS[1], "^-"),
    "online, parallel chains": ("online, parallel", "mean", COLOURS[2], "D-"),
}


def pictures(results: Mapping[str, Any], out: Path) -> dict[str, str]:
    r"""Draw what the results hold.

    Arguments:
        results: What `python -m reproduction chapter-3` wrote: "mixtures", "logistic", or both.
        out: A folder for the pictures.

    Returns:
        For each picture that was written, by its file's name, what it shows in words.
    """
    mixtures, logistic = results.get("mixtures") or [], results.get("logistic") or []
    if not mixtures and not logistic:
        raise ArgumentError("results", "no finished experiments", "the results of chapter 3")
    said = {}
    if mixtures:
        said["posteriors.png"] = _histograms(mixtures, out / "posteriors.png")
        said["densities.png"] = _densities(mixtures, out / "densities.png")
        said["divergences.png"] = _divergences(mixtures, out / "divergences.png")
    return said | (chapter3_logistic.pictures(logistic, out) if logistic else {})


def _histograms(mixtures: Sequence[Mapping[str, Any]], path: Path) -> str:
    with canvas(len(mixtures), 3, (3.0, 1.25)) as (figure, axes):
        for row, each in zip(axes, mixtures, strict=True):
            found = each["histograms"]
            edges = numbers(found["edges"])
            centres = (edges[1:] + edges[:-1]) / 2
            for k, place in enumerate(row):
                place.stairs(
                    numbers(found["chain"][k]), edges, fill=True, color=COLOURS[4], alpha=0.6,
                    label="one chain",
                )  # fmt: skip
                place.plot(
                    centres, numbers(found["exact"][k]), color=INK, linewidth=1, label="exact"
                )
                place.axvline(MEANS[k], color=COLOURS[1], linestyle="--", linewidth=1, label="true")
                place.set_yticks([])
                place.set_xlim(edges[0], edges[-1])
                place.grid(False)
                place.spines["left"].set_visible(False)
            row[0].set_ylabel(f"N = {each['observations']:,}")
        for k, place in enumerate(axes[0]):
            place.set_title(f"$m_{k + 1}$")
        _one_legend(figure, axes[0][0])
        sizes = ", ".join(f"{each['observations']:,}" for each in mixtures)
        alt = (
            "Histograms of the posterior of the three means from one chain of the text's length, "
            f"with the exact posterior as a line and the true mean, for {sizes} observations: "
            "broad and with several modes for few, about the true means for many."
        )
        save(figure, path, alt)
    return alt


def _densities(mixtures: Sequence[Mapping[str, Any]], path: Path) -> str:
    down, across = -(-len(mixtures) // 3), min(3, len(mixtures))
    with canvas(down, across, (3.2, 2.1), share=True) as (figure, axes):
        said = []
        places = axes.flatten()
        for place, each in zip(places, mixtures, strict=False):
            curves, students = each["curves"], each["students"]
            x = numbers(curves["x"])
            for name, look in CURVES.items():
                place.plot(x, numbers(curves[name]), label=name, **look)
            place.set_title(f"{each['observations']:,} observations")
            place.set_xlim(x[0], x[-1])
            place.set_xticks([-10, -5, 0, 5, 10])
            batch, online = (students[f"{way}, text"]["kl"][0] for way in ("batch", "online"))
            said.append(
                f"{each['observations']:,}: KL of batch {batch:.4f}, of online {online:.4f}"
            )
        places[0].set_ylim(0, 1.05 * max(_highest(each["curves"]) for each in mixtures))
        for place in places[len(mixtures) :]:
            place.set_axis_off()
        for place in axes[-1]:
            place.set_xlabel("x")
        for row in axes:
            row[0].set_ylabel("density")
        _one_legend(figure, places[0])
        alt = (
            "Predictive densities of mixtures by the number of observations: the true one, the "
            "Monte Carlo average over one chain, and close to it the batch and the online student. "
            f"{'; '.join(said)}."
        )
        save(figure, path, alt)
    return alt


def _divergences(mixtures: Sequence[Mapping[str, Any]], path: Path) -> str:
    sizes = [each["observations"] for each in mixtures]
    with canvas(1, 1, (5.6, 3.6)) as (figure, axes):
        place, said = axes[0][0], []
        for name, (key, field, colour, mark) in SCORES.items():
            values = [(each.get(key) or each["students"].get(key))[field] for each in mixtures]
            place.plot(sizes, values, mark, color=colour, markersize=4, label=name)
            said.append(f"{name} {min(values):.4f} to {max(values):.4f}")
        place.set_xscale("log")
        place.set_yscale("log")
        place.set_xticks(sizes, [f"{size:,}" for size in sizes])
        place.minorticks_off()
        place.set_xlabel("observations")
        place.set_ylabel("KL from the exact predictive density (nats)")
        place.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        alt = f"KL from the exact predictive density in nats, by observations: {'; '.join(said)}."
        save(figure, path, alt)
    return alt


def _highest(curves: Mapping[str, Any]) -> float:
    return max(float(numbers(curves[name]).max()) for name in CURVES)


def _one_legend(figure: Any, place: Any) -> None:
    handles, names = place.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
