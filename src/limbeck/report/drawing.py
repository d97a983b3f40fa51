r"""Pictures on a page: as SVG, with the data beside it."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from limbeck.report.blocks import Gallery, Picture
from limbeck.report.canvas import COLOURS, INK, LINES, MUTED, load_matplotlib
from limbeck.storage.folder import Saved

__all__ = ["Drawing", "inline", "pixels"]

GRID = "#e6e6e6"

PAGE = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    LINES: "var(--rule)",
    GRID: "var(--grid)",
    "#ffffff": "var(--paper)",
} | {colour.lower(): f"var(--c{place})" for place, colour in enumerate(COLOURS)}
r"""The page's name for each colour of the shared look."""

FONT = re.compile(r"'DejaVu Sans'[^;\"]*")
COLOUR = re.compile(r"(?<=[: \"])#[0-9a-fA-F]{6}\b")
NAMES = re.compile(r"(\bid=\"|url\(#|href=\"#)")
POINTS = 4 / 3
r"""Pixels a point."""


def inline(figure: Any, alt: str, prefix: str) -> str:
    r"""A figure of matplotlib's as SVG to stand in a page.

    Arguments:
        figure: The figure.
        alt: What it shows, in words.
        prefix: What names inside it begin with; no other picture of the page may have the same.
    """
    from matplotlib.text import Text

    matplotlib = load_matplotlib()
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a class called $x$ is not mathematics
    written = io.StringIO()
    look = {"svg.fonttype": "none", "svg.hashsalt": "limbeck", "image.composite_image": True}
    with matplotlib.rc_context(look):
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True, dpi=110)
    whole = written.getvalue()
    inner = whole[whole.index("<svg") :]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    inner = re.sub(r"<style type=\"text/css\">.*?</style>", "", inner, flags=re.DOTALL)
    inner = re.sub(r"<!--.*?-->", "", inner, flags=re.DOTALL)
    inner = COLOUR.sub(lambda found: PAGE.get(found[0].lower(), found[0]), inner)
    inner = FONT.sub("inherit", inner)
    inner = NAMES.sub(lambda found: f"{found[1]}{prefix}-", inner)
    width, height = (float(each) * 72 for each in figure.get_size_inches())
    body = inner[inner.index(">") + 1 :]
    view = f"0 0 {width:g} {height:g}"
    return _opened(prefix, alt, view, POINTS * width) + re.sub(r"\n\s*", "\n", body).strip()


def pixels(image: np.ndarray, alt: str, prefix: str) -> str:
    r"""A picture (height, width) of numbers, each as a square: white the least, black the most."""
    load_matplotlib()
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, np.asarray(image, dtype=float), cmap="gray_r", format="png")
    data = base64.b64encode(file.getvalue()).decode()
    height, width = image.shape
    return (
        f"{_opened(prefix, alt, f'0 0 {width} {height}', 96)}"
        f'<image width="{width}" height="{height}" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/></svg>'
    )


def _opened(prefix: str, alt: str, view: str, width: float) -> str:
    said = html.escape(alt, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view}" role="img" aria-labelledby="{prefix}-alt" '
        f'style="max-width:{width:.0f}px"><title id="{prefix}-alt">{said}</title>'
    )


class Drawing:
    r"""Makes the pictures of one report, each with names of its own.

    Arguments:
        saved: The result.
        prefix: What the names inside its pictures begin with.
        pictures: Whether to draw at all, such as without matplotlib.
    """

    def __init__(self, saved: Saved, prefix: str, pictures: bool = True) -> None:
        self.saved, self.prefix, self.pictures = saved, prefix, pictures
        self.count = 0
        if pictures:
            load_matplotlib()

    def next(self) -> str:
        r"""A name that no picture has had."""
        self.count += 1
        return f"{self.prefix}{self.count}"

    def picture(
        self, title: str, draw: Callable[..., Any], plate: bool = False, **options: Any
    ) -> Picture:
        r"""What a function of the saved result draws."""
        axes = draw(self.saved, **options)
        alt = axes.get_label()
        return Picture(title, inline(axes.figure, alt, self.next()), alt, plate)

    def gallery(self, title: str, *drawn: Picture, note: str = "") -> list[Gallery]:
        r"""Pictures side by side, if there are any."""
        return [Gallery(title, list(drawn), note=note)] if drawn else []

    def image(self, pixel: np.ndarray, title: str, alt: str) -> Picture:
        r"""A small image."""
        return Picture(title, pixels(pixel, alt, self.next()), alt, True)
