r"""Images: samples and features of models side by side in one picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from limbeck.core.checks import whole_number
from limbeck.errors import ArgumentError
from limbeck.report.canvas import LINES

__all__ = ["images", "mosaic"]


def images(
    axes: Any,
    rows: Any,
    *,
    columns: int | None = None,
    shape: tuple[int, int] = (28, 28),
    by_column: bool = True,
    signed: bool = False,
    what: str = "images",
) -> str:
    r"""Images side by side in one picture, with thin lines between.

    Arguments:
        axes: Where to draw.
        rows: One image a row, (n, height · width).
        columns: How many stand side by side; None makes a square.
        shape: Height and width of an image.
        by_column: Whether the numbers of an image go down its columns, one after the other.
        signed: Whether grey stands for zero and each image has a scale of its own, as for
            features; if not, white is 0 and black is 1.
        what: What the images are, in the plural.
    """
    sheet = mosaic(rows, columns=columns, shape=shape, by_column=by_column, signed=signed)
    from matplotlib import colormaps

    tones = colormaps["gray_r"].with_extremes(bad=LINES)
    axes.imshow(sheet, cmap=tones, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    kind = ", each scaled to its largest value, zero in grey" if signed else ""
    return f"{len(np.asarray(rows))} {what} of {shape[0]} by {shape[1]} pixels in a grid{kind}."


def mosaic(
    rows: Any,
    *,
    columns: int | None = None,
    shape: tuple[int, int] = (28, 28),
    by_column: bool = True,
    signed: bool = False,
) -> np.ndarray:
    r"""The images as one array, with NaN in the lines between them; see `images`."""
    given = np.asarray(rows, dtype=float)
    height, width = shape
    if given.ndim != 2 or not len(given) or given.shape[1] != height * width:
        accepted = f"shape (n, {height * width}), n from 1"
        raise ArgumentError("rows", f"shape {given.shape}", accepted)
    if signed:
        largest = np.abs(given).max(1, keepdims=True)
        given = given / np.where(largest > 0, largest, 1)
    if by_column:
        tiles = given.reshape(-1, width, height).transpose(0, 2, 1)
    else:
        tiles = given.reshape(-1, height, width)
    across = int(np.ceil(np.sqrt(len(tiles))))
    if columns is not None:
        across = whole_number("columns", columns, "a whole number from 1", least=1)
    down = -(-len(tiles) // across)
    sheet = np.full((down * (height + 1) - 1, across * (width + 1) - 1), np.nan)
    for number, tile in enumerate(tiles):
        y, x = number // across * (height + 1), number % across * (width + 1)
        sheet[y : y + height, x : x + width] = tile
    return sheet
