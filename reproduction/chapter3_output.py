r"""Output of chapter 3: pictures, a page, and a table on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from reproduction import chapter3
from reproduction.chapter3_findings import figures, logistic, mixtures
from reproduction.chapter3_page import page
from reproduction.chapter3_pictures import pictures
from reproduction.record import Asked

__all__ = ["report", "tables"]


def report(asked: Asked, settings: chapter3.Settings, console: Console) -> dict[str, Any]:
    r"""Run chapter 3, then write chapter-3.json, pictures and page.md to a folder, and tables."""
    out = asked.out
    console.print(f"Condensing posteriors: {' and '.join(settings.parts)} …")
    found = chapter3.run(out, settings, progress=asked.progress)
    said = pictures(found, out)
    (out / "page.md").write_text(page(found), encoding="utf-8")
    for table in tables(found):
        console.print(table)
    judged = mixtures(found.get("mixtures", []))
    if "logistic" in found:
        judged += logistic(figures(found["logistic"]))
    shown = [each for each in judged if each.held]
    console.print(
        f"{len(shown)} of {len(judged)} claims hold. {len(said)} pictures, "
        f"page.md and {chapter3.FILE} are in {out}."
    )
    return found


def tables(found: dict[str, Any]) -> list[Table]:
    r"""KL of students of mixtures, and errors of bags, as far as the results have them."""
    made = []
    if entries := found.get("mixtures"):
        shown = Table(title="Mixtures: KL from the exact density, nat", title_justify="left")
        for column in ("observations", "all chains", "one chain", *entries[0]["students"]):
            shown.add_column(column, justify="right")
        for each in entries:
            values = [each["pooled"]["kl"], each["chain"]["mean"]]
            values += [student["mean"] for student in each["students"].values()]
            shown.add_row(f"{each['observations']:,}", *(f"{value:.4f}" for value in values))
        made.append(shown)
    if entries := found.get("logistic"):
        shown = Table(title="Logistic regression: |t − f|", title_justify="left")
        for column in ("student", "mean", "maximum", "near the origin"):
            shown.add_column(column, justify="left" if column == "student" else "right")
        for name, own in figures(entries).items():
            shown.add_row(name, *(f"{figure.mean:.4f}" for figure in own.values()))
        made.append(shown)
    return made
