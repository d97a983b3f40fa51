r"""The pictures of chapter 4: an RBM, its NADEs, and estimates of its log Z."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.errors import ArgumentError
from reproduction.canvas import canvas, save
from reproduction.plots import images, intervals, progress, sorted_log_probabilities

__all__ = ["pictures", "sheets"]

NAMES = {"kl": "KL divergence", "se": "square error"}


def pictures(
    results: Mapping[str, Any], out: Path, *, reference: tuple[str, float, float, float]
) -> dict[str, str]:
    r"""Draw what the results hold: progress, sorted log probabilities, log Z.

    Arguments:
        results: What `python -m reproduction chapter-4` wrote: "rbm" and "runs", of which the first
            seed's have "progress" and "sorted".
        out: A folder for the pictures.
        reference: Name, value and interval of log Z to compare with.

    Returns:
        For each picture that was written, by its file's name, what it shows in words.
    """
    runs = results.get("runs") or []
    first = [run for run in runs if "sorted" in run]
    if not first:
        raise ArgumentError("results", "no finished runs", "the results of chapter 4")
    losses = [loss for loss in NAMES if any(run["loss"] == loss for run in first)]
    hidden = sorted({run["hidden"] for run in first})
    by = {(run["hidden"], run["loss"]): run for run in first}
    said = {}
    with canvas(1, len(losses), (4.2, 3.2), share=True) as (figure, axes):
        alts = []
        for place, loss in zip(axes[0], losses, strict=True):
            curves = {f"{h} hidden units": _curve(by[h, loss]) for h in hidden if (h, loss) in by}
            label = "log probability of 500 test images (nats)"
            alts.append(f"{NAMES[loss]}. {progress(place, curves, label=label)}")
            place.set_title(NAMES[loss])
            low = min(min(curve[1][len(curve[1]) // 10 :]) for curve in curves.values())
            place.set_ylim(bottom=low - 1)  # the first steps would flatten the rest
            _only_outside(place)
        said["progress.png"] = " ".join(alts)
        save(figure, out / "progress.png", said["progress.png"])
    with canvas(len(hidden), len(losses), (3.6, 2.4), share=True) as (figure, axes):
        alts = []
        for row, h in zip(axes, hidden, strict=True):
            for place, loss in zip(row, losses, strict=True):
                title = f"{NAMES[loss]}, {h} hidden units"
                if (h, loss) not in by:
                    place.set_axis_off()
                    continue
                run = by[h, loss]["sorted"]
                alts.append(f"{title}. {sorted_log_probabilities(place, _rbm(results), run)}")
                place.set_title(title)
                _only_outside(place)
        said["sorted.png"] = " ".join(alts)
        save(figure, out / "sorted.png", said["sorted.png"])
    estimates = {}
    for method in ("bridge", "importance"):
        for (h, loss), run in by.items():
            if method in run:
                estimates[f"{method}, {NAMES[loss]}, {h}"] = run[method]
    with canvas(1, 1, (6.0, 0.8 + 0.24 * len(estimates))) as (figure, axes):
        said["log-z.png"] = intervals(axes[0][0], estimates, reference=reference)
        save(figure, out / "log-z.png", said["log-z.png"])
    return said


def sheets(
    groups: Mapping[str, Any], path: Path, *, signed: bool = False, what: str = "samples"
) -> str:
    r"""Sheets of images beside one another, such as the samples of several models.

    Arguments:
        groups: Images (n, 784), column by column, by the name of their model.
        path: The file to write.
        signed: Whether they are features, of either sign.
        what: What the images are, in the plural.
    """
    if not groups:
        raise ArgumentError("groups", "nothing to draw", "images by name")
    across = min(len(groups), 4 if len(groups) > 3 else 3)
    down = -(-len(groups) // across)
    with canvas(down, across, (2.6, 2.8)) as (figure, axes):
        alts = []
        places = axes.flatten()
        for place, (name, rows) in zip(places, groups.items(), strict=False):
            alts.append(f"{name}: {images(place, np.asarray(rows), signed=signed, what=what)}")
            place.set_title(name)
        for place in places[len(groups) :]:
            place.set_axis_off()
        alt = " ".join(alts)
        save(figure, path, alt)
    return alt


def _only_outside(axes: Any) -> None:
    r"""Labels at the edges of the figure alone, and a legend in its first axes."""
    axes.label_outer()
    place = axes.get_subplotspec()
    if not (place.is_first_row() and place.is_first_col()):
        axes.get_legend().remove()


def _curve(run: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    return run["progress"]["step"], run["progress"]["test"]


def _rbm(results: Mapping[str, Any]) -> list[float]:
    found: list[float] = results["rbm"]["sorted"]
    return found
