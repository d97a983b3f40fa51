r"""The report on a saved result: one page, the same as Markdown, and its numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError, LimbeckError
from limbeck.report import sections_compress, sections_condense, sections_generative
from limbeck.report.blocks import Document, Gallery, TableBlock
from limbeck.report.drawing import Drawing
from limbeck.report.render import markdown, render
from limbeck.report.sections import checks, closing, distilled, learned, notes_of
from limbeck.storage import files
from limbeck.storage.folder import Saved, read

__all__ = ["document", "write", "write_tour"]

FORMAT = "limbeck-report-1"

VERBS: dict[str, Any] = {
    "compress": sections_compress,
    "condense": sections_condense,
    "normalize": sections_generative,
    "logz": sections_generative,
}

MISSING = "Pictures are left out: they need matplotlib (pip install 'limbeck[report]')."


def write(folder: str | Path) -> Path:
    r"""Write report.html, report.json and report.md into a result folder.

    Arguments:
        folder: A result folder, as limbeck's commands and `limbeck.storage.write` leave it.

    Returns:
        Where the page is.
    """
    found = document(read(folder), "p")
    return _written(Path(folder), [found], found.title)


def write_tour(
    folders: Sequence[str | Path],
    out: str | Path,
    findings: Sequence[str],
    *,
    title: str = "A tour of limbeck",
    commands: Sequence[str] = (),
) -> Path:
    r"""Write one report on several results, which opens with what was found.

    Arguments:
        folders: Result folders, in the order in which they are told.
        out: The folder to write report.html, report.json and report.md to.
        findings: What was found, a sentence or two each.
        title: The page's heading.
        commands: What to try next, a line each.
    """
    if isinstance(folders, str | Path) or not folders:
        raise ArgumentError("folders", repr(folders), "one or more result folders, in a list")
    if isinstance(findings, str) or not findings:
        raise ArgumentError("findings", repr(findings), "one or more sentences, in a list")
    if Path(out).is_file():
        raise ArgumentError("out", f"{out}, a file", "a folder, new or there already")
    found = [document(read(each), f"p{place}-") for place, each in enumerate(folders, 1)]
    return _written(Path(out), found, title, list(map(str, findings)), list(map(str, commands)))


def document(saved: Saved, prefix: str = "p") -> Document:
    r"""A saved result as a report, before it is written in one way or another."""
    content = saved.content
    drawing, notes = _drawing(saved, prefix)
    verb = VERBS[content["verb"]]
    try:
        sections = [
            checks(content),
            distilled(content),
            *verb.sections(drawing),
            learned(drawing),
            notes_of({"notes": [*content["notes"], *notes]}),
            *closing(content),
        ]
        stats = verb.stats(content)
    except (LookupError, TypeError, AttributeError) as error:
        received = f"a result of {content['verb']} that lacks something ({error!r})"
        raise ArgumentError("folder", received, "one that limbeck wrote") from error
    title = content["title"] or f"A result of limbeck {content['verb']}"
    return Document(
        content["verb"], title, content["summary"], stats, sections, content["verdicts"], content
    )


def _drawing(saved: Saved, prefix: str) -> tuple[Drawing, list[str]]:
    try:
        return Drawing(saved, prefix), []
    except LimbeckError:
        return Drawing(saved, prefix, pictures=False), [MISSING]


def _written(
    folder: Path,
    documents: list[Document],
    title: str,
    findings: list[str] | None = None,
    commands: list[str] | None = None,
) -> Path:
    told: dict[str, Any] = {"findings": findings, "commands": commands}
    page = render(documents, title, **told)
    text = markdown(documents, title, **told)
    numbers = {"format": FORMAT, "title": title, **told, "results": list(map(_numbers, documents))}
    whole = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
    files.write_text(folder / "report.json", whole)
    files.write_text(folder / "report.md", text)
    files.write_text(folder / "report.html", page)
    return folder / "report.html"


def _numbers(found: Document) -> dict[str, Any]:
    r"""A report for programs: the result, its tables as they are read, pictures in words."""
    tables = [block for block in found.blocks if isinstance(block, TableBlock)]
    galleries = [block for block in found.blocks if isinstance(block, Gallery)]
    return {
        **found.content,
        "headline": [{"value": each.value, "label": each.label} for each in found.stats],
        "tables": [
            {"title": each.title, "columns": each.columns, "rows": each.rows} for each in tables
        ],
        "pictures": [each.alt for gallery in galleries for each in gallery.pictures],
    }
