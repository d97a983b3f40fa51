r"""A report on a student as tables: models side by side, and subgroups below one another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from limbeck.compression.fidelity import wording
from limbeck.compression.fidelity.comparison import Comparison, decisive
from limbeck.compression.fidelity.measures import MEASURES
from limbeck.core.ratios import compared

if TYPE_CHECKING:
    from limbeck.compression.fidelity.report import Fidelity

__all__ = ["group_table", "groups", "heading", "measure_title", "table"]

LONGEST = 17  # characters of a heading that is one word
ROWS = 16  # groups in a table

CAPTION = (
    "± is a standard error; differences are paired, of percentages in points; logs are natural"
)

SIZE = "bytes on disk"

OF_ONE_CLASS = {
    "average_precision": "average precision",
    "rare_recall": "recall",
    "worst_recall": "recall",
}
r"""Measures of one class, whose name goes with them."""

Part = tuple[str, str, Comparison]


def table(report: Fidelity) -> Table:
    r"""Models side by side, with the student's difference from the teacher."""
    models = [model for model in report.names if model in report.measures]
    measures = _measures(report, models)
    rows = measures + _costs(report, models)
    heads = [heading(report.names[model]) for model in models]
    heads.insert(2, "student − teacher")
    title = f"fidelity on {report.rows:,} {'row' if report.rows == 1 else 'rows'}"
    shown = Table(title=title, title_justify="left", caption_justify="left")
    shown.caption = CAPTION if report.labelled else None
    shown.add_column("", no_wrap=True)
    full = [place for place in range(1, len(heads) + 1) if any(row[place] for row in rows)]
    for place in full:
        shown.add_column(heads[place - 1], justify="right", overflow="fold")
    for number, row in enumerate(rows, 1):
        shown.add_row(row[0], *(row[place] for place in full), end_section=number == len(measures))
    return shown


def _measures(report: Fidelity, models: list[str]) -> list[list[str]]:
    rows = []
    for name in MEASURES:
        found = [report.measures[model].get(name) for model in models]
        repeated = name == "worst_recall" and report.worst == report.rarest
        if any(found) and not repeated:
            cells = [wording.figure(name, each) for each in found]
            gap = report.differences["teacher"].get(name)
            cells.insert(2, wording.figure(name, gap, signed=True))
            rows.append([measure_title(report, name), *cells])
    return rows


def measure_title(report: Fidelity, name: str) -> str:
    r"""What a measure is called in a report: that of one class, with the name of the class."""
    count = report.worst if name == "worst_recall" else report.rarest
    if name not in OF_ONE_CLASS or count is None:
        return MEASURES[name].title
    return f"{OF_ONE_CLASS[name]} of {count.title}"


def _costs(report: Fidelity, models: list[str]) -> list[list[str]]:
    costs = [report.costs[model] for model in models]
    rows: list[list[str]] = []

    def add(
        title: str, values: list[float | None], shown: Callable[[float], str], *words: str
    ) -> None:
        if any(value is not None for value in values):
            cells = ["–" if value is None else shown(value) for value in values]
            if title == SIZE:  # that of a model is unknown; that of the baseline is the student's
                cells[:2] = ["unknown" if cell == "–" else cell for cell in cells[:2]]
            less, more, same = words
            cells.insert(2, compared(values[0], values[1], less, more, same))
            rows.append([title, *cells])

    numbers: list[float | None] = [cost.parameters for cost in costs]
    add("parameters", numbers, lambda count: f"{count:,.0f}", "fewer", "more", "as many")
    sizes: list[float | None] = [cost.bytes for cost in costs]
    add(SIZE, sizes, wording.size, "smaller", "larger", "as large")
    for size in sorted({size for cost in costs for size in cost.latency}):
        times = [cost.latency.get(size) for cost in costs]
        title = f"latency at batch {size:,}"
        add(title, times, wording.span, "faster", "slower", "as fast")
    return rows


def group_table(report: Fidelity) -> Table:
    r"""Subgroups below one another; the worst of them, if there are many."""
    other, name = decisive(report.task, report.labelled)
    parts = groups(report)
    title = f"{MEASURES[name].title} by subgroup"
    if len(parts) > ROWS:
        title += f" (the {ROWS} worst of {len(parts)})"
        parts = groups(report, worst=True)[:ROWS]
    models = ["teacher", "student"] if report.labelled else ["student"]
    heads = ["column", "group", "rows", *models, f"student − {other}", "worse"]
    shown = Table(title=title, title_justify="left")
    for number, head in enumerate(heads if report.worse else heads[:-1]):
        justify: Literal["right", "left"] = "right" if 1 < number < len(heads) - 1 else "left"
        shown.add_column(head, justify=justify, overflow="fold")
    before = None
    for column, group, part in parts:
        cells = ["" if column == before else column, group, f"{part.rows:,}"]
        cells += [wording.figure(name, part.measures[model].get(name)) for model in models]
        gap = part.differences.get(other, {}).get(name)
        cells.append(wording.figure(name, gap, signed=True))
        if report.worse:
            cells.append("worse" if (column, group) in report.worse else "")
        shown.add_row(*cells)
        before = column
    return shown


def groups(report: Fidelity, *, worst: bool = False) -> list[Part]:
    r"""Columns, groups and their measures, as they are or the worst first."""
    found = [(c, g, part) for c, parts in report.by_group.items() for g, part in parts.items()]
    other, name = decisive(report.task, report.labelled)
    return sorted(found, key=lambda each: _score(each[2], other, name)) if worst else found


def _score(part: Comparison, other: str, name: str) -> float:
    # standard errors by which the student is better; infinite where that is not known
    gap = part.differences.get(other, {}).get(name)
    if gap is None or math.isnan(gap.value):
        return math.inf
    better = gap.value if MEASURES[name].rises else -gap.value
    return better / gap.std_error if gap.std_error > 0 else 1e9 * better


def heading(name: str) -> str:
    r"""A model's name; long ones such as RandomForestClassifier break where their words do."""
    long = any(len(word) > LONGEST for word in name.split())
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name) if long else name
