r"""The report on a saved result: report.html, the same as Markdown, and its numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from limbeck.arguments import PathLike, UserObject, checked_arguments
from limbeck.compression.fidelity.tables import size_in_words
from limbeck.errors import ArgumentError
from limbeck.report import blocks, pictures
from limbeck.report.blocks import Block, Code, Document, TableBlock, gallery, value
from limbeck.report.fidelity_plots import columns_together
from limbeck.report.records import REPORTS
from limbeck.storage import Saved, folders, read
from limbeck.storage.files import plain
from limbeck.text import visible


@checked_arguments
def write(folder: PathLike) -> Path:
    r"""Write report.html, report.json and report.md into a result folder; the path of the first.

    Arguments:
        folder: A result folder, written by a command or by `limbeck.storage.write`.
    """
    folder, report = Path(folder), document(read(folder))
    numbers = {
        "format": "limbeck-report-1", "title": report.title, "results": [report.to_record()]
    }  # fmt: skip
    record = visible(json.dumps(numbers, indent=1, ensure_ascii=False)) + "\n"
    texts = {"report.json": record, "report.md": blocks.markdown(report)}
    texts["report.html"] = blocks.html(report)
    content = {name: text.encode() for name, text in texts.items()}
    return folders.write(folder, "report", content, keep=None) / "report.html"


def document(saved: UserObject[Saved]) -> Document:
    r"""The report on a saved result."""
    original, saved = saved.content, Saved(plain(saved.content, visible), saved.arrays)
    content, notes = saved.content, list(saved.content["notes"])
    if not blocks.can_draw():
        notes.append("Pictures are left out: they need matplotlib (pip install 'limbeck[report]').")
    try:
        stats, sections = REPORTS[content["verb"]][1](saved)
        rows = []
        for model in content["models"]:
            size = "unknown" if model["role"] == "teacher" else "–"
            size = size_in_words(model["bytes"]) if model.get("bytes") else size
            rows.append([model["role"], str(model["name"]), value(model.get("parameters")), size])
        heads = ["role", "model", "parameters", "bytes"]
        models = TableBlock("What was distilled", heads, rows, sortable=False, words=(0, 1))
        history = content["history"]  # columns on scales of their own have pictures of their own
        groups = columns_together(history)[:3] if len(history.get("step") or ()) > 1 else []
        names = [group[0] if len(groups) > 1 else None for group in groups]
        draws = [partial(pictures.learning, name=name) for name in names]
        curves = gallery(saved, "Learning curves", *draws)
        if curves:
            curves.append("If a curve still falls at its end, more steps would help.")
        sections = {
            "Verdicts": [content["verdicts"]] if content["verdicts"] else [],
            "What was distilled": [models] if rows else [],
            **sections,
            "How it learned": curves,
            "Notes": list(map(str, notes)),
            **_circumstances(content),
        }
    except (LookupError, TypeError, AttributeError, ArgumentError) as error:
        received = f"a result of {content['verb']} with missing content ({error!r})"
        raise ArgumentError("folder", received, "one that limbeck wrote") from error
    title = content["title"] or f"A result of limbeck {content['verb']}"
    return Document(original, title, stats, sections)


def _circumstances(content: Mapping[str, Any]) -> dict[str, list[Block]]:
    r"""Settings, hardware and versions, and the command that repeats the run."""
    settings = [[str(n).replace("_", " "), value(v)] for n, v in content["settings"].items()]
    rows = [[str(name), value(item)] for name, item in content["circumstances"].items()]
    for name, text in {"seed": "{}", "seconds": "{:,.1f}"}.items():
        rows += [[name, text.format(content[name])]] if content[name] is not None else []
    options = TableBlock("Settings", ["setting", "value"], settings, words=(0, 1))
    versions = TableBlock("Circumstances", ["what", "value"], rows, sortable=False, words=(0, 1))
    return {
        "Settings": [options] if settings else [],
        "Hardware, versions, seed": [versions] if rows else [],
        "Repeat it": [Code(content["command"])] if content["command"] else [],
    }
