r"""A report as Markdown: the same words and tables; pictures by what they show."""

from __future__ import annotations

import re

from limbeck.report.blocks import Block, Code, Document, Gallery, Prose, TableBlock, Verdicts

__all__ = ["markdown"]

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|])")


def markdown(
    documents: list[Document],
    title: str,
    *,
    findings: list[str] | None = None,
    commands: list[str] | None = None,
) -> str:
    r"""The report as text; see `limbeck.report.html.render`."""
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
