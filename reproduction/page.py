r"""The page of the reproduction: chapter 4's part of it, made from its JSON results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduction.thesis import AIS_2008, CHAPTER_4, LOG_Z

__all__ = ["TITLE", "page", "section", "tables"]

TITLE = "# Reproduction"

NAMES = {"kl": "KL divergence", "se": "square error"}

HEAD = """\
## Chapter 4: an RBM into NADEs, and its log Z

The RBM is CD25(500) of Salakhutdinov & Murray (2008); the images are MNIST, binarised as in that
paper. Each NADE starts from random weights and is distilled as in the source text: {steps:,} steps
of ADADELTA on batches of 20, from 2,000 chains that all advance by one sweep per step. Bounds and
estimates use {samples:,} samples of each kind, and chains of {burn_in:,} sweeps. "Text" is the
source text's figure; ours are means over {seeds} seeds ({hardware}, torch {torch}). Reproduce this
chapter with `python -m reproduction chapter-4 --data DIR`.
"""


def page(path: Path) -> str:
    r"""A page of chapter 4 alone, from the file of results."""
    return f"{TITLE}\n\n{section(path)}"


def section(path: Path) -> str:
    r"""Chapter 4, from the file of results."""
    found = json.loads(path.read_text(encoding="utf-8"))
    settings = found["settings"]
    head = HEAD.format(
        steps=settings["steps"], samples=settings["samples"], burn_in=settings["burn_in"],
        seeds=len(settings["seeds"]), hardware=found["hardware"], torch=found["torch"],
    )  # fmt: skip
    runs = found["runs"]
    training = statistics.mean(run["seconds"] for run in runs)
    first = [run for run in runs if run["seed"] == settings["seeds"][0]]
    tail = (
        f"All {len(runs)} NADEs with their estimates took {found['seconds']:.0f} s. One "
        f"distillation took {training:.1f} s on average, including compilation. The text has "
        f"{len(first)} NADEs, one seed of ours. In 2008, annealed importance sampling gave {LOG_Z} "
        f"({AIS_2008[0]}, {AIS_2008[1]})."
    )
    notes = ["", found["note"]] if "note" in found else []
    return "\n".join([head, tables(runs), "", tail, *notes, ""])


def tables(runs: list[dict[str, Any]]) -> str:
    r"""One table for each quantity, the text's number beside ours."""
    parts = [
        _table("Test log probability", runs, lambda r: r["test"][0], lambda t: f"{t.test:.2f}"),
        _table(
            "Upper bound on log Z", runs, lambda r: r["bridge"]["bounds"]["upper"][0],
            lambda t: f"{t.upper:.2f}",
        ),
        _table(
            "Lower bound on log Z", runs, lambda r: r["bridge"]["bounds"]["lower"][0],
            lambda t: f"{t.lower:.2f}",
        ),
        _estimates("Importance sampling", "importance", runs),
        _estimates("Bridge sampling", "bridge", runs),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _grouped(runs: list[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["hidden"], run["loss"]), []).append(run)
    return dict(sorted(groups.items(), key=lambda item: (item[0][1], item[0][0])))


def _table(
    title: str,
    runs: list[dict[str, Any]],
    ours: Callable[[dict[str, Any]], float],
    theirs: Callable[[Any], str],
) -> str:
    rows = [
        f"### {title}",
        "",
        "| loss | hidden units | text | ours | lowest | highest |",
        "|---|---|---|---|---|---|",
    ]
    for (hidden, loss), group in _grouped(runs).items():
        values = [ours(run) for run in group]
        text = theirs(CHAPTER_4[hidden, loss]) if (hidden, loss) in CHAPTER_4 else "–"
        rows.append(
            f"| {NAMES[loss]} | {hidden} | {text} | {statistics.mean(values):.2f} "
            f"| {min(values):.2f} | {max(values):.2f} |"
        )
    return "\n".join(rows)


def _estimates(title: str, name: str, runs: list[dict[str, Any]]) -> str:
    rows = [
        f"### {title}",
        "",
        "| loss | hidden units | text | ours | 3 s.e. | marked trustworthy |",
        "|---|---|---|---|---|---|",
    ]
    for (hidden, loss), group in _grouped(runs).items():
        found = [run[name] for run in group]
        text = "–"
        if (hidden, loss) in CHAPTER_4:
            value, low, high = getattr(CHAPTER_4[hidden, loss], name)
            text = f"{value:.2f} ({low:.2f}, {high:.2f})"
        mean = statistics.mean(each["value"] for each in found)
        error = statistics.mean(3 * each["std_error"] for each in found)
        trusted = sum(each["trustworthy"] for each in found)
        rows.append(
            f"| {NAMES[loss]} | {hidden} | {text} | {mean:.3f} | {error:.3f} "
            f"| {trusted} of {len(found)} |"
        )
    return "\n".join(rows)
