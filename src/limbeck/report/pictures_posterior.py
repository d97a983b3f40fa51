r"""Pictures of condensed posteriors: compact weights among the draws, surfaces, curves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, INK, MUTED, drawn_on
from limbeck.report.surfaces import classes
from limbeck.storage.folder import Saved, as_saved

__all__ = ["curve", "difference", "numbers_of", "surface", "weights"]

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
r"""Probabilities whose lines are drawn."""

MODELS = {"teacher": "average of all draws", "student": "student"}


def weights(saved: Any, ax: Any = None, *, pair: tuple[int, int] = (0, 1)) -> Any:
    r"""The student's pseudo-draws among draws of the posterior; discs grow with their weights.

    Arguments:
        saved: A saved result of `condense`.
        ax: Where to draw; None for a figure of its own.
        pair: Which two numbers of a draw.
    """
    found = as_saved(saved)
    _need(found, "pseudo_draws", "a bag of pseudo-draws")
    dim = found.arrays["pseudo_draws"].shape[1]
    chosen = [whole_number("pair", each, f"two numbers from 0 to {dim - 1}", 0) for each in pair]
    if dim < 2 or max(chosen) >= dim:
        raise ArgumentError("pair", pair, f"two numbers from 0 to {dim - 1}")
    return drawn_on(ax, (4.2, 4.0), partial(_weights, found, chosen))


def surface(saved: Any, ax: Any = None, *, model: str = "student", output: int = 0) -> Any:
    r"""Predictions over two inputs, or a density of two variables.

    Arguments:
        saved: A saved result of `condense`.
        ax: Where to draw; None for a figure of its own.
        model: "teacher" or "student".
        output: Which class or output.
    """
    found = as_saved(saved)
    if model not in MODELS:
        raise ArgumentError.unknown("model", model, MODELS)
    values = _values(found, model, output)
    return drawn_on(ax, (4.0, 3.6), partial(_surface, found, values, model))


def difference(saved: Any, ax: Any = None, *, output: int = 0) -> Any:
    r"""The student's surface minus the teacher's."""
    found = as_saved(saved)
    gap = _values(found, "student", output) - _values(found, "teacher", output)
    return drawn_on(ax, (4.0, 3.6), partial(_difference, found, gap))


def curve(saved: Any, ax: Any = None, *, output: int = 0) -> Any:
    r"""Predictions along one input, or a density of one variable, of both."""
    found = as_saved(saved)
    _need(found, "curve_x", "curves")
    count = len(found.arrays["curve_student"])
    if not 0 <= output < count:
        raise ArgumentError("output", output, f"a number from 0 to {count - 1}")
    return drawn_on(ax, (4.8, 3.2), partial(_curve, found, output))


def numbers_of(saved: Saved) -> list[str]:
    r"""What the numbers of a draw are called: as diagnostics call them, if they tell of all."""
    dim = saved.arrays["pseudo_draws"].shape[1]
    names = (saved.content.get("diagnostics") or {}).get("names", [])
    return list(names) if len(names) == dim else [f"draw[{k}]" for k in range(dim)]


def _weights(found: Saved, pair: list[int], axes: Any) -> str:
    own, share = found.arrays["pseudo_draws"], found.arrays["pseudo_weights"]
    count = 0
    if "draws" in found.arrays:
        draws = found.arrays["draws"]
        count = len(draws)
        axes.plot(
            draws[:, pair[0]], draws[:, pair[1]], ".", color=MUTED, markersize=2, alpha=0.5,
            label=f"{count:,} draws", rasterized=True,
        )  # fmt: skip
    axes.scatter(
        own[:, pair[0]], own[:, pair[1]], s=300 * share / max(share.max(), 1e-12) / 3 + 10,
        color=COLOURS[1], edgecolor="white", linewidth=0.6, zorder=3,
        label=f"{len(own)} pseudo-draws",
    )  # fmt: skip
    names = numbers_of(found)
    axes.set_xlabel(names[pair[0]])
    axes.set_ylabel(names[pair[1]])
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return (
        f"The student's {len(own)} pseudo-draws among {count:,} draws of the posterior, numbers "
        f"{pair[0]} and {pair[1]} of each; their weighted means are "
        f"({share @ own[:, pair[0]]:.3g}, {share @ own[:, pair[1]]:.3g})."
    )


def _surface(found: Saved, values: np.ndarray, model: str, axes: Any) -> str:
    density = bool(found.content.get("density"))
    both = [found.arrays[f"surface_{each}"] for each in MODELS]
    low, high = min(each.min() for each in both), max(each.max() for each in both)
    probable = not density and low >= 0 and high <= 1
    drawn = _painted(found, axes, values, "RdBu_r" if probable else "viridis",
                     (0.0, 1.0) if probable else (low, high))  # fmt: skip
    x, y = found.arrays["surface_x"], found.arrays["surface_y"]
    if probable:
        lines = axes.contour(x, y, values.T, LEVELS, colors=INK, linewidths=0.6)
        axes.clabel(lines, fmt="%g", fontsize=6)
    _points(found, axes)
    label = "density" if density else "probability" if probable else "mean"
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8, label=label)
    axes.set_title(MODELS[model])
    return (
        f"{label.capitalize()} by the {MODELS[model]} over x from {x[0]:.3g} to {x[-1]:.3g} and "
        f"y from {y[0]:.3g} to {y[-1]:.3g}: between {values.min():.3g} and {values.max():.3g}."
    )


def _difference(found: Saved, gap: np.ndarray, axes: Any) -> str:
    largest = float(np.abs(gap).max())
    drawn = _painted(found, axes, gap, "PuOr_r", (-(largest or 1.0), largest or 1.0))
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8, label="student − average of draws")
    axes.set_title(f"difference, at most {largest:.2g}")
    return (
        f"The student minus the average of all draws: {np.abs(gap).mean():.2g} on average and "
        f"{largest:.2g} at most, without regard to sign."
    )


def _painted(
    found: Saved, axes: Any, values: np.ndarray, colours: str, ends: tuple[float, float]
) -> Any:
    x, y = found.arrays["surface_x"], found.arrays["surface_y"]
    drawn = axes.imshow(
        values.T, origin="lower", extent=(x[0], x[-1], y[0], y[-1]), cmap=colours, vmin=ends[0],
        vmax=ends[1], interpolation="bilinear", aspect="auto",
    )  # fmt: skip
    axes.grid(False)
    axes.set_xlabel("first variable")
    axes.set_ylabel("second variable")
    return drawn


def _points(found: Saved, axes: Any) -> None:
    points, labels = (found.arrays.get(name) for name in ("points", "labels"))
    if points is None or points.ndim != 2 or points.shape[1] != 2:
        return
    ends = axes.get_xlim(), axes.get_ylim()
    if labels is not None and set(np.unique(labels)) <= {0, 1}:
        classes(axes, points, labels.tolist())
    else:
        axes.plot(points[:, 0], points[:, 1], ".", color=INK, markersize=3)
    axes.set(xlim=ends[0], ylim=ends[1])


def _curve(found: Saved, output: int, axes: Any) -> str:
    x = found.arrays["curve_x"]
    teacher, student = (found.arrays[f"curve_{each}"][output] for each in MODELS)
    density = bool(found.content.get("density"))
    axes.plot(x, teacher, color=MUTED, linewidth=4, alpha=0.6, label=MODELS["teacher"])
    axes.plot(x, student, color=COLOURS[1], label="student")
    axes.set_xlabel("variable" if density else "input")
    axes.set_ylabel("density" if density else "mean of the prediction")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    apart = np.abs(teacher - student)
    return (
        f"{'Densities' if density else 'Predictions'} of the average of all draws and of the "
        f"student, from {x[0]:.3g} to {x[-1]:.3g}: they differ by {apart.mean():.2g} on average "
        f"and by {apart.max():.2g} at most."
    )


def _values(found: Saved, model: str, output: int) -> np.ndarray:
    _need(found, "surface_x", "surfaces")
    every = found.arrays[f"surface_{model}"]
    if not 0 <= output < len(every):
        raise ArgumentError("output", output, f"a number from 0 to {len(every) - 1}")
    return every[output]


def _need(found: Saved, name: str, what: str) -> None:
    if name not in found.arrays:
        raise ArgumentError("saved", f"a result without {what}", "one of condense that has them")
