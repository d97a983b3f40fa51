r"""Compressed teachers: the record of a result, and the report on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from limbeck.compression.compressed import Compressed
from limbeck.compression.fidelity import tables
from limbeck.compression.fidelity.report import NAMES, Fidelity
from limbeck.errors import ArgumentError
from limbeck.report import pictures, summary
from limbeck.report.blocks import Block, Report, Stat, TableBlock, from_rich, gallery, ratio, value
from limbeck.storage import Saved
from limbeck.teachers import keys
from limbeck.text import compared


def compressed(
    result: Compressed, *, report: Fidelity | None = None, X: object = None,
    y: ArrayLike | None = None, labels: object = None,
    groups: dict[str, Any] | str | Iterable[str] | None = None, time: bool = True,
) -> tuple[dict[str, Any], summary.Arrays]:  # fmt: skip
    r"""Content and arrays of a compressed teacher, with a report or one that is made on X."""
    if report is None and X is not None:
        report = result.report(X, y, labels=labels, groups=groups, time=time)
    content, arrays, notes = summary.run_summary(result), summary.Arrays(), list[str]()
    content["settings"] = {"task": result.task, "generator": result.inputs, **content["settings"]}
    if result.tried:
        content["tried"] = result.tried
    network = summary.named_network(result.student)
    if report is None:
        teacher = None if result.problem is None else result.problem.teacher
        content["models"] = [
            summary.model("teacher" if teacher is None else teacher.name, "teacher", teacher),
            summary.model(network, "student", result.cost()),
        ]
        content["summary"] = str(result).rstrip().rsplit("\n", 1)[-1]
    else:
        names = {**report.names, "baseline": "the same student"}
        if names["student"] == NAMES["student"]:
            names["student"] = network
        content["models"] = [
            summary.model(names[key], NAMES[key], report.costs[key]) for key in report.measures
        ]
        content["fidelity"] = report.to_dict()
        content["summary"] = f"{report.sentence()} {report.need()}".rstrip()
        content["verdicts"] += _verdicts(report)
        notes = [f"{note[:1].upper()}{note[1:]}." for note in tables.rare_class_notes(report)]
        if math.isnan(report.retention):
            title = tables.measure_title(report, report.main)
            notes.append(
                f"Unchecked: the student's share of the teacher's {title}, which is not above 0."
            )
        if X is not None:
            content |= _examples(X, report, arrays)
    content["notes"] = [*notes, *result.notes]
    content["title"] = f"{tables.heading(content['models'][0]['name'])}, compressed"
    return content, arrays


def _verdicts(report: Fidelity) -> list[dict[str, Any]]:
    verdicts = []
    if report.by_group:
        worse = tables.remark(report)
        words = worse or "The student is not clearly worse in any subgroup."
        verdicts.append(summary.verdict("subgroups", not worse, words))
    shares = {name: figure.value for name, figure in report.retention_by.items()}
    lost = sorted((n for n in shares if shares[n] < tables.LITTLE), key=lambda n: shares[n])
    if lost or not math.isnan(report.retention):
        phrases = []
        for name in lost or [report.main]:
            only, share = "only " if name in lost else "", tables.percent(shares[name])
            agrees = f"agrees with the teacher on {only}{share} of the rows"
            follows = f"follows the teacher with an R² of {only}{shares[name]:.3f}"
            keeps = f"keeps {only}{share} of {tables.retention_noun(report, name)}"
            phrases.append({"agreement": agrees, "teacher_r2": follows}.get(name, keeps))
        words = f"The student {' and '.join(phrases)}."
        verdicts.append(summary.verdict("quality", not lost, words))
    return verdicts


def _examples(rows: Any, report: Fidelity, arrays: summary.Arrays) -> dict[str, Any]:
    r"""The rows with the largest disagreement: images as numbers, others as text."""
    count = rows.shape[0] if hasattr(rows, "shape") else len(rows)
    if count != report.rows:
        raise ArgumentError("X", f"{count} rows", f"the {report.rows} of the report")
    index = [example["row"] for example in report.disagreements]
    if not index or not (hasattr(rows, "shape") or isinstance(rows, list | tuple)):
        return {}  # they agree everywhere, or it is a data set of the user's own
    columns = 24  # of a table with more, the first
    part = keys.as_given(keys.select(keys.as_rows(rows), np.array(index)))
    if hasattr(part, "iloc"):
        names = list(map(str, part.columns))
        rows = [list(map(str, row)) for row in part.to_numpy(dtype=object)]
    else:
        array = keys.dense(part)
        if image := summary.image_of(array):
            arrays["disagreement_rows"] = array
            return dict(image)
        rows = array.reshape(len(array), -1).tolist()
        names = [f"column {k}" for k in range(len(rows[0]))]
    texts = ([value(cell) for cell in row[:columns]] for row in rows)
    return {"examples": [dict(zip(names, row, strict=False)) for row in texts]}


def report_on(saved: Saved) -> Report:
    r"""Measures, calibration, disagreement, subgroups, settings that were tried."""
    content, figures = saved.content, list[Stat]()
    trials = content.get("tried") or []
    names = list(dict.fromkeys(name for trial in trials for name in trial))
    rows = [[value(trial.get(name)) for name in names] for trial in trials]
    note = "Each was tried in a short run and compared on held-out rows."
    tried: list[Block] = [TableBlock("Tried", names, rows, True, note)] if trials else []
    if "fidelity" not in content:
        words = "Nothing was measured: there were no rows to compare teacher and student on."
        return [], {"Teacher beside student": [words], "What was tried": tried}
    report = Fidelity.from_dict(content["fidelity"])
    if report.main not in ("agreement", "teacher_r2") and not math.isnan(report.retention):
        share = tables.percent(report.retention)
        figures.append(Stat(share, f"of {tables.retention_noun(report)} kept"))
    labels = {"agreement": "agreement with the teacher", "teacher_r2": "R² against the teacher"}
    for name, label in labels.items():
        if (figure := report.measures["student"].get(name)) is not None:
            figures.append(Stat(tables.short(name, figure.value), label))
    teacher, student = report.costs["teacher"], report.costs["student"]
    for size in sorted(teacher.latency.keys() & student.latency.keys())[:1]:
        speed = compared(teacher.latency[size], student.latency[size], *tables.FASTER)
        figures.append(ratio(speed, f"at batch {size:,}"))
    if smaller := compared(teacher.bytes, student.bytes, *tables.SMALLER):
        figures.append(ratio(smaller, "on disk"))
    classes = [from_rich(tables.class_table(report), sortable=True)] if report.by_class else []
    curves = gallery(saved, "Calibration", pictures.calibration)
    apart = gallery(saved, "What both predict", pictures.disagreement)
    if report.disagreements:
        apart += gallery(saved, "Images on which both differ most", pictures.examples)
    both_agree = "Both agree on every row."
    apart.append(_rows(saved, report) if report.disagreements else both_agree)
    groups: list[Block] = []
    if report.by_group:
        table, before = from_rich(tables.group_table(report), sortable=True), ""
        for row in table.rows:  # sorted rows need their column's name
            before = row[0] = row[0] or before
        groups = [*gallery(saved, "Subgroups", pictures.subgroups), table]
    words = (
        "On the dotted line, predictions with a probability of 80% are right 80% of the time; "
        "below it, they are overconfident. Bars are one standard error of a bin."
    )
    return figures, {
        "Teacher beside student": [from_rich(report.table()), *classes],
        "Calibration": [words, *curves] if curves else [],
        "Where they disagree": apart,
        "Subgroups": groups,
        "What was tried": tried,
    }


def _rows(saved: Saved, report: Fidelity) -> TableBlock:
    labelled = any("label" in example for example in report.disagreements)
    columns = ["row", "difference", "teacher", "student", *(["label"] if labelled else [])]
    examples = saved.content.get("examples") or []
    names = list(examples[0]) if examples else []
    cells = []
    for k, example in enumerate(report.disagreements):
        row = [str(example["row"]), f"{example['size']:.3g}"]
        row += [_prediction(report, example[name]) for name in pictures.MODELS]
        row += [value(example.get("label"))] if labelled else []
        cells.append(row + [examples[k].get(name, "") for name in names])
    note = "Difference is the mean of |teacher − student|."
    if report.task == "classification":
        note = "Difference is half the sum over classes of |teacher − student|, from 0 to 1."
    words = tuple(range(2, len(columns) + len(names)))
    return TableBlock("Largest disagreements", columns + names, cells, True, note, words)


def _prediction(report: Fidelity, prediction: list[float | None]) -> str:
    r"""Values, or the most probable classes but those below 0.5%."""
    p = [0.0 if number is None else float(number) for number in prediction]
    if report.task == "regression":
        return ", ".join(f"{number:.4g}" for number in p)
    order = sorted(range(len(p)), key=lambda k: -p[k])[:3]
    likely = [k for k in order if p[k] >= 0.005 or k == order[0]]
    return ", ".join(f"{report.classes[k]}: {p[k]:.0%}" for k in likely)
