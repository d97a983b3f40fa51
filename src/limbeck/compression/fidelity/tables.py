r"""A report as tables and sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from limbeck.compression.fidelity.comparison import Comparison, decisive
from limbeck.compression.fidelity.measures import MEASURES, Figure
from limbeck.compression.fidelity.rare_classes import MIN_CLASS_ROWS
from limbeck.text import compared

if TYPE_CHECKING:
    from limbeck.compression.fidelity.report import Fidelity

__all__ = [
    "figure_in_words",
    "group_table",
    "groups",
    "heading",
    "kept_noun",
    "measure_title",
    "percent",
    "rare_class_notes",
    "remarks",
    "sentence",
    "short",
    "size_in_words",
    "size_remarks",
    "span",
    "table",
]

ROUNDING = 1e-12
r"""Errors that are smaller than this, of the value or of 100%, are none."""


def figure_in_words(
    name: str, found: Figure | None, *, signed: bool = False, points: str = ""
) -> str:
    r"""A measure with its error, to two figures of the error.

    Arguments:
        name: The measure.
        found: Its value and standard error; None gives nothing.
        signed: Whether it is a difference, which has a sign and no percent.
        points: What differences of percentages are called.

    >>> figure_in_words("accuracy", Figure(0.98671, 0.00114))
    '98.67 ± 0.11%'
    >>> figure_in_words("r2", Figure(-0.5, 0.012), signed=True)
    '-0.500 ± 0.012'
    """
    if found is None or math.isnan(found.value):
        return "" if signed or found is None else "–"
    share = MEASURES[name].share
    value, error = (100 * part if share else part for part in found)
    sign = "+" if signed else ""
    known = max(ROUNDING * abs(value), ROUNDING * share) < error < math.inf
    places = max(1 - _magnitude(error) if known else 3 - _magnitude(value), 0)
    if share and not known:
        places = min(places, 2)
    if places > 6:  # of small units, or tiny errors
        return f"{value:{sign}.4g}" + f" ± {error:.2g}" * known
    text = f"{value:{sign},.{places}f}" + (f" ± {error:,.{places}f}" if known else "")
    return text + (points if signed else "%") * share


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def short(name: str, value: float) -> str:
    r"""A measure without its error, for a sentence."""
    if MEASURES[name].share:
        return percent(value)
    return f"{value:.3f}" if name in ("r2", "teacher_r2", "average_precision") else f"{value:,.4g}"


def percent(value: float) -> str:
    r"""A share, with as many places as keep what is below 100% below it.

    >>> percent(0.9871), percent(0.99996), percent(1.0)
    ('98.7%', '99.996%', '100.0%')
    """
    places = 1
    while value < 1 and round(100 * value, places) >= 100 and places < 6:
        places += 1
    return f"{value:.{places}%}"


def size_in_words(count: float) -> str:
    r"""Bytes.

    >>> size_in_words(210_000), size_in_words(512)
    ('210 kB', '512 bytes')
    """
    return (
        f"{count:,.0f} bytes" if count < 1000 else _scaled(count, {"GB": 1e9, "MB": 1e6, "kB": 1e3})
    )


def span(seconds: float) -> str:
    r"""Seconds.

    >>> span(0.0123), span(4e-5)
    ('12.3 ms', '40 µs')
    """
    return _scaled(seconds, {"s": 1.0, "ms": 1e-3, "µs": 1e-6})


def _scaled(value: float, units: dict[str, float]) -> str:
    unit = next((name for name, scale in units.items() if value >= scale), list(units)[-1])
    scaled = value / units[unit]
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


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
            cells = [figure_in_words(name, each) for each in found]
            gap = report.differences["teacher"].get(name)
            cells.insert(2, figure_in_words(name, gap, signed=True))
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
    add(SIZE, sizes, size_in_words, "smaller", "larger", "as large")
    for size in sorted({size for cost in costs for size in cost.latency}):
        times = [cost.latency.get(size) for cost in costs]
        title = f"latency at batch {size:,}"
        add(title, times, span, "faster", "slower", "as fast")
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
        cells += [figure_in_words(name, part.measures[model].get(name)) for model in models]
        gap = part.differences.get(other, {}).get(name)
        cells.append(figure_in_words(name, gap, signed=True))
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


NAMED = 5
r"""Groups that are named."""

LITTLE = 0.9
r"""Who keeps less than this keeps "only" so much."""

DECISIVE = 2.0
r"""Standard errors from which the student on labels alone is called better, or less good."""


def remarks(report: Fidelity) -> list[str]:
    r"""The subgroups where the student is worse, the worst first."""
    if not report.worse:
        return []
    other, name = decisive(report.task, report.labelled)
    found = [each for each in groups(report, worst=True) if each[:2] in report.worse]
    said = []
    for column, group, part in found[:NAMED]:
        value = short(name, part.measures["student"][name].value)
        if report.labelled:
            value += f" against {short(name, part.measures['teacher'][name].value)}"
        gap = figure_in_words(name, part.differences[other][name], signed=True, points=" points")
        title = MEASURES[name].title
        said.append(f"{column} = {group} ({title} {value}: {gap}, {part.rows:,} rows)")
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    what = "worse than the teacher" if report.labelled else "less faithful than elsewhere"
    return [f"The student is {what} by more than 3 standard errors for {'; '.join(said)}{more}."]


def size_remarks(report: Fidelity) -> list[str]:
    r"""Which files the bytes are those of, as far as that is known."""
    known = {model: cost.files for model, cost in report.costs.items() if cost.files}
    said = ", ".join(f"{report.names[model]}: {files}" for model, files in known.items())
    return [f"Bytes are those of {said}."] if said else []


def sentence(report: Fidelity) -> str:
    r"""What the student keeps, agrees on, and saves: of these what is known."""
    verbs = [*_quality(report), *_faithfulness(report)]
    if savings := [*_speed(report), *_size(report)]:
        verbs.append(f"is {' and '.join(savings)}")
    *first, last = verbs
    said = f"{', '.join(first)} and {last}" if first else last
    notes = "".join(f"; {note}" for note in rare_class_notes(report))
    return f"The student {said}{_alone(report)}{notes}."


def _quality(report: Fidelity) -> list[str]:
    r"""What is kept by the measure that is kept least, and how the others stand."""
    if report.main in ("agreement", "teacher_r2"):
        return []
    if math.isnan(report.kept):
        noun = measure_title(report, report.main)
        one, two = (_value(report, model, report.main) for model in ("student", "teacher"))
        return [f"has {noun} {one} where the teacher has {two}"]
    kept = percent(report.kept)
    only = "only " if report.kept < LITTLE else ""
    return [f"keeps {only}{kept} of {kept_noun(report)}{_beside(report)}"]


def _faithfulness(report: Fidelity) -> list[str]:
    known = report.measures["student"]
    rows = f"{report.rows:,} {'row' if report.rows == 1 else 'rows'}"
    whom = "it" if _quality(report) else "the teacher"
    where = "" if report.labelled and _quality(report) else rows
    if "agreement" in known:
        if report.task == "multilabel":
            where = f"labels in {where}" if where else "labels"
        share = percent(known["agreement"].value)
        beside = _beside(report) if report.main == "agreement" else ""
        return [f"agrees with {whom} on {share}{f' of {where}' if where else ''}{beside}"]
    where = f" on {where}" if where else ""
    r2 = known["teacher_r2"].value
    if math.isnan(r2):
        return [f"differs from {whom} by {known['difference'].value:.3g} on average{where}"]
    return [f"follows {whom} with R² {short('r2', r2)}{where}"]


def _beside(report: Fidelity) -> str:
    r"""The values behind what is kept, and those of the measures that are kept better."""
    names = [name for name in report.kept_by or [report.main] if name != "agreement"]
    others = [_values(report, name) for name in names if name != report.main]
    said = [] if report.main == "agreement" else [_values(report, report.main, named=False)]
    if others:
        said.append(", ".join(others))
    count = len(report.kept_by)
    worst = f", the worst of {count} measures" if count > 1 else ""
    return f"{worst} ({'; '.join(said)})" if said else worst


def _values(report: Fidelity, name: str, *, named: bool = True) -> str:
    r"""The student's value against the teacher's, where it has one, and the rows of a class."""
    said = " against ".join(
        _value(report, model, name)
        for model in ("student", "teacher")
        if name in report.measures[model]
    )
    if named:
        said = f"{measure_title(report, name)} {said}"
    count = report.worst if name == "worst_recall" else report.rarest
    of_class = name in OF_ONE_CLASS and count is not None and name != "average_precision"
    return f"{said} on {count.rows:,} rows" if of_class and count is not None else said


def kept_noun(report: Fidelity) -> str:
    r"""What a part is kept of: "the teacher's accuracy", "the teacher's recall of class fraud"."""
    owner = "the teacher's "
    return owner + measure_title(report, report.main).replace(owner, "")


def _speed(report: Fidelity) -> list[str]:
    teacher, student = (report.costs[model].latency for model in ("teacher", "student"))
    said = {
        size: compared(teacher[size], student[size], "faster", "slower", "as fast")
        for size in sorted(teacher.keys() & student.keys())
    }
    if not said:
        return []
    (first, words), *others = said.items()
    times, way = words.split()
    alike = [f"{w.split()[0]} at {s:,}" for s, w in others if w.split()[1] == way]
    apart = [f"{w} at batch {s:,}" for s, w in others if w.split()[1] != way]
    aside = f" ({', '.join(alike)})" if alike and times != "as" else ""
    return [f"{words} at batch {first:,}{aside}", *apart]


def _size(report: Fidelity) -> list[str]:
    teacher, student = (report.costs[model] for model in ("teacher", "student"))
    if teacher.bytes and student.bytes:
        return [compared(teacher.bytes, student.bytes, "smaller", "larger", "as large")]
    if teacher.parameters and student.parameters:
        words = compared(teacher.parameters, student.parameters, "smaller", "larger", "as large")
        return [f"{words} in parameters"]
    return []


def _alone(report: Fidelity) -> str:
    r"""How the same student does without a teacher, overall and by the measure kept least."""
    gaps = report.differences.get("baseline", {})
    overall = ("accuracy", "r2", "agreement", "teacher_r2")
    names: list[str] = [name for name in overall if name in gaps][:1]
    if report.main in gaps and report.main not in names:
        names.append(report.main)
    if not names:
        return ""
    said = [f"{_outcome(gaps[name])} ({_reached(report, name)})" for name in names]
    return f"; trained on the labels alone, the same student {' and '.join(said)}"


def _outcome(gap: Figure) -> str:
    width = DECISIVE * gap.std_error
    if math.isnan(width):  # a single row
        return "comes out beside it"
    if abs(gap.value) <= width:
        return "does as well"
    return "does less well" if gap.value > 0 else "does better"


def _reached(report: Fidelity, name: str) -> str:
    return f"{measure_title(report, name)} {_value(report, 'baseline', name)}"


def rare_class_notes(report: Fidelity) -> list[str]:
    r"""What could not be told about rare classes: too few rows, or nothing to keep."""
    if report.task == "regression":
        return []
    if report.unchecked is None:
        return ["rare classes were not checked"]
    said = []
    recall = report.kept_by.get("rare_recall")
    if recall is not None and report.rarest is not None and math.isnan(recall.value):
        title, rows = report.rarest.title, report.rarest.rows
        said.append(f"the teacher itself finds none of the {rows:,} rows of {title}")
    if report.unchecked:
        first = [f"{c.title} ({c.rows:,})" for c in report.unchecked[:NAMED]]
        more = len(report.unchecked) - NAMED
        named = ", ".join(first) + (f" and {more:,} more" if more > 0 else "")
        said.append(f"unchecked, for fewer than {MIN_CLASS_ROWS} rows: {named}")
    return said


def _value(report: Fidelity, model: str, name: str) -> str:
    r"""A measure in a sentence; of one class with its error, which is larger than one expects."""
    figure = report.measures[model][name]
    return figure_in_words(name, figure) if name in OF_ONE_CLASS else short(name, figure.value)
