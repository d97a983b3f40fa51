r"""Functions of two variables from above: predicted probabilities, and densities of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, INK, canvas, save

__all__ = ["Kept", "classes", "density", "ellipses", "numbers", "picture", "surface", "weights"]


class Kept(NamedTuple):
    r"""What one way to predict keeps of a posterior, and what it predicts.

    Attributes:
        surface: Probabilities (m, m) on a square, the first index along the horizontal direction.
        error: The mean of their distance from those of all draws; None for all draws.
        draws: Draws (k, 2) of the weights; None where there is a Gaussian.
        share: How much each draw counts, (k,); None for draws as they came.
        gaussian: A mean (2,) and a covariance (2, 2).
    """

    surface: Any
    error: float | None = None
    draws: Any = None
    share: Any = None
    gaussian: tuple[Any, Any] | None = None


def picture(
    ways: Mapping[str, Kept],
    points: Any,
    labels: Any,
    side: Any,
    posterior: tuple[Any, Any, Any],
    path: str | Path,
) -> str:
    r"""Draw ways to predict side by side.

    Arguments:
        ways: By name, in the order of the columns.
        points: The observations' inputs (n, 2).
        labels: Their labels (n,), 0 or 1.
        side: Places along both directions of the surfaces, (m,).
        posterior: Places along both directions of the weights, (p,) and (q,), and the density
            (p, q) there.
        path: Where the picture goes.

    Returns:
        What it shows, in words.
    """
    said = []
    across, up, _ = posterior
    with canvas(2, len(ways), (2.4, 2.4)) as (figure, axes):
        drawn = None
        for (name, way), above, below in zip(ways.items(), axes[0], axes[1], strict=True):
            density(above, *posterior)
            _draw(above, way)
            above.set_title(name)
            above.set_xlim(*numbers(across)[[0, -1]])
            above.set_ylim(*numbers(up)[[0, -1]])
            above.set_xlabel("$w_1$")
            drawn = surface(below, side, way.surface)
            classes(below, points, labels)
            below.set_title("t" if way.error is None else f"mean |t − f| {way.error:.4f}")
            below.set_xlabel("$x_1$")
            said.append(name if way.error is None else f"{name}, mean error {way.error:.4f}")
            for place in (above, below):
                place.set_aspect("equal")
        axes[0][0].set_ylabel("$w_2$")
        axes[1][0].set_ylabel("$x_2$")
        figure.colorbar(drawn, ax=axes[1], shrink=0.8, label="probability of y = 1")
        alt = (
            "Above, the posterior of two weights and what is kept of it; below, the probabilities "
            f"of the label 1 that follow on [−8, 8]²: {'; '.join(said)}."
        )
        save(figure, path, alt)
    return alt


def _draw(axes: Any, way: Kept) -> None:
    if way.gaussian is not None:
        ellipses(axes, *way.gaussian)
    elif way.share is not None:
        weights(axes, way.draws, way.share)
    else:
        at = numbers(way.draws, 2)
        axes.plot(at[:, 0], at[:, 1], ".", color=COLOURS[0], markersize=1)


LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
r"""Probabilities whose lines are drawn."""

SHARES = (0.01, 0.1, 0.5)
r"""Heights of a density, relative to its top, whose lines are drawn."""

SHADES = ("#f5f5f5", "#dedede", "#b3b3b3", "#858585")
r"""Between these lines, and above the top's last fifth."""

LEAST = 5e-5
r"""Heights below this count as this."""


def numbers(packed: Any, width: int | None = None) -> np.ndarray:
    r"""Numbers that results hold as one string, or as lists; `width` makes rows of them.

    >>> numbers("0.5 1 2 3", 2)
    array([[0.5, 1. ],
           [2. , 3. ]])
    """
    found = np.asarray(packed.split() if isinstance(packed, str) else packed, dtype=float)
    return found if width is None else found.reshape(-1, width)


def surface(axes: Any, side: Sequence[float], values: Any) -> Any:
    r"""Probabilities on a square, blue below and red above one half, with lines at some of them.

    Arguments:
        axes: Where to draw.
        side: Places along both directions, (m,).
        values: Probabilities (m, m), the first index along the horizontal direction.

    Returns:
        What a colour bar is made of.
    """
    at, p = numbers(side), numbers(values)
    if p.size != at.size**2:
        raise ArgumentError("values", f"{p.size} numbers", f"{at.size**2}, a square of the side")
    p = p.reshape(at.size, at.size).T
    edge = (at[1] - at[0]) / 2
    extent = (at[0] - edge, at[-1] + edge) * 2
    drawn = axes.imshow(
        p, origin="lower", extent=extent, cmap="RdBu_r", vmin=0, vmax=1, interpolation="bilinear"
    )
    lines = axes.contour(at, at, p, LEVELS, colors=INK, linewidths=0.6)
    axes.clabel(lines, fmt="%g", fontsize=6)
    axes.grid(False)
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(at[0], at[-1])
    return drawn


def classes(axes: Any, points: Any, labels: Sequence[int]) -> None:
    r"""Points (n, 2) of two classes: the label 1 as discs, 0 as squares."""
    x, y = numbers(points, 2), np.asarray(labels)
    for label, mark, colour in ((1, "o", COLOURS[1]), (0, "s", COLOURS[0])):
        own = x[y == label]
        axes.plot(
            own[:, 0], own[:, 1], mark, color=colour, markeredgecolor="white",
            markeredgewidth=0.5, markersize=4, label=f"y = {label}",
        )  # fmt: skip


def density(axes: Any, across: Sequence[float], up: Sequence[float], values: Any) -> None:
    r"""A density over two variables, in grey, with lines at some heights.

    Arguments:
        axes: Where to draw.
        across: Places along the horizontal direction, (m,).
        up: Places along the vertical one, (n,).
        values: The density (m, n), up to a constant.
    """
    one, two = numbers(across), numbers(up)
    heights = numbers(values).reshape(len(one), len(two)).T
    # logarithms are smooth where a density falls steeply, so that lines between places are, too
    logs = np.log(np.maximum(heights / heights.max(), LEAST))
    axes.contourf(one, two, logs, np.log([*SHARES, 0.8, 1.001]), colors=SHADES)
    lines = {"colors": "#9a9a9a", "linewidths": 0.5, "linestyles": "solid"}
    axes.contour(one, two, logs, np.log(SHARES), **lines)
    axes.grid(False)


def weights(axes: Any, draws: Any, share: Any) -> None:
    r"""Trained draws (k, 2) as discs, whose areas are their shares (k,)."""
    at = numbers(draws, 2)
    axes.scatter(
        at[:, 0], at[:, 1], s=240 * numbers(share) + 4, color=COLOURS[1], edgecolor="white",
        linewidth=0.5, zorder=3,
    )  # fmt: skip


def ellipses(axes: Any, mean: Any, covariance: Any) -> None:
    r"""One and two standard deviations of a Gaussian over two variables."""
    centre, spread = numbers(mean), numbers(covariance, 2)
    turn = np.linspace(0, 2 * np.pi, 100)
    circle = np.linalg.cholesky(spread) @ np.stack([np.cos(turn), np.sin(turn)])
    for radius in (1, 2):
        x, y = centre[:, None] + radius * circle
        axes.plot(x, y, color=COLOURS[1], linewidth=1.2)
    axes.plot(*centre, "+", color=COLOURS[1])
