r"""The picture of a condensed posterior of two weights: what is kept above, predictions below."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from limbeck.report.canvas import COLOURS, canvas, save
from limbeck.report.surfaces import classes, density, ellipses, numbers, surface, weights

__all__ = ["Kept", "picture"]


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
