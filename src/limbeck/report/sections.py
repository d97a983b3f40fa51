r"""What every report has: verdicts, learning, settings, circumstances, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limbeck.compression.fidelity import tables as wording
from limbeck.report import pictures
from limbeck.report.blocks import Block, Code, Prose, Section, Stat, TableBlock, Verdicts
from limbeck.report.drawing import Drawing
from limbeck.report.pictures_compression import ASIDE

__all__ = ["checks", "closing", "distilled", "learned", "notes_of", "ratio", "value"]

MADE = {
    "task": "Task:",
    "student": "student:",
    "asked at": "asked at:",
    "loss": "loss:",
    "steps done": "steps:",
    "stopped": "stopped:",
}
r"""Settings that say how a student was made."""

NAMED = {
    "hardware": "hardware",
    "device": "device",
    "limbeck": "limbeck",
    "torch": "PyTorch",
    "python": "Python",
    "date": "date",
}


def value(given: Any) -> str:
    r"""A setting as it is read.

    >>> value(12345), value(0.001), value(True), value(["a", "b"]), value(None)
    ('12,345', '0.001', 'yes', 'a, b', '–')
    """
    if given is None:
        return "–"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, int):
        return f"{given:,}"
    if isinstance(given, float):
        return f"{given:,.0f}" if abs(given) >= 1000 else f"{given:.4g}"
    if isinstance(given, Mapping):
        return ", ".join(f"{name}: {value(each)}" for name, each in given.items())
    if isinstance(given, list | tuple):
        return ", ".join(map(value, given))
    return str(given)


def ratio(said: str, where: str) -> Stat:
    r"""A figure of "12× faster" and the like.

    >>> ratio("12× faster", "at batch 1")
    Stat(value='12×', label='faster at batch 1', error='')
    """
    times, _, way = said.partition(" ")
    return Stat(times, f"{way} {where}") if "×" in times else Stat(said, where)


def checks(content: Mapping[str, Any]) -> Section:
    r"""What was checked, and whether it held."""
    entries = content["verdicts"]
    return Section("Verdicts", [Verdicts(list(entries))] if entries else [])


def distilled(content: Mapping[str, Any]) -> Section:
    r"""The models, what they cost, and how the one was made of the other."""
    models = content["models"]
    rows = [
        [each["role"], str(each["name"]), value(each.get("parameters")),
         wording.size_in_words(each["bytes"]) if each.get("bytes")
         else "unknown" if each["role"] == "teacher" else "–"]
        for each in models
    ]  # fmt: skip
    settings = content["settings"]
    said = [f"{title} {value(settings[name])}" for name, title in MADE.items() if name in settings]
    words = "; ".join(said)
    words = f"{words[:1].upper()}{words[1:]}." if said else ""
    heads = ["role", "model", "parameters", "bytes"]
    table = TableBlock("What was distilled", heads, rows, False, words, (0, 1))
    return Section("What was distilled", [table] if rows else [])


def notes_of(content: Mapping[str, Any]) -> Section:
    r"""What there is to know beside."""
    return Section("Notes", [Prose(str(note)) for note in content["notes"]])


def learned(drawing: Drawing) -> Section:
    r"""Losses against steps, and other columns of the history on scales of their own."""
    history = drawing.saved.content["history"]
    names = [name for name in history if name not in ASIDE]
    blocks: list[Block] = []
    if drawing.pictures and history.get("step") and names and len(history["step"]) > 1:
        drawn = drawing.picture("Loss", pictures.learning)
        others = [n for n in names if n not in drawn.alt][:2]
        more = [drawing.picture(n, pictures.measures, name=n) for n in others]
        words = "A curve that still falls at its end would gain from more steps."
        blocks = [*drawing.gallery("Learning curves", drawn, *more, note=words)]
    return Section("How it learned", blocks)


def closing(content: Mapping[str, Any]) -> list[Section]:
    r"""Settings, circumstances, and the command that repeats the run."""
    settings = content["settings"]
    rows = [[str(name).replace("_", " "), value(each)] for name, each in settings.items()]
    table = TableBlock("Settings", ["setting", "value"], rows, words=(0, 1))
    found = content["circumstances"]
    made = [[title, value(found[name])] for name, title in NAMED.items() if name in found]
    made += [[str(n), value(each)] for n, each in found.items() if n not in NAMED]
    if content["seed"] is not None:
        made.append(["seed", str(content["seed"])])
    if content["seconds"] is not None:
        made.append(["seconds", f"{content['seconds']:,.1f}"])
    how = TableBlock("Circumstances", ["what", "value"], made, sortable=False, words=(0, 1))
    return [
        Section("Settings", [table] if rows else []),
        Section("Hardware, versions, seed", [how] if made else []),
        Section("Repeat it", [Code(content["command"])] if content["command"] else []),
    ]
