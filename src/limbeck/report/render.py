r"""Blocks as HTML and as Markdown."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from limbeck.errors import LimbeckError
from limbeck.report.blocks import Block, Code, Document, Gallery, Prose, TableBlock, Verdicts

__all__ = ["markdown", "render", "sort_value"]

TEMPLATE = Path(__file__).parent / "template"

NUMBER = re.compile(
    r"([+\-−]?)(\d[\d,]*\.?\d*(?:e[+\-]?\d+)?)\s*(%|×|kB|MB|GB|µs|ms|s|bytes)?(?=$|[ …±])"
)
r"""A sign, a number, and perhaps its unit."""

HYPHEN = re.compile(r"(?<![\w.)\]\-])-(?=\.?\d)")
r"""The hyphen in front of a negative number, and not that of a date, an exponent or an option."""

COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "µs": 1e-6, "ms": 1e-3}


def sort_value(cell: str) -> float | None:
    r"""The number that a cell begins with, by which a column is sorted; None of words.

    >>> sort_value("97.7 ± 0.4%"), sort_value("1,234"), sort_value("12 kB"), sort_value("munge")
    (97.7, 1234.0, 12000.0, None)
    """
    found = NUMBER.match(cell.strip())
    if found is None:
        return None
    sign = -1.0 if found[1] in ("-", "−") else 1.0
    return sign * float(found[2].replace(",", "")) * UNITS.get(found[3] or "", 1.0)


def minus(text: str) -> str:
    r"""A text whose negative numbers have a minus sign, as pictures have it.

    >>> minus("-0.5 ± 0.1, on 2026-11-16, eps=1e-08")
    '−0.5 ± 0.1, on 2026-11-16, eps=1e-08'
    """
    return HYPHEN.sub("−", text)


def counted(number: int) -> str:
    r"""A number at the beginning of a heading: in words, if it is small.

    >>> counted(3), counted(12)
    ('Three', '12')
    """
    return COUNTS[number].capitalize() if number < len(COUNTS) else str(number)


def render(
    documents: list[Document],
    title: str,
    *,
    findings: list[str] | None = None,
    commands: list[str] | None = None,
) -> str:
    r"""The page.

    Arguments:
        documents: What there is to tell; one, or with findings several.
        title: The page's heading.
        findings: What a page on several results opens with.
        commands: What to try next, a line each.
    """
    import limbeck

    try:
        import jinja2
    except ImportError:
        raise LimbeckError(
            "reports need jinja2, which is not installed: pip install 'limbeck[report]'"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.globals |= {
        "sort_value": sort_value, "about": about, "counted": counted,
        "words": partial(re.split, r"(\s+)"),
    }  # fmt: skip
    environment.filters["minus"] = minus
    verbs = documents[0].verb if findings is None else "report"
    return environment.get_template("page.html").render(
        documents=documents, title=title, findings=findings, commands=commands or [],
        version=limbeck.__version__, eyebrow=verbs,
    )  # fmt: skip


def about(document: Document, alone: bool = True) -> str:
    r"""The line above the title: when, on what; of a result alone, with its seed and time."""
    content: dict[str, Any] = document.content
    found = content.get("circumstances") or {}
    parts = [str(found[name]) for name in ("date", "hardware") if found.get(name)]
    if alone and content.get("seed") is not None:
        parts.append(f"seed {content['seed']}")
    if alone and content.get("seconds") is not None:
        parts.append(f"{content['seconds']:,.1f} s")
    return " · ".join(parts)


SPECIAL = re.compile(r"([\\`*_{}\[\]<>|])")


def markdown(
    documents: list[Document],
    title: str,
    *,
    findings: list[str] | None = None,
    commands: list[str] | None = None,
) -> str:
    r"""The report as text; see `limbeck.report.render.render`."""
    lines = [f"# {_plain(title)}", ""]
    if findings is None:
        return "\n".join([*lines, *_told(documents[0], 2)]).rstrip() + "\n"
    lines += [f"{place}. {_plain(each)}" for place, each in enumerate(findings, 1)]
    if commands:
        lines += ["", "To try next:", "", *_lines(Code("\n".join(commands)), 2)]
    for document in documents:
        lines += ["", f"## {_plain(document.title)} ({document.verb})", "", *_told(document, 3)]
    return "\n".join(lines).rstrip() + "\n"


def _told(document: Document, level: int) -> list[str]:
    lines = [_plain(document.summary), ""]
    lines += [f"- **{_plain(each.value)}** {_plain(each.label)}" for each in document.stats]
    for section in document.sections:
        if section.blocks:
            lines += ["", f"{'#' * level} {_plain(section.title)}", ""]
            for block in section.blocks:
                told = _lines(block, level)
                again = isinstance(block, TableBlock) and block.title == section.title
                lines += [*(told[2:] if again else told), ""]
    return lines


def _lines(block: Block, level: int) -> list[str]:
    if isinstance(block, Prose):
        return [_plain(block.text)]
    if isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        return [fence, block.text, fence]
    if isinstance(block, Verdicts):
        return [
            f"- {'✓' if each['held'] else '✗'} **{_plain(each['name'])}**: {_plain(each['words'])}"
            for each in block.entries
        ]
    if isinstance(block, Gallery):
        said = [f"- *Picture:* {_plain(each.alt)}" for each in block.pictures]
        return [f"{'#' * (level + 1)} {_plain(block.title)}", "", *said]
    return _table(block)


def _table(block: TableBlock) -> list[str]:
    rows = [f"| {' | '.join(map(_plain, row))} |" for row in block.rows]
    ruler = [":--" if place in block.words else "--:" for place in range(len(block.columns))]
    head = f"| {' | '.join(map(_plain, block.columns))} |"
    note = ["", _plain(block.note)] if block.note else []
    return [f"**{_plain(block.title)}**", "", head, f"| {' | '.join(ruler)} |", *rows, *note]


def _plain(text: object) -> str:
    r"""Words that mean themselves."""
    return SPECIAL.sub(r"\\\1", " ".join(str(text).split()))
