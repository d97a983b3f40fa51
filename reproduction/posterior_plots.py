r"""Numbers that results hold as text, and plots of posteriors of two weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from limbeck.report.canvas import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Numbers", "density", "ellipses", "numbers", "weights"]

Numbers = str | Sequence[Any] | np.ndarray  # a string has spaces between its numbers


def numbers(packed: Numbers, width: int | None = None) -> np.ndarray:
    r"""Numbers from an array, from lists or from one string; `width` makes rows of them."""
    array = np.asarray(packed.split() if isinstance(packed, str) else packed, dtype=float)
    return array if width is None else array.reshape(-1, width)


def density(axes: Axes, across: Numbers, up: Numbers, values: Numbers) -> None:
    r"""A density over two variables (m, n), with lines at 1, 10 and 50% of its maximum."""
    x, y = numbers(across), numbers(up)
    heights = numbers(values).reshape(len(x), len(y)).T
    # logarithms are smooth where a density falls steeply, and so are the lines between points
    logs = np.log(np.maximum(heights / heights.max(), 5e-5))
    shares = (0.01, 0.1, 0.5)
    greys = ("#f5f5f5", "#dedede", "#b3b3b3", "#858585")
    axes.contourf(x, y, logs, np.log([*shares, 0.8, 1.001]), colors=greys)
    axes.contour(x, y, logs, np.log(shares), colors="#9a9a9a", linewidths=0.5, linestyles="solid")
    axes.grid(False)


def weights(axes: Axes, draws: Numbers, share: Numbers) -> None:
    r"""Trained draws (k, 2) as discs, whose areas are their shares (k,)."""
    x, y = numbers(draws, 2).T
    size = 240 * numbers(share) + 4
    axes.scatter(x, y, s=size, color=COLOURS[1], edgecolor="white", linewidth=0.5, zorder=3)


def ellipses(axes: Axes, mean: Numbers, covariance: Numbers) -> None:
    r"""One and two standard deviations of a Gaussian over two variables."""
    centre = numbers(mean)
    angle = np.linspace(0, 2 * np.pi, 100)
    circle = np.linalg.cholesky(numbers(covariance, 2)) @ np.stack([np.cos(angle), np.sin(angle)])
    for radius in (1, 2):
        axes.plot(*(centre[:, None] + radius * circle), color=COLOURS[1], linewidth=1.2)
    axes.plot(*centre, "+", color=COLOURS[1])
