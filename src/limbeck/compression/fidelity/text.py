r"""A report on a student in words: where it is worse, and the one sentence to tell a colleague."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from limbeck.compression.fidelity import wording
from limbeck.compression.fidelity.comparison import decisive
from limbeck.compression.fidelity.measures import MEASURES, Figure
from limbeck.compression.fidelity.rare_classes import MIN_CLASS_ROWS
from limbeck.compression.fidelity.tables import OF_ONE_CLASS, groups, measure_title
from limbeck.core.ratios import compared

if TYPE_CHECKING:
    from limbeck.compression.fidelity.report import Fidelity

__all__ = ["kept_noun", "rare_class_notes", "remarks", "sentence", "size_remarks"]

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
        value = wording.short(name, part.measures["student"][name].value)
        if report.labelled:
            value += f" against {wording.short(name, part.measures['teacher'][name].value)}"
        gap = wording.figure(name, part.differences[other][name], signed=True, points=" points")
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
    kept = wording.percent(report.kept)
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
        share = wording.percent(known["agreement"].value)
        beside = _beside(report) if report.main == "agreement" else ""
        return [f"agrees with {whom} on {share}{f' of {where}' if where else ''}{beside}"]
    where = f" on {where}" if where else ""
    r2 = known["teacher_r2"].value
    if math.isnan(r2):
        return [f"differs from {whom} by {known['difference'].value:.3g} on average{where}"]
    return [f"follows {whom} with R² {wording.short('r2', r2)}{where}"]


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
    return (
        wording.figure(name, figure) if name in OF_ONE_CLASS else wording.short(name, figure.value)
    )
