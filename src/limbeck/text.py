r"""Text for people: comparisons in words, and names that every format shows as they are."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_LENGTH = 2000  # characters of one cell or paragraph
# characters that steer a terminal, turn the direction of a line, or have no UTF-8
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def listed(numbers: Sequence[object], most: int = 8) -> str:
    r"""The first few numbers as text, and how many there are."""
    more = f", … ({len(numbers)} in all)" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def compared(
    teacher: float | None, student: float | None, less: str, more: str, same: str, times: str = "×"
) -> str:
    r"""The ratio of the teacher's cost to the student's as text; "" if it is unknown.

    >>> compared(6.1, 0.1, "faster", "slower", "as fast"), compared(1, 2, "less", "more", "same")
    ('61× faster', '2.0× more')
    """
    if not teacher or not student:
        return ""
    ratio = teacher / student
    if 1 / 1.05 < ratio < 1.05:
        return same
    factor = max(ratio, 1 / ratio)
    digits = ",.0f" if factor >= 9.95 else ".1f"
    return f"{factor:{digits}}{times} {less if ratio > 1 else more}"


def visible(text: object) -> str:
    r"""Text with its control characters as escapes, which JSON reads too; lines and tabs stay.

    >>> print(visible("red: \x1b[31m"))
    red: \u001b[31m
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))


def shown(text: object) -> str:
    r"""One cell or paragraph: `visible`, and cut if it is very long."""
    text = str(text)
    return visible(text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…")


def markdown(text: object) -> str:
    r"""One line of Markdown that shows a text as it is: no markup, HTML, links, cells or lists.

    Characters that only some dialects can escape are entities, which all of them know.

    >>> print(markdown("<b> a|b *c* [d](e)"))
    &lt;b&gt; a&#124;b \*c\* \[d\](e)
    """
    line = html.escape(" ".join(shown(text).split()), quote=False)
    line = re.sub(r"[\\`*_\[\]]", r"\\\g<0>", line)
    line = re.sub(r"^(\d+)(?=[.)](\s|$))", r"\1\\", line)
    special = r"[|{}~$]|:(?=//)|(?<=www)\.|^#|^[+:!?=-](?=[#+:!?=-]*(\s|$))"
    return re.sub(special, lambda match: f"&#{ord(match[0])};", line, flags=re.IGNORECASE)


def markdown_code(text: object) -> str:
    r"""A name as code in a line of Markdown; as `markdown` where code could not hold it."""
    line = " ".join(shown(text).split())
    return markdown(line) if re.search(r"[`<>&|\\]", line) or not line else f"`{line}`"


def markdown_block(text: str, language: str = "") -> str:
    r"""Lines of code in Markdown, between fences that they cannot close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def markdown_table(
    heading: Iterable[object], rows: Iterable[Iterable[object]], ruler: Iterable[str] = ()
) -> str:
    r"""A table in Markdown; `ruler` aligns its columns, by default to the left."""
    head = list(map(markdown, heading))
    lines = [head, list(ruler) or ["---"] * len(head), *(map(markdown, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class PlainTable(Table):
    r"""A table for terminals whose cells are shown as they are: rich's markup is text in it.

    Columns are aligned to the left but for those named in `right`.
    """

    def __init__(self, *headers: str, right: Collection[str] = (), **options: Any) -> None:
        super().__init__(title_justify="left", **options)
        for header in headers:
            justify = "right" if header in right else "left"
            self.add_column(header, justify=justify, overflow="fold")

    def add_column(self, header: object = "", *args: Any, **options: Any) -> None:
        super().add_column(Text(shown(header)), *args, **options)

    def add_row(self, *cells: object, **options: Any) -> None:
        super().add_row(*(Text(shown(cell)) for cell in cells), **options)


def table_text(*tables: Table) -> str:
    r"""Tables as plain text, 100 characters wide."""
    console = Console(width=100, file=io.StringIO(), record=True, markup=False, emoji=False)
    for table in tables:
        console.print(table)
    return visible(console.export_text())
