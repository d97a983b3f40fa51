r"""The tables of `compress.py`, for `page.py`: one per kind of student, and the targets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_lines import heading, lines, short

__all__ = ["compress_table"]

Cell = Callable[[dict[str, Any]], str]


def compress_table(path: Path) -> str:
    r"""A table for each kind of student, with one line for each teacher and data set."""
    machine, *figures = (json.loads(line) for line in path.read_text().splitlines())
    rows = [heading(machine)]
    measured = [each for each in figures if "kept" in each]
    for student in dict.fromkeys(each["figure"].rpartition(" into a ")[2] for each in measured):
        own = [each for each in measured if each["figure"].endswith(f" into a {student}")]
        rows += ["", f"Into a {student}:", "", *filled(COMPRESSED, own)]
    others = [each for each in measured if "by_hand" in each]
    folds = ", in the first three folds" if any("autogluon" in each for each in others) else ""
    rows += ["", f"The net compared with others of its size and with the same teacher{folds}:", ""]
    return "\n".join([*rows, *filled(BESIDE, others), "", *demands(figures)])


def filled(columns: dict[str, Cell], figures: list[dict[str, Any]]) -> list[str]:
    r"""A table of figures, without the columns in which nothing was measured."""
    found = {head: [cell(each) for each in figures] for head, cell in columns.items()}
    found = {head: cells for head, cells in found.items() if any(cells)}
    return lines(list(found), zip(*found.values(), strict=True))


def demands(figures: list[dict[str, Any]]) -> list[str]:
    r"""The targets for every kind of student over all data sets, and the values reached."""
    wanted: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for each in figures:
        who, _, what = each["figure"].partition(": ")
        what = DEMANDED.get(what.partition(",")[0], "")
        if "must" in each and what:
            wanted[what] = each["must"].replace("98% of the teacher's measure in ", "")
            reached = (each[name] for name in ("count", "least", "median") if name in each)
            found.setdefault(who, {})[what] = " / ".join(map(short, reached))
    heads = ["least / median of the data sets", *wanted]
    rows = [[who, *(own.get(what, "") for what in wanted)] for who, own in found.items()]
    return lines(heads, [*rows, ["*target*", *(f"*{must}*" for must in wanted.values())]])


DEMANDED = {
    "data sets with 98% kept": "sets with 98% retention",
    "faster_student_1": "times faster",
    "faster_exported_1": "as ONNX",
    "smaller": "times smaller",
}
r"""Column titles of the targets, by the end of a figure's name."""


def number(form: str, *names: str) -> Cell:
    r"""A cell with the first of these numbers that a figure has, or nothing."""
    return lambda each: next((form.format(each[name]) for name in names if name in each), "")


def both(*names: str) -> Cell:
    r"""A cell with a measure in the folds in which all models were measured."""
    return number("{:.3f}", *(f"{name}_beside" for name in names), *names)


NAMES: dict[str, Cell] = {
    "data": lambda each: each["figure"].partition(": ")[0],
    "teacher": lambda each: each["figure"].partition(": ")[2].partition(" into ")[0],
}
COMPRESSED = NAMES | {
    "teacher's": number("{:.3f}", "teacher"),
    "student's": number("{:.3f}", "student"),
    "retention": lambda each: f"{each['kept']:.1%} ± {each['kept_error']:.1%}",
    "agreement": number("{:.3f}", "agreement"),
    "labels only": number("{:.3f}", "labels"),
    "smaller": number("{:,.0f}×", "smaller"),
    "faster": number("{:,.0f}×", "faster_student_1"),
    "as ONNX": number("{:,.0f}×", "faster_exported_1"),
}
r"""Columns of the tables of students."""

BESIDE = NAMES | {
    "teacher's": both("teacher"),
    "student's": both("student"),
    "by hand": both("by_hand"),
    "AutoGluon": both("autogluon"),
    "agreement": both("agreement"),
    "agreement by hand": both("agreement_by_hand"),
    "agreement of AutoGluon": both("agreement_autogluon"),
}
r"""Columns of the table of nets trained by other methods."""
