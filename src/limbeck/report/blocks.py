r"""What a report is made of: sections of prose, figures, tables, pictures and verdicts.

A report is put together once, of these, and then written as HTML, Markdown and JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Block",
    "Code",
    "Document",
    "Gallery",
    "Picture",
    "Prose",
    "Section",
    "Stat",
    "TableBlock",
    "Verdicts",
    "from_rich",
]


@dataclass
class Prose:
    r"""A paragraph."""

    text: str
    kind: str = "prose"


@dataclass
class Code:
    r"""Lines to copy."""

    text: str
    kind: str = "code"


@dataclass
class TableBlock:
    r"""A table.

    Attributes:
        title: What it shows.
        columns: Headings.
        rows: Cells as they are read.
        sortable: Whether its rows can be put in another order with sense.
        note: What is said below it.
        words: Columns that hold words, and stand to the left; the first always does.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    sortable: bool = True
    note: str = ""
    words: tuple[int, ...] = (0,)
    kind: str = "table"


@dataclass
class Picture:
    r"""A picture as SVG, with what it shows in words."""

    title: str
    svg: str
    alt: str
    plate: bool = False
    kind: str = "picture"


@dataclass
class Gallery:
    r"""Pictures side by side."""

    title: str
    pictures: list[Picture]
    small: bool = False
    note: str = ""
    kind: str = "gallery"


@dataclass
class Verdicts:
    r"""Verdicts: name, held, words."""

    entries: list[dict[str, Any]]
    kind: str = "verdicts"


Block = Prose | Code | TableBlock | Gallery | Verdicts


@dataclass
class Section:
    r"""A part of a report under a heading; without blocks it is left out."""

    title: str
    blocks: list[Block]


@dataclass
class Stat:
    r"""A figure that is seen first."""

    value: str
    label: str
    error: str = ""


@dataclass
class Document:
    r"""A report on one result."""

    verb: str
    title: str
    summary: str
    stats: list[Stat] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[dict[str, Any]]:
        r"""The verdicts that did not hold."""
        return [each for each in self.verdicts if not each["held"]]

    @property
    def blocks(self) -> list[Block]:
        r"""All blocks, in order."""
        return [block for section in self.sections for block in section.blocks]


def from_rich(table: Any, *, sortable: bool = False) -> TableBlock:
    r"""One of rich's tables as a block."""
    columns = list(table.columns)
    cells = [[str(cell) for cell in column.cells] for column in columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    words = tuple(place for place, column in enumerate(columns) if column.justify == "left")
    return TableBlock(
        str(table.title or ""),
        [str(column.header) for column in columns],
        rows,
        sortable,
        str(table.caption or ""),
        words or (0,),
    )
