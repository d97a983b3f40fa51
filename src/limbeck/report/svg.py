r"""Pictures inside a page: SVG with names of their own, colours that follow the page, and words.

Colours of the shared look become the page's own (`var(--c0)`, …), so that one picture serves light
and dark. Names inside a picture get a prefix, since a page has one space of names for all.
"""

from __future__ import annotations

import base64
import html
import io
import re
from typing import Any

import numpy as np

from limbeck.report.canvas import COLOURS, INK, LINES, MUTED, load_matplotlib

__all__ = ["inline", "pixels"]

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
