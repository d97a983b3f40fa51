r"""Pictures of a report: what can be drawn of a result is drawn, and numbered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limbeck.report.blocks import Gallery, Picture
from limbeck.report.canvas import load_matplotlib
from limbeck.report.svg import inline, pixels
from limbeck.results.folder import Saved

__all__ = ["Drawing"]


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
