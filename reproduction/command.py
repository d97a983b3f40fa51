r"""The command `python -m reproduction`: which chapters there are, and which options each takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from limbeck.errors import ArgumentError
from reproduction.data import folder_of
from reproduction.record import Asked

__all__ = ["CHAPTERS", "reproduce"]


def _chapter2(options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    from reproduction import chapter2, chapter2_output

    if "cells" in options:
        options["cells"] = chapter2.chosen(options["cells"])
    return chapter2_output.report, chapter2.Settings(**options)


def _chapter3(options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    from reproduction import chapter3, chapter3_output

    if "seeds" in options:
        options["data_sets"] = len(options.pop("seeds"))
    if "parts" in options:
        options["parts"] = tuple(options["parts"])
    return chapter3_output.report, chapter3.Settings(**options)


def _chapter4(options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    from reproduction import chapter4, output

    if "hidden" in options:
        options["hidden"] = tuple(options["hidden"])
    return output.report, chapter4.Settings(**options)


CHAPTERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "chapter-2": (_chapter2, ("seeds", "cells", "steps_factor", "init")),
    "chapter-3": (_chapter3, ("seeds", "parts")),
    "chapter-4": (_chapter4, ("seeds", "hidden", "steps", "samples", "burn_in")),
}
r"""By name: what makes the chapter's report and settings of options, and the options it takes."""

WITHOUT_DATA = ("chapter-3",)
r"""Chapters that make their data themselves."""


def reproduce(chapter: str, asked: Asked, **options: Any) -> Any:
    r"""Run a chapter and report on it.

    Arguments:
        chapter: One of `CHAPTERS`.
        asked: Data, results, device.
        options: The chapter's own; those that are None stay as the chapter has them.
    """
    if chapter not in CHAPTERS:
        raise ArgumentError.unknown("chapter", chapter, CHAPTERS)
    prepare, taken = CHAPTERS[chapter]
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in taken:
            expected = f"no such option for {chapter}, which takes {', '.join(taken)}"
            raise ArgumentError(name, value, expected)
    if "seeds" in given:
        given["seeds"] = tuple(range(given["seeds"]))
    report, settings = prepare(given)
    if chapter not in WITHOUT_DATA:
        folder_of(asked.folder)
    asked.out.mkdir(parents=True, exist_ok=True)
    return report(asked, settings, Console())
