r"""The blocks of a report, and how they are written as HTML, Markdown and JSON."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import limbeck
from limbeck.environment import import_extra
from limbeck.report.canvas import MissingDataError, inline
from limbeck.storage import Saved
from limbeck.text import markdown as escape
from limbeck.text import markdown_block, markdown_table, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Verdict = dict[str, Any]  # the outcome of a check: name, held (whether it passed), words


@dataclass
class Code:
    r"""Lines to copy."""

    text: str
    kind: str = "code"


@dataclass
class TableBlock:
    r"""A table; `words` are the text columns, which are left-aligned."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    sortable: bool = True
    note: str = ""
    words: tuple[int, ...] = (0,)
    kind: str = "table"


@dataclass
class Picture:
    r"""A picture as SVG, with a description; a `plate` keeps a white background for an image."""

    svg: str
    alt: str
    plate: bool


@dataclass
class Gallery:
    r"""Pictures side by side."""

    title: str
    pictures: list[Picture]
    kind: str = "gallery"


Block = str | list[Verdict] | Code | TableBlock | Gallery  # a string is a paragraph


@dataclass
class Stat:
    r"""A number at the top of a report."""

    value: str
    label: str


Report = tuple[list[Stat], dict[str, list[Block]]]  # what stands on top, and sections by title


@dataclass
class Document:
    r"""A report on one result; sections are named, and left out if they have no blocks."""

    content: dict[str, Any]
    title: str
    stats: list[Stat]
    sections: dict[str, list[Block]]

    @property
    def failed(self) -> list[Verdict]:
        r"""The verdicts that do not hold."""
        return [verdict for verdict in self.content["verdicts"] if not verdict["held"]]

    def to_record(self) -> dict[str, Any]:
        r"""The report for programs: the result, the tables as shown, descriptions of pictures."""
        blocks = list(chain.from_iterable(self.sections.values()))
        tables = [block for block in blocks if isinstance(block, TableBlock)]
        galleries = [block for block in blocks if isinstance(block, Gallery)]
        return self.content | {
            "headline": [{"value": stat.value, "label": stat.label} for stat in self.stats],
            "tables": [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in tables],
            "pictures": [picture.alt for gallery in galleries for picture in gallery.pictures],
        }


def can_draw() -> bool:
    r"""Whether matplotlib is there; without it, reports have no pictures."""
    return importlib.util.find_spec("matplotlib") is not None


def gallery(saved: Saved, title: str, *draws: Callable[[Saved], Axes]) -> list[Block]:
    r"""The pictures that functions of `limbeck.report.pictures` draw; [] if there are none."""
    pictures = []
    for draw in draws if can_draw() else ():
        with suppress(MissingDataError):
            axes = draw(saved)
            alt, plate = str(axes.get_label()), bool(axes.get_images())
            pictures.append(Picture(inline(axes.figure, alt), alt, plate))
    return [Gallery(title, pictures)] if pictures else []


def from_rich(table: Table, *, sortable: bool = False) -> TableBlock:
    r"""A rich table as a block."""
    heads = [str(column.header) for column in table.columns]
    cells = zip(*(column.cells for column in table.columns), strict=True)
    rows = [list(map(str, row)) for row in cells]
    words = tuple(k for k, column in enumerate(table.columns) if column.justify == "left")
    title, note = str(table.title or ""), str(table.caption or "")
    return TableBlock(title, heads, rows, sortable, note, words or (0,))


def value(setting: object) -> str:
    r"""A setting as text.

    >>> value(12345), value(0.001), value(True), value(["a", "b"]), value(None)
    ('12,345', '0.001', 'yes', 'a, b', '–')
    """
    if setting is None:
        return "–"
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    if isinstance(setting, int):
        return f"{setting:,}"
    if isinstance(setting, float):
        return f"{setting:,.0f}" if abs(setting) >= 1000 else f"{setting:.4g}"
    if isinstance(setting, Mapping):
        return ", ".join(f"{name}: {value(item)}" for name, item in setting.items())
    if isinstance(setting, list | tuple):
        return ", ".join(map(value, setting))
    return str(setting)


def ratio(comparison: str, where: str) -> Stat:
    r"""A comparison such as "12× faster", with its number first.

    >>> ratio("12× faster", "at batch 1")
    Stat(value='12×', label='faster at batch 1')
    """
    times, _, way = comparison.partition(" ")
    return Stat(times, f"{way} {where}") if "×" in times else Stat(comparison, where)


def sort_value(cell: str) -> float | None:
    r"""The number that a cell begins with, by which a column is sorted; None for text."""
    number = re.match(
        r"([+\-−]?)(\d[\d,]*\.?\d*(?:e[+\-]?\d+)?)\s*(%|×|kB|MB|GB|µs|ms|s|bytes)?(?=$|[ …±])",
        cell.strip(),
    )
    if number is None:
        return None
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "µs": 1e-6, "ms": 1e-3}
    sign = -1.0 if number[1] in ("-", "−") else 1.0
    return sign * float(number[2].replace(",", "")) * units.get(number[3] or "", 1.0)


def minus(text: str) -> str:
    r"""A text whose negative numbers have a minus sign, as in pictures; dates have none."""
    return re.sub(r"(?<![\w.)\]\-])-(?=\.?\d)", "−", text)


def about(document: Document) -> str:
    r"""The line above the title: date, hardware, seed and time."""
    content = document.content
    environment = content["circumstances"]
    parts = [str(environment[n]) for n in ("date", "hardware") if environment.get(n)]
    texts = {"seed": "seed {}", "seconds": "{:,.1f} s"}
    parts += [text.format(content[n]) for n, text in texts.items() if content[n] is not None]
    return " · ".join(parts)


def html(document: Document) -> str:
    r"""The report as HTML."""
    options = {"sort_value": sort_value, "about": about, "words": partial(re.split, r"(\s+)")}
    return _rendered("page.html", document, shown, version=limbeck.__version__, **options)


def markdown(document: Document) -> str:
    r"""The report as Markdown."""

    def table(block: TableBlock) -> str:
        ruler = [":--" if k in block.words else "--:" for k in range(len(block.columns))]
        return markdown_table(block.columns, block.rows, ruler)

    return _rendered("page.md", document, escape, table=table, code=markdown_block).rstrip() + "\n"


def _rendered(
    name: str, document: Document, as_text: Callable[[object], str], **values: object
) -> str:  # fmt: skip
    r"""A template with the content of a report, in which `as_text` writes what is not markup."""
    jinja2 = import_extra("jinja2", "report", "reports need")
    is_html = name.endswith(".html")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "template"), autoescape=is_html,
        undefined=jinja2.StrictUndefined, trim_blocks=not is_html,
        finalize=lambda value: value if hasattr(value, "__html__") else as_text(value),
    )  # fmt: skip
    environment.filters["minus"] = minus
    return str(environment.get_template(name).render(document=document, **values))
