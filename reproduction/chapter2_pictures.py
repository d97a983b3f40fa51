r"""The pictures of chapter 2: how students learn, where they end, and what NADE draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, INK, MUTED
from reproduction.canvas import canvas, save
from reproduction.plots import images

__all__ = ["Point", "cells", "curves", "drawn", "sheets"]

GENERATORS = {"mnist": "MNIST", "nade": "NADE", "noise": "Gaussian noise"}
SHARES = {"all": "all images", "tenth": "10% of the images"}
LOSSES = {"ce": "cross entropy", "dse": "derivative square error"}
MEASURES = {"accuracy": "test accuracy (%)", "log_prob": "test log probability (nats)"}

LOWEST = {"accuracy": 60.0, "log_prob": -1.5}
r"""Where the vertical axis begins at the latest: the first steps would flatten the rest."""

HIGHEST = {"accuracy": 100.0, "log_prob": 0.0}
r"""What cannot be surpassed, near which it ends."""

ACROSS = 28
r"""Letters that have room in one line above a sheet of images."""


class Point(NamedTuple):
    r"""One row of `cells`: means and half-widths of intervals.

    Attributes:
        ours: Our mean.
        error: Two standard errors of it.
        text: The text's number.
        bar: Its error bar.
    """

    ours: float
    error: float
    text: float
    bar: float


def curves(
    runs: list[Mapping[str, Any]],
    path: Path,
    measure: str,
    reference: tuple[str, float] | None = None,
) -> str:
    r"""Learning curves: a measure on the test set against the samples seen, by images and loss.

    Arguments:
        runs: What `python -m reproduction chapter-2` wrote; of each cell the first run with a
            "curve" is drawn.
        path: The file to write.
        measure: "accuracy" or "log_prob".
        reference: A name and a value to compare with, such as the teacher's.
    """
    if measure not in MEASURES:
        raise ArgumentError.unknown("measure", measure, MEASURES)
    found = drawn(runs)
    if not found:
        raise ArgumentError("runs", "no curves", "runs of chapter 2 that have some")
    shares = [share for share in SHARES if any(f"-{share}-" in name for name in found)]
    with canvas(len(shares), 2, (4.2, 2.9), share=True) as (figure, axes):
        said = []
        for row, share in zip(axes, shares, strict=True):
            for place, loss in zip(row, LOSSES, strict=True):
                title = f"{LOSSES[loss]}, {SHARES[share]}"
                ends = []
                for colour, (generator, name) in zip(COLOURS, GENERATORS.items(), strict=False):
                    if curve := found.get(f"{generator}-{share}-{loss}"):
                        values = curve[measure]
                        place.plot(curve["samples"], values, color=colour, label=name)
                        ends.append(f"{name} ends at {values[-1]:.4g}")
                if reference is not None:
                    place.axhline(
                        reference[1], color=MUTED, linestyle="--", linewidth=1, label=reference[0]
                    )
                place.set_title(title)
                said.append(f"{title}: {'; '.join(ends) or 'nothing was run'}.")
        _dress(figure, axes, measure, [curve[measure] for curve in found.values()])
        level = "" if reference is None else f" Dashed: {reference[0]}, {reference[1]:.4g}."
        alt = (
            f"Line plots of {MEASURES[measure]} against training samples on a logarithmic scale. "
            f"{' '.join(said)}{level}"
        )
        save(figure, path, alt)
    return alt


def cells(points: Mapping[str, Mapping[str, Point]], path: Path) -> str:
    r"""Where the students end: ours and the text's numbers, a row for each cell.

    Arguments:
        points: By measure, then by the name of the row.
        path: The file to write.
    """
    if not points or not all(points.values()):
        raise ArgumentError("points", "nothing to draw", "points by measure and by name")
    rows = max(map(len, points.values()))
    with canvas(1, len(points), (4.6, 1.0 + 0.24 * rows)) as (figure, axes):
        said = []
        for place, (measure, each) in zip(axes[0], points.items(), strict=True):
            for number, point in enumerate(each.values()):
                _interval(place, number - 0.15, point.text, point.bar, MUTED, "the text", number)
                _interval(place, number + 0.15, point.ours, point.error, COLOURS[0], "ours", number)
            place.set_yticks(range(len(each)), list(each))
            place.set_ylim(len(each) - 0.5, -0.5)
            place.grid(False, axis="y")
            place.set_xlabel(MEASURES[measure])
            each_said = "; ".join(
                f"{name} {point.ours:.4g} (the text {point.text:.4g} ± {point.bar:.2g})"
                for name, point in each.items()
            )
            said.append(f"{MEASURES[measure]}: {each_said}.")
        axes[0][0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        for place in axes[0][1:]:
            place.set_yticklabels([])
        alt = f"Our means with two standard errors beside the text's numbers. {' '.join(said)}"
        save(figure, path, alt)
    return alt


def sheets(groups: Mapping[str, Any], path: Path, shape: tuple[int, int] = (28, 28)) -> str:
    r"""Sheets of images beside one another, white on black as in the text.

    Arguments:
        groups: Images (n, height · width) from 0 to 1, row by row, by name; or such images in
            text, a hexadecimal digit a pixel, as results hold them.
        path: The file to write.
        shape: Height and width of an image.
    """
    if not groups:
        raise ArgumentError("groups", "nothing to draw", "images by name")
    names = list(groups)
    across = min(len(names), 4)
    apart = ",\n" if max(map(len, names)) > ACROSS else ", "
    with canvas(-(-len(names) // across), across, (2.4, 2.6)) as (figure, axes):
        said = []
        for number, place in enumerate(axes.flat):
            place.set_axis_off()
            if number < len(names):
                rows = 1 - _pixels(groups[names[number]])  # white on black
                place.set_title(names[number].replace(", ", apart))
                words = images(place, rows, shape=shape, by_column=False)
                said.append(f"{names[number]}: {words}")
        save(figure, path, " ".join(said))
    return " ".join(said)


def drawn(runs: list[Mapping[str, Any]]) -> dict[str, Any]:
    r"""The learning curve of each student: of the first of its runs that has one."""
    found: dict[str, Any] = {}
    for run in runs:
        if run.get("curve") and not run["cell"].startswith("labels"):
            found.setdefault(run["cell"], run["curve"])
    return found


def _dress(figure: Any, axes: Any, measure: str, values: list[list[float]]) -> None:
    top, first = axes[0][0], min(min(each) for each in values)
    top.set_xscale("log")
    bottom, most = max(first, LOWEST[measure]), HIGHEST[measure]
    top.set_ylim(bottom, most + 0.03 * (most - bottom))
    named: dict[str, Any] = {}
    for place in axes.flatten():
        named |= dict(zip(*place.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=4)
    for row in axes:
        row[0].set_ylabel(MEASURES[measure])
    for place in axes[-1]:
        place.set_xlabel("training samples")


def _interval(
    place: Any, height: float, middle: float, half: float, colour: str, name: str, number: int
) -> None:
    place.hlines(height, middle - half, middle + half, color=colour, linewidth=2)
    label = name if number == 0 else None
    place.plot(
        middle,
        height,
        "o",
        color=colour,
        markeredgecolor=INK if name == "ours" else colour,
        markersize=4,
        label=label,
    )


def _pixels(given: Any) -> np.ndarray:
    if len(given) and isinstance(given[0], str):
        return np.array([[int(digit, 16) / 15 for digit in row] for row in given])
    return np.asarray(given, dtype=float)
