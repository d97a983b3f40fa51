r"""Plots of plain numbers: curves, intervals, surfaces, densities, sheets of images.

Each function draws on matplotlib's axes. Those that return a text return a description of the
picture (alt text).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from limbeck.arguments import integer
from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, INK, LINES, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

Floats = Sequence[float]
Numbers = str | Sequence[Any] | np.ndarray | Tensor  # a string has spaces between its numbers
Curve = tuple[Floats, Floats]  # along the horizontal and the vertical axis
Estimates = Mapping[str, Mapping[str, Any]]  # dicts of `LogPartition.to_dict`, by name
Band = tuple[str, float, float, float]  # a name, a value, and both ends of an interval


def progress(
    axes: Axes, curves: Mapping[str, Curve], *, label: str = "test log probability (nats)",
    reference: tuple[str, float] | None = None,
) -> str:  # fmt: skip
    r"""Curves against the number of training steps.

    Arguments:
        axes: Where to draw.
        curves: Steps and values, by name.
        label: The quantity and its unit. Default: "test log probability (nats)".
        reference: Name and value of a horizontal line. Default: None.
    """
    if not curves:
        raise ArgumentError("curves", "nothing to draw", "one or more, by name")
    for number, (name, curve) in enumerate(curves.items()):
        x, y = (_vector(name, part) for part in curve)
        if len(x) != len(y):
            raise ArgumentError(name, f"{len(x)} and {len(y)} numbers", "as many of each")
        axes.plot(x, y, color=COLOURS[number % len(COLOURS)], label=name)
    if reference is not None:
        axes.axhline(reference[1], color=MUTED, linestyle="--", linewidth=1, label=reference[0])
    axes.set(xlabel="steps", ylabel=label)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="best")
    ends = [f"{name} ends at {float(y[-1]):.2f}" for name, (_, y) in curves.items()]
    level = "" if reference is None else f" The dashed line is {reference[0]}, {reference[1]:.2f}."
    return f"Line plot of {label} against training steps: {'; '.join(ends)}.{level}"


def falls(axes: Axes, values: Sequence[float] | np.ndarray) -> None:
    r"""Use a logarithmic scale for positive values that differ by more than a factor of 5."""
    from matplotlib.ticker import LogLocator

    array = np.asarray(values, dtype=float)
    if array.min() > 0 and array.max() > 5 * array.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()


def sorted_log_probabilities(
    axes: Axes, teacher: Floats, student: Floats, *, names: tuple[str, str] = ("RBM", "NADE")
) -> str:
    r"""Log probabilities of the same images under two models, sorted by the teacher's.

    Arguments:
        axes: Where to draw.
        teacher: The teacher's log probability of each image, (n,).
        student: The student's, (n,), in the same order.
        names: Names of teacher and student. Default: ("RBM", "NADE").
    """
    one, two = _vector("teacher", teacher), _vector("student", student)
    if len(one) != len(two):
        raise ArgumentError("student", f"{len(two)} numbers", f"{len(one)}, as of the teacher")
    order = np.argsort(-one, kind="stable")
    rank = np.arange(1, len(one) + 1)
    axes.plot(rank, two[order], ".", color=COLOURS[1], markersize=2.5, label=names[1])
    axes.plot(rank, one[order], color=COLOURS[0], label=names[0])
    label = f"image, by its log probability under the {names[0]}"
    axes.set(xlabel=label, ylabel="log probability (nats)")
    axes.legend(loc="lower left", markerscale=3)
    gap = two - one
    return (
        f"Log probabilities of {len(one):,} images in falling order of the {names[0]}'s, with the "
        f"{names[1]}'s scattered about them: on average {abs(gap.mean()):.2f} nats "
        f"{'above' if gap.mean() > 0 else 'below'}, with a standard deviation of "
        f"{gap.std():.2f} nats."
    )


def intervals(
    axes: Axes, estimates: Estimates, *, reference: Band | None = None, bounds: bool = False
) -> str:
    r"""Estimates of log Z below one another, with three standard errors on either side.

    Doubtful and unchecked ones are drawn hollow and dashed.

    Arguments:
        axes: Where to draw.
        estimates: Dicts of `LogPartition.to_dict`, by name.
        reference: Name, value, and ends of an interval that is drawn as a band. Default: None.
        bounds: Whether to mark lower and upper bounds too, which may be far away. Default: False.
    """
    if not estimates:
        raise ArgumentError("curves", "nothing to draw", "one or more, by name")
    band = ""
    if reference is not None:
        name, middle, low, high = reference
        axes.axvspan(low, high, color=COLOURS[4], alpha=0.25, linewidth=0, label=name)
        axes.axvline(middle, color=COLOURS[4], linewidth=1)
        band = f" The band is {name}: {middle:.2f} ({low:.2f} to {high:.2f})."
    texts, states = [], set[str]()
    for row, (name, estimate) in enumerate(estimates.items()):
        value, half = float(estimate["value"]), 3 * float(estimate["std_error"])
        trusted = bool(estimate.get("trustworthy", True))
        colour, line = (COLOURS[0], "-") if trusted else (COLOURS[1], (0, (2, 2)))
        axes.hlines(row, value - half, value + half, color=colour, linestyle=line, linewidth=2)
        state = estimate.get("state", "trustworthy" if trusted else "doubtful")
        axes.plot(
            value, row, "o", color=colour, mfc=colour if trusted else "white", markersize=5,
            label=None if state in states else state,
        )  # fmt: skip
        states.add(state)
        limits = (estimate.get("bounds") or {}) if bounds else {}
        for side, mark in (("lower", ">"), ("upper", "<")):
            if limits.get(side) is not None:
                axes.plot(limits[side][0], row, mark, color=MUTED, markersize=5)
        texts.append(f"{name} {value:.3f} ± {half:.3f}{'' if trusted else f' ({state})'}")
    rows_below(axes, list(estimates))
    axes.set_xlabel("log Z (nats), ± 3 standard errors")
    legend_above(axes, 3)
    return f"Estimates of log Z with three standard errors: {'; '.join(texts)}.{band}"


def rows_below(axes: Axes, names: Sequence[str]) -> None:
    r"""Name rows on the vertical axis, the first on top, without lines between them."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def legend_above(axes: Axes, columns: int = 2) -> None:
    r"""A legend above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)


def diagonal(axes: Axes, x: np.ndarray, y: np.ndarray, label: str) -> None:
    r"""The line on which both are equal."""
    ends = (min(x.min(), y.min()), max(x.max(), y.max()))
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":", label=label)


def images(
    axes: Axes, rows: Numbers, *, columns: int | None = None, shape: tuple[int, int] = (28, 28),
    by_column: bool = True, signed: bool = False, what: str = "images",
) -> str:  # fmt: skip
    r"""Images side by side in one picture, with thin lines between.

    Arguments:
        axes: Where to draw.
        rows: One image a row, (n, height · width).
        columns: Images side by side. Default: None, as many as make a square.
        shape: Height and width of an image. Default: (28, 28).
        by_column: Whether the numbers of an image are stored column by column. Default: True.
        signed: Whether to scale each image to its largest value, with zero in grey. Default: False,
            white is 0 and black is 1.
        what: What the images are, in the plural. Default: "images".
    """
    sheet = mosaic(rows, columns=columns, shape=shape, by_column=by_column, signed=signed)
    from matplotlib import colormaps

    greys = colormaps["gray_r"].with_extremes(bad=LINES)
    axes.imshow(sheet, cmap=greys, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    scale = ", each scaled to its largest value, zero in grey" if signed else ""
    return f"{len(np.asarray(rows))} {what} of {shape[0]} by {shape[1]} pixels in a grid{scale}."


def mosaic(
    rows: Numbers, *, columns: int | None = None, shape: tuple[int, int] = (28, 28),
    by_column: bool = True, signed: bool = False,
) -> np.ndarray:  # fmt: skip
    r"""The images as one array, with NaN in the lines between them; see `images`."""
    values = np.asarray(rows, dtype=float)
    height, width = shape
    if values.ndim != 2 or not len(values) or values.shape[1] != height * width:
        expected = f"shape (n, {height * width}), n from 1"
        raise ArgumentError("rows", f"shape {values.shape}", expected)
    if signed:
        largest = np.abs(values).max(1, keepdims=True)
        values = values / np.where(largest > 0, largest, 1)
    tiles = values.reshape(-1, height, width)
    if by_column:
        tiles = values.reshape(-1, width, height).transpose(0, 2, 1)
    across = int(np.ceil(np.sqrt(len(tiles))))
    if columns is not None:
        across = integer("columns", columns, "a whole number from 1", least=1)
    down = -(-len(tiles) // across)
    cells = np.full((down * across, height + 1, width + 1), np.nan)
    cells[: len(tiles), :height, :width] = tiles
    sheet = cells.reshape(down, across, height + 1, width + 1).swapaxes(1, 2)
    return sheet.reshape(down * (height + 1), -1)[:-1, :-1]


def numbers(packed: Numbers, width: int | None = None) -> np.ndarray:
    r"""Numbers from an array, from lists or from one string; `width` makes rows of them."""
    array = np.asarray(packed.split() if isinstance(packed, str) else packed, dtype=float)
    return array if width is None else array.reshape(-1, width)


def surface(axes: Axes, side: Numbers, values: Numbers) -> AxesImage:
    r"""Probabilities on a square, blue below and red above one half, with contour lines.

    Arguments:
        axes: Where to draw.
        side: Coordinates along both directions, (m,).
        values: Probabilities (m, m), the first index along the horizontal direction.
    """
    at, p = numbers(side), numbers(values)
    if p.size != at.size**2:
        raise ArgumentError("values", f"{p.size} numbers", f"{at.size**2}, a square of the side")
    p = p.reshape(at.size, at.size).T
    edge = (at[1] - at[0]) / 2
    low, high = at[0] - edge, at[-1] + edge
    image = axes.imshow(
        p, origin="lower", extent=(low, high, low, high), cmap="RdBu_r", vmin=0, vmax=1,
        interpolation="bilinear",
    )  # fmt: skip
    probability_lines(axes, at, at, p)
    axes.grid(False)
    axes.set(xlim=(at[0], at[-1]), ylim=(at[0], at[-1]))
    return image


def probability_lines(axes: Axes, x: np.ndarray, y: np.ndarray, p: np.ndarray) -> None:
    r"""Labelled contour lines of probabilities (len(y), len(x))."""
    lines = axes.contour(x, y, p, (0.1, 0.25, 0.5, 0.75, 0.9), colors=INK, linewidths=0.6)
    axes.clabel(lines, fmt="%g", fontsize=6)


def classes(axes: Axes, points: Numbers, labels: Numbers) -> None:
    r"""Points (n, 2) of two classes: label 1 as discs, label 0 as squares."""
    x, y = numbers(points, 2), np.asarray(labels)
    for label, mark, colour in ((1, "o", COLOURS[1]), (0, "s", COLOURS[0])):
        axes.plot(
            *x[y == label].T, mark, color=colour, markeredgecolor="white", markeredgewidth=0.5,
            markersize=4, label=f"y = {label}",
        )  # fmt: skip


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


def _vector(argument: str, values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not len(array):
        raise ArgumentError(argument, f"shape {array.shape}", "a list of numbers")
    return array
