r"""The report on a compressed teacher."""

from __future__ import annotations

from typing import Any

import numpy as np

from limbeck.compression.fidelity import tables as wording
from limbeck.compression.fidelity.report import Fidelity
from limbeck.compression.fidelity.tables import group_table, kept_noun, table
from limbeck.report import pictures
from limbeck.report.blocks import Block, Gallery, Prose, Section, Stat, TableBlock, from_rich
from limbeck.report.drawing import Drawing
from limbeck.report.sections import ratio, value
from limbeck.text import compared

__all__ = ["sections", "stats"]

LIKELY, RARE, NUMBERS = 3, 0.005, 12
r"""Classes of a prediction, the least probability, and numbers of a row that are shown."""


def stats(content: dict[str, Any]) -> list[Stat]:
    r"""What the student keeps, agrees on and saves."""
    if "fidelity" not in content:
        return []
    report = Fidelity.from_dict(content["fidelity"])
    found = []
    if report.main not in ("agreement", "teacher_r2") and report.kept == report.kept:
        found.append(Stat(wording.percent(report.kept), f"of {kept_noun(report)} kept"))
    for name, label in (
        ("agreement", "agreement with the teacher"),
        ("teacher_r2", "R² against the teacher"),
    ):
        if name in report.measures["student"]:
            figure = report.measures["student"][name].value
            found.append(Stat(wording.short(name, figure), label))
    teacher, student = report.costs["teacher"], report.costs["student"]
    for size in sorted(teacher.latency.keys() & student.latency.keys())[:1]:
        said = compared(teacher.latency[size], student.latency[size], "faster", "slower", "as fast")
        found.append(ratio(said, f"at batch {size:,}"))
    said = compared(teacher.bytes, student.bytes, "smaller", "larger", "as large")
    if said:
        found.append(ratio(said, "on disk"))
    return found


def sections(drawing: Drawing) -> list[Section]:
    r"""Measures, calibration, disagreement, subgroups, what was tried."""
    content = drawing.saved.content
    if "fidelity" not in content:
        words = "No rows were given to compare teacher and student on, so nothing was measured."
        return [Section("Teacher beside student", [Prose(words)]), _tried(content)]
    report = Fidelity.from_dict(content["fidelity"])
    beside = Section("Teacher beside student", [from_rich(table(report))])
    return [
        beside,
        _calibration(drawing, report),
        _disagreement(drawing, report),
        _groups(drawing, report),
        _tried(content),
    ]


def _calibration(drawing: Drawing, report: Fidelity) -> Section:
    if not report.calibration or not drawing.pictures:
        return Section("Calibration", [])
    words = (
        "On the dotted line, predictions that are sure to 80% are right 80% of the time; below it, "
        "they promise too much. Bars are one standard error of a bin."
    )
    drawn = drawing.picture("Calibration", pictures.calibration)
    return Section("Calibration", [Prose(words), *drawing.gallery("Calibration", drawn)])


def _disagreement(drawing: Drawing, report: Fidelity) -> Section:
    blocks: list[Block] = []
    if drawing.pictures:
        plate = report.task == "classification"
        drawn = drawing.picture("Predictions together", pictures.disagreement, plate)
        blocks += drawing.gallery("What both predict", drawn)
    if report.disagreements:
        image = drawing.saved.content.get("image")
        if image and drawing.pictures and "disagreement_rows" in drawing.saved.arrays:
            blocks.append(_images(drawing, report, tuple(image)))
        blocks.append(_rows(drawing, report))
    else:
        blocks.append(Prose("On no row do both differ."))
    return Section("Where they disagree", blocks)


def _images(drawing: Drawing, report: Fidelity, shape: tuple[int, ...]) -> Gallery:
    drawn = []
    rows = drawing.saved.arrays["disagreement_rows"]
    for each, row in zip(report.disagreements, rows, strict=True):
        label = f", label {each['label']}" if "label" in each else ""
        one, two = (_guess(report, each[model]) for model in ("teacher", "student"))
        said = f"teacher {one}, student {two}{label}"
        alt = f"Row {each['row']}: {said}."
        drawn.append(drawing.image(np.asarray(row, dtype=float).reshape(shape), said, alt))
    note = "Rows with the largest difference between both predictions, largest first."
    return Gallery("Images on which both differ most", drawn, small=True, note=note)


def _rows(drawing: Drawing, report: Fidelity) -> TableBlock:
    examples = drawing.saved.content.get("examples") or []
    columns = ["row", "difference", "teacher", "student"]
    labelled = any("label" in each for each in report.disagreements)
    columns += ["label"] if labelled else []
    names = list(examples[0]) if examples else []
    numbers = drawing.saved.arrays.get("disagreement_rows")
    if not names and numbers is not None and not drawing.saved.content.get("image"):
        flat = numbers.reshape(len(numbers), -1)[:, :NUMBERS]
        names = [f"column {place}" for place in range(flat.shape[1])]
        examples = [dict(zip(names, map(value, row.tolist()), strict=True)) for row in flat]
    rows = []
    for place, each in enumerate(report.disagreements):
        cells = [str(each["row"]), f"{each['size']:.3g}"]
        cells += [_said(report, each[model]) for model in ("teacher", "student")]
        cells += [value(each.get("label"))] if labelled else []
        cells += [examples[place].get(name, "") for name in names] if examples else []
        rows.append(cells)
    note = (
        "Difference is half the sum over classes of |teacher − student|, from 0 to 1."
        if report.task == "classification"
        else "Difference is the mean of |teacher − student|."
    )
    words = tuple(range(2, len(columns) + len(names)))
    return TableBlock("Largest disagreements", columns + names, rows, True, note, words)


def _said(report: Fidelity, prediction: list[Any]) -> str:
    p = [0.0 if each is None else float(each) for each in prediction]
    if report.task == "regression":
        return ", ".join(f"{each:.4g}" for each in p)
    order = sorted(range(len(p)), key=lambda k: -p[k])[:LIKELY]
    shown = [k for k in order if p[k] >= RARE or k == order[0]]
    return ", ".join(f"{report.classes[k]}: {p[k]:.0%}" for k in shown)


def _guess(report: Fidelity, prediction: list[Any]) -> str:
    return _said(report, prediction).split(", ")[0]


def _groups(drawing: Drawing, report: Fidelity) -> Section:
    if not report.by_group:
        return Section("Subgroups", [])
    blocks: list[Block] = []
    if drawing.pictures:
        drawn = drawing.picture("Student minus teacher, by group", pictures.subgroups)
        blocks += drawing.gallery("Subgroups", drawn)
    found = from_rich(group_table(report), sortable=True)
    before = ""
    for row in found.rows:  # sorted rows need their column's name
        before = row[0] = row[0] or before
    return Section("Subgroups", [*blocks, found])


def _tried(content: dict[str, Any]) -> Section:
    found = content.get("tried") or []
    if not found:
        return Section("What was tried", [])
    names = list(dict.fromkeys(name for each in found for name in each))
    rows = [[value(each.get(name)) for name in names] for each in found]
    note = "Each was tried for a short time, and judged on rows held out."
    return Section("What was tried", [TableBlock("Tried", names, rows, True, note)])
