r"""Output of chapter 2: pictures, a page, and a table on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reproduction import chapter2, data
from reproduction import chapter2_pictures as drawing
from reproduction.chapter2 import CELLS
from reproduction.chapter2_findings import Figure, conclusions, figures, verdict
from reproduction.chapter2_page import SHARES, page, title
from reproduction.record import Asked
from reproduction.thesis import CHAPTER_2, Printed

__all__ = ["pictures", "report", "table"]

SHOWN = 16
r"""MNIST's images in a sheet."""


def report(asked: Asked, settings: chapter2.Settings, console: Console) -> dict[str, Any]:
    r"""Run chapter 2, then write chapter-2.json, pictures and page.md to a folder, and a table."""
    out = asked.out
    count = len(settings.cells) * len(settings.seeds)
    console.print(f"Training {count} small nets, and the teacher if {out} has none …")
    found = chapter2.run(asked.folder, out, settings, device=asked.device, progress=asked.progress)
    said = pictures(found, out)
    digits = data.mnist(asked.folder)
    some = digits.train[:SHOWN]
    said["digits.png"] = drawing.sheets(
        {"MNIST": some.numpy(), "MNIST, rounded": some.round().numpy()},
        out / "digits.png",
        digits.shape,
    )
    (out / "page.md").write_text(page(found), encoding="utf-8")
    own = figures(found["runs"])
    console.print(table(found["runs"]))
    held = [each.letter for each in conclusions(own) if each.held]
    better = [
        verdict(name, measure, own[name][measure]) != "below"
        for name in own
        for measure in ("accuracy", "log_prob")
    ]
    console.print(
        f"{sum(better)} of {len(better)} figures are within the text's error bar or better; of its "
        f"conclusions (a) to (e), {', '.join(held) or 'none'} held. {len(said)} pictures, page.md "
        f"and {chapter2.FILE} are in {out}."
    )
    return found


def pictures(found: dict[str, Any], out: Path) -> dict[str, str]:
    r"""Draw what the results hold: what each picture shows, in words, by its file's name."""
    said, runs = {}, found["runs"]
    teacher = found["teachers"][0] if found["teachers"] else None
    for measure, file in (("accuracy", "accuracy.png"), ("log_prob", "log-probability.png")):
        if drawing.drawn(runs):
            reference = None if teacher is None else ("teacher", teacher[measure][0])
            said[file] = drawing.curves(runs, out / file, measure, reference)
    own = figures(runs)
    names = [name for name in CELLS if name in own and CELLS[name].generator != "noise"]
    if names:
        points = {
            measure: {
                title(CELLS[name]): _point(own[name][measure], getattr(CHAPTER_2[name], measure))
                for name in names
            }
            for measure in ("accuracy", "log_prob")
        }
        said["cells.png"] = drawing.cells(points, out / "cells.png")
    groups = {
        f"NADE from {drawing.SHARES[share]}, {kind}": rows
        for share in SHARES
        for kind, rows in found["samples"].get(share, {}).items()
    }
    if groups:
        shape = tuple(found.get("shape", (28, 28)))
        said["nade.png"] = drawing.sheets(groups, out / "nade.png", shape)
    return said


def table(runs: list[dict[str, Any]]) -> Table:
    r"""Each cell's figures over seeds, with the text's behind them; Δ is from the direct net."""
    shown = Table(title="Chapter 2: ours ± s.e. (the text's)", title_justify="left")
    for column in ("cell", "seeds", "accuracy", "log p", "Δ accuracy", "Δ log p"):
        shown.add_column(column, justify="left" if column == "cell" else "right")
    own = figures(runs)
    for name in (name for name in CELLS if name in own):
        shown.add_row(
            name, str(own[name]["accuracy"].seeds),
            *(
                _cell(own[name][quantity], getattr(CHAPTER_2[name], quantity), digits)
                if quantity in own[name]
                else ""
                for quantity, digits in (
                    ("accuracy", 2), ("log_prob", 3), ("difference_accuracy", 2),
                    ("difference_log_prob", 3),
                )
            ),
        )  # fmt: skip
    return shown


def _cell(figure: Figure, text: Printed, digits: int) -> str:
    return f"{figure.mean:.{digits}f}±{figure.error:.{digits}f} ({text.value:.{digits}f})"


def _point(figure: Figure, text: Printed) -> drawing.Point:
    return drawing.Point(figure.mean, 2 * figure.error, text.value, text.bar)
