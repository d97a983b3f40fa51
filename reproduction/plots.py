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
from limbeck.report.canvas import COLOURS, INK, LINES, legend_above, rows_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

Floats = Sequence[float]
Numbers = Sequence[Any] | np.ndarray | Tensor
Curve = tuple[Floats, Floats]  # along the horizontal and the vertical axis
Estimates = Mapping[str, Mapping[str, Any]]  # dicts of `LogPartition.to_dict`, by name
Band = tuple[str, float, float, float]  # a name, a value, and both ends of an interval


def progress(
    axes: Axes, curves: Mapping[str, Curve], *, label: str = "test log probability (nats)"
) -> str:
    r"""Curves against the number of training steps.

    Arguments:
        axes: Where to draw.
        curves: Steps and values, by name.
        label: The quantity and its unit. Default: "test log probability (nats)".
    """
    if not curves:
        raise ArgumentError("curves", "nothing to draw", "one or more, by name")
    for number, (name, curve) in enumerate(curves.items()):
        x, y = (_vector(name, part) for part in curve)
        if len(x) != len(y):
            raise ArgumentError(name, f"{len(x)} and {len(y)} numbers", "as many of each")
        axes.plot(x, y, color=COLOURS[number % len(COLOURS)], label=name)
    axes.set(xlabel="steps", ylabel=label)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="best")
    ends = [f"{name} ends at {float(y[-1]):.2f}" for name, (_, y) in curves.items()]
    return f"Line plot of {label} against training steps: {'; '.join(ends)}."


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


def intervals(axes: Axes, estimates: Estimates, *, reference: Band | None = None) -> str:
    r"""Estimates of log Z below one another, with three standard errors on either side.

    Doubtful and unchecked ones are drawn hollow and dashed.

    Arguments:
        axes: Where to draw.
        estimates: Dicts of `LogPartition.to_dict`, by name.
        reference: Name, value, and ends of an interval that is drawn as a band. Default: None.
    """
    if not estimates:
        raise ArgumentError("curves", "nothing to draw", "one or more, by name")
    band = ""
    if reference is not None:
        name, middle, low, high = reference
        band = f" The band is {name}: {middle:.2f} ({low:.2f} to {high:.2f})."
        if low == high:
            name = f"{name} {middle:.4f}"
            band = f" The line is {name}."
        axes.axvspan(low, high, color=COLOURS[4], alpha=0.25, linewidth=0, label=name)
        axes.axvline(middle, color=COLOURS[4], linewidth=1)
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
        texts.append(f"{name} {value:.3f} ± {half:.3f}{'' if trusted else f' ({state})'}")
    rows_below(axes, list(estimates))
    axes.set_xlabel("log Z (nats), ± 3 standard errors")
    legend_above(axes, 3)
    return f"Estimates of log Z with three standard errors: {'; '.join(texts)}.{band}"


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
    from matplotlib import colormaps

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
    cells = np.full((down * across, height + 1, width + 1), np.nan)  # NaN between images
    cells[: len(tiles), :height, :width] = tiles
    sheet = cells.reshape(down, across, height + 1, width + 1).swapaxes(1, 2)
    sheet = sheet.reshape(down * (height + 1), -1)[:-1, :-1]
    greys = colormaps["gray_r"].with_extremes(bad=LINES)
    axes.imshow(sheet, cmap=greys, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    scale = ", each scaled to its largest value, zero in grey" if signed else ""
    return f"{len(values)} {what} of {height} by {width} pixels in a grid{scale}."


def surface(
    axes: Axes, side: Numbers, values: Numbers, *, up: Numbers | None = None,
    colours: str = "RdBu_r", ends: tuple[float, float] = (0.0, 1.0), lines: bool = True,
) -> AxesImage:  # fmt: skip
    r"""Values on a grid as colours, such as probabilities with contour lines.

    Arguments:
        axes: Where to draw.
        side: Coordinates along the horizontal direction, (m,).
        values: The values (m, n), the first index along the horizontal direction.
        up: Coordinates along the vertical direction, (n,). Default: None, a square with those of
            `side`.
        colours: A colour map of matplotlib. Default: "RdBu_r", blue below and red above one half.
        ends: Values of the first and the last colour. Default: (0, 1).
        lines: Whether to draw labelled contour lines of probabilities. Default: True.
    """
    x, values = np.asarray(side, dtype=float), np.asarray(values, dtype=float)
    y = x if up is None else np.asarray(up, dtype=float)
    if values.size != x.size * y.size:
        expected = f"{x.size * y.size}, one for each point"
        raise ArgumentError("values", f"{values.size} numbers", expected)
    image = values.reshape(x.size, y.size).T
    half = (x[1] - x[0]) / 2, (y[1] - y[0]) / 2
    drawn = axes.imshow(
        image, origin="lower", cmap=colours, vmin=ends[0], vmax=ends[1],
        aspect="equal" if up is None else "auto",
        extent=(x[0] - half[0], x[-1] + half[0], y[0] - half[1], y[-1] + half[1]),
        interpolation="bilinear",
    )  # fmt: skip
    axes.grid(False)
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    if lines:
        levels = (0.1, 0.25, 0.5, 0.75, 0.9)
        contours = axes.contour(x, y, image, levels, colors=INK, linewidths=0.6)
        axes.clabel(contours, fmt="%g", fontsize=6)
    return drawn


def classes(axes: Axes, points: Numbers, labels: Numbers) -> None:
    r"""Points (n, 2) of two classes: label 1 as discs, label 0 as squares."""
    x, y = np.asarray(points, float), np.asarray(labels)
    for label, mark, colour in ((1, "o", COLOURS[1]), (0, "s", COLOURS[0])):
        axes.plot(
            *x[y == label].T, mark, color=colour, markeredgecolor="white", markeredgewidth=0.5,
            markersize=4, label=f"y = {label}",
        )  # fmt: skip


def _vector(argument: str, values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not len(array):
        raise ArgumentError(argument, f"shape {array.shape}", "a list of numbers")
    return array
