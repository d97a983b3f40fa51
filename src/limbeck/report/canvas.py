r"""Figures in one style, what several pictures have in them, and figures as SVG inside a page."""

from __future__ import annotations

import functools
import html
import io
import math
import re
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from limbeck.arguments import UserObject, checked_arguments
from limbeck.environment import load_matplotlib
from limbeck.errors import ArgumentError
from limbeck.storage import Saved, as_saved
from limbeck.text import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


P = ParamSpec("P")
SavedResult = UserObject[Any]  # a result that was read, or its folder
MaybeAxes = UserObject[Any]  # where to draw; None is a new figure
OWN = "limbeck"  # the label of figures of limbeck's own

# Okabe and Ito's palette, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# of text, of things to compare with, of separators, and of the grid
INK, MUTED, LINES, GRID = "#222222", "#767676", "#d9d9d9", "#e6e6e6"

STYLE = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "white"),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow", "axes.unicode_minus"), True),
    "axes.titlesize": 10, "axes.titlelocation": "left", "axes.labelsize": 9,
    "axes.formatter.useoffset": False, "grid.color": GRID, "grid.linewidth": 0.6,
    "lines.linewidth": 1.4, "font.family": "DejaVu Sans", "svg.fonttype": "none",
    "svg.hashsalt": "limbeck",  # equal pictures are equal files
}  # fmt: skip

PAGE = {  # the style sheet's name of each colour
    INK: "currentColor", MUTED: "var(--muted)", LINES: "var(--rule)", GRID: "var(--grid)",
    "#ffffff": "var(--paper)",
    **{colour.lower(): f"var(--c{number})" for number, colour in enumerate(COLOURS)},
}  # fmt: skip


class MissingDataError(ArgumentError):
    r"""A result without what a picture shows."""


def picture(
    width: float, height: float, read: Callable[[Any], object] = as_saved
) -> Callable[[Callable[P, str]], Callable[P, Axes]]:
    r"""Of a function that draws on axes and describes them, one that returns described axes.

    It makes them, in a size in inches, if it is called without; `read` gives what it draws.
    """

    def decorate(draw: Callable[P, str]) -> Callable[P, Axes]:
        @functools.wraps(draw)
        def drawn(saved: object, ax: Axes | None = None, **options: object) -> Axes:
            saved, style = read(saved), {} if ax is not None else STYLE
            with load_matplotlib().rc_context(style):
                if ax is not None and not callable(getattr(ax, "set_label", None)):
                    raise ArgumentError("ax", f"a {type(ax).__name__}", "matplotlib's Axes")
                ax = new_figure(width, height).subplots() if ax is None else ax
                ax.set_label(draw(saved, ax, **options))  # type: ignore[arg-type]
            return ax

        return checked_arguments(drawn)  # type: ignore[return-value]

    return decorate


def fit(axes: Axes, width: float, height: float) -> None:
    r"""Another size in inches for a figure of limbeck's own; a user's stays as it is."""
    if axes.figure.get_label() == OWN:
        axes.figure.set_size_inches(width, height)  # type: ignore[union-attr]


def new_figure(width: float, height: float) -> Figure:
    r"""A figure of a size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", label=OWN)
    FigureCanvasAgg(figure)  # no window, whatever the user's own backend is
    return figure


def rows_below(axes: Axes, names: Sequence[str]) -> None:
    r"""Name rows on the vertical axis, the first on top, without lines between them."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def legend_above(axes: Axes, columns: int = 2) -> None:
    r"""A legend above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)


def against(axes: Axes, x: np.ndarray, y: np.ndarray, what: str, names: tuple[str, str]) -> None:
    r"""Values of two models as points, and the line on which both are equal."""
    size, alpha = (8, 0.5) if len(x) > 300 else (16, 0.6)
    ends = (min(x.min(), y.min()), max(x.max(), y.max()))
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":", label=f"equal {what}s")
    axes.scatter(x, y, s=size, color=COLOURS[0], alpha=alpha, linewidths=0)
    axes.set(xlabel=f"{what} by {names[0]}", ylabel=f"{what} by {names[1]}")
    axes.legend(loc="upper left")


def image_sheet(saved: Saved, ax: Axes, rows: np.ndarray, title: str, what: str) -> str:
    r"""Images (n, …) in a grid, white is 0 and black 1; features have either sign, grey is 0."""
    if not saved.content.get("image"):
        raise MissingDataError("saved", "a result without images", "one of images")
    height, width = saved.content["image"]
    images = rows[:36].reshape(len(rows[:36]), height, width).astype(float)
    across = math.ceil(math.sqrt(len(images)))
    down = math.ceil(len(images) / across)
    lowest, scale = 0, ""
    if what == "features":
        largest = np.abs(images).max((1, 2), keepdims=True)
        images /= np.where(largest > 0, largest, 1)
        lowest, scale = -1, ", each scaled to its largest value, zero in grey"
    missing = down * across - len(images)
    cells = np.pad(images, ((0, missing), (0, 1), (0, 1)), constant_values=np.nan)  # lines between
    sheet = cells.reshape(down, across, height + 1, width + 1).swapaxes(1, 2)
    sheet = sheet.reshape(down * (height + 1), -1)[:-1, :-1]
    from matplotlib import colormaps

    fit(ax, 3.4, 0.3 + 3.4 * height * down / (width * across))
    greys = colormaps["gray_r"].with_extremes(bad=LINES)
    ax.imshow(sheet, cmap=greys, vmin=lowest, vmax=1, interpolation="nearest")
    ax.set_axis_off()
    ax.set_title(title)
    size = f"{height} by {width} pixels"
    return f"{title}: {len(images)} {what} of {size} in a grid{scale}."


def inline(figure: Figure | SubFigure, alt: str) -> str:
    r"""A figure as an SVG element in a page's colours and font; its ids are those of no other."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a class called $x$ is not mathematics
    file = io.StringIO()
    metadata = {"Date": None}
    with load_matplotlib().rc_context(STYLE):
        figure.savefig(file, format="svg", metadata=metadata, transparent=True, dpi=110)  # type: ignore[union-attr]
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    unused = r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>|<!--.*?-->"
    svg = re.sub(unused, "", svg, flags=re.DOTALL)
    colour = r"(?<=[: \"])#[0-9a-fA-F]{6}\b"
    svg = re.sub(colour, lambda match: PAGE.get(match[0].lower(), match[0]), svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", svg)
    prefix = f"p{zlib.crc32((svg + alt).encode(errors='replace')):x}"
    svg = re.sub(r"(\bid=\"|url\(#|href=\"#)", rf"\g<1>{prefix}-", svg)
    width, height = (72 * float(inches) for inches in figure.get_size_inches())  # type: ignore[union-attr]
    body = re.sub(r"\n\s*", "\n", svg[svg.index(">") + 1 :]).strip()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{prefix}-alt" '
        f'style="max-width:{4 / 3 * width:.0f}px"><title id="{prefix}-alt">'  # pixels of points
        f"{html.escape(shown(alt), quote=True)}</title>{body}"
    )
