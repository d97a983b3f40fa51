r"""A report on a student in words: where it is worse, and the one sentence to tell a colleague."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from limbeck.compression.fidelity import wording
from limbeck.compression.fidelity.comparison import decisive
from limbeck.compression.fidelity.measures import MEASURES
from limbeck.compression.fidelity.tables import groups
from limbeck.core.ratios import compared

if TYPE_CHECKING:
    from limbeck.compression.fidelity.report import Fidelity

__all__ = ["remarks", "sentence"]

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


def sentence(report: Fidelity) -> str:
    r"""What the student keeps, agrees on, and saves: of these what is known."""
    verbs = [*_quality(report), *_faithfulness(report)]
    if savings := [*_speed(report), *_size(report)]:
        verbs.append(f"is {' and '.join(savings)}")
    *first, last = verbs
    said = f"{', '.join(first)} and {last}" if first else last
    return f"The student {said}{_alone(report)}."


def _quality(report: Fidelity) -> list[str]:
    if not _judged(report):
        return []
    noun = MEASURES[report.main].title
    one, two = (_main(report, model) for model in ("student", "teacher"))
    if math.isnan(report.kept):
        return [f"has {noun} {one} where the teacher has {two}"]
    kept = wording.percent(report.kept)
    only = "only " if report.kept < LITTLE else ""
    return [f"keeps {only}{kept} of the teacher's {noun} ({one} against {two})"]


def _faithfulness(report: Fidelity) -> list[str]:
    known = report.measures["student"]
    rows = f"{report.rows:,} {'row' if report.rows == 1 else 'rows'}"
    whom, where = ("it", "") if _judged(report) else ("the teacher", rows)
    if "agreement" in known:
        if report.task == "multilabel":
            where = f"labels in {where}" if where else "labels"
        share = wording.percent(known["agreement"].value)
        return [f"agrees with {whom} on {share}{f' of {where}' if where else ''}"]
    where = f" on {where}" if where else ""
    r2 = known["teacher_r2"].value
    if math.isnan(r2):
        return [f"differs from {whom} by {known['difference'].value:.3g} on average{where}"]
    return [f"follows {whom} with R² {wording.short('r2', r2)}{where}"]


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
    gap = report.differences.get("baseline", {}).get(report.main)
    if gap is None:
        return ""
    reached = f"{MEASURES[report.main].title} {_main(report, 'baseline')}"
    width = DECISIVE * gap.std_error
    if math.isnan(width):  # a single row
        does = "comes out beside it"
    elif abs(gap.value) <= width:
        does = "does as well"
    else:
        does = "does less well" if gap.value > 0 else "does better"
    return f"; trained on the labels alone, the same student {does} ({reached})"


def _judged(report: Fidelity) -> bool:
    r"""Whether the main measure is against labels."""
    return report.main in ("accuracy", "r2")


def _main(report: Fidelity, model: str) -> str:
    return wording.short(report.main, report.measures[model][report.main].value)
