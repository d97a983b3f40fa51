r"""Where pictures are drawn: one look for all, and files that describe themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from limbeck.errors import LimbeckError

__all__ = [
    "COLOURS",
    "INK",
    "LINES",
    "MUTED",
    "canvas",
    "drawn_on",
    "load_matplotlib",
    "save",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
r"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

INK, MUTED, LINES = "#222222", "#767676", "#d9d9d9"
r"""For what is read, for what is only there to compare with, and for what separates."""

STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "limbeck",  # equal pictures are equal files
}


@contextmanager
def canvas(
    rows: int = 1,
    columns: int = 1,
    size: tuple[float, float] = (4.2, 3.0),
    *,
    share: bool = False,
) -> Iterator[tuple[Any, Any]]:
    r"""A figure with rows × columns of axes (an array of them), closed when done.

    Arguments:
        rows: Rows of axes.
        columns: Columns of axes.
        size: Width and height of one of the axes, in inches.
        share: Whether all have the same scales.
    """
    with load_matplotlib().rc_context(STYLE):
        figure = _figure(columns * size[0], rows * size[1])
        yield figure, figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
        figure.clear()


def drawn_on(axes: Any, size: tuple[float, float], draw: Callable[[Any], str]) -> Any:
    r"""Axes with a picture on them, whose label says in words what it shows.

    Arguments:
        axes: Where to draw; None for a figure of its own.
        size: Width and height of that figure, in inches.
        draw: Draws on axes, and says what is to be seen.
    """
    if axes is not None:
        axes.set_label(draw(axes))
        return axes
    with load_matplotlib().rc_context(STYLE):
        return drawn_on(_figure(*size).subplots(), size, draw)


def save(figure: Any, path: str | Path, alt: str, dpi: int = 160) -> Path:
    r"""Write a picture, with what it shows in words inside the file.

    Arguments:
        figure: From `canvas`.
        path: Where to; the ending (.png, .svg, .pdf) says what.
        alt: A description for those who cannot see it.
        dpi: Pixels an inch.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
    key = about.get(path.suffix.lower())
    metadata: dict[str, Any] = {} if key is None else {key: alt}
    if path.suffix.lower() == ".svg":
        metadata["Date"] = None
    figure.savefig(path, dpi=dpi, metadata=metadata or None)
    return path


def load_matplotlib() -> Any:
    r"""The library, or a word on how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise LimbeckError(
            "pictures need matplotlib, which is not installed: pip install 'limbeck[plots]'"
        ) from None
    return matplotlib


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the user's own backend is
    return figure
