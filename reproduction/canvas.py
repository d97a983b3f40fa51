r"""Figures of several axes in limbeck's style, written with their description."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limbeck.environment import load_matplotlib
from limbeck.report.canvas import STYLE, new_figure
from limbeck.storage.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure


@contextmanager
def canvas(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.0), *, share: bool = False
) -> Iterator[tuple[Figure, np.ndarray]]:
    r"""A figure with axes (rows, columns), each of a size in inches; it is cleared at the end."""
    with load_matplotlib().rc_context(STYLE):
        figure = new_figure(columns * size[0], rows * size[1])
        yield figure, figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
        figure.clear()


def save(figure: Figure | SubFigure, path: str | Path, alt: str, dpi: int = 160) -> Path:
    r"""Write a figure as .png, .svg or .pdf, with its description `alt` in the file's metadata."""
    path, file = Path(path), io.BytesIO()
    svg = {"Description": alt, "Date": None}
    metadata = {".png": {"Description": alt}, ".svg": svg, ".pdf": {"Subject": alt}}
    kind = path.suffix.lower()
    options: dict[str, Any] = {
        "dpi": dpi,
        "metadata": metadata.get(kind),
        "format": kind.removeprefix(".") or None,
    }
    figure.savefig(file, **options)  # type: ignore[union-attr]
    return write_bytes(path, file.getvalue())
