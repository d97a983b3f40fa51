r"""What a result of `compress` holds: the report, and the rows on which both disagree most."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limbeck.compression.compressed import Compressed
from limbeck.compression.fidelity.report import NAMES, Fidelity
from limbeck.compression.fidelity.tables import (
    LITTLE,
    heading,
    kept_noun,
    measure_title,
    percent,
    rare_class_notes,
    remarks,
)
from limbeck.errors import ArgumentError
from limbeck.report.summary import as_array, image_shape, model, named_network, story, verdict

__all__ = ["compressed"]

COLUMNS = 24
r"""Columns of a table that are shown of a row."""


def compressed(
    result: Compressed,
    *,
    report: Fidelity | None = None,
    X: Any = None,
    y: Any = None,
    labels: Any = None,
    groups: Any = None,
    time: bool = True,
    image: Any = "auto",
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    r"""Content and arrays of a compressed teacher.

    Arguments:
        result: What `compress` gave back.
        report: What `result.report` gave; None makes it, of the rows X.
        X: Rows that teacher and student were compared on; those they disagree on most are kept.
        y: Their labels; likewise labels, groups and time, as for `Compressed.report`.
        labels: Labels of the rows that the student was made with.
        groups: What divides the rows into groups.
        time: Whether to measure how long predictions take.
        image: Height and width, where rows are images; "auto" guesses, None is for no images.
    """
    if report is None and X is not None:
        report = result.report(X, y, labels=labels, groups=groups, time=time)
    own, arrays = story(result), dict[str, np.ndarray]()
    own["settings"] = {"task": result.task, "asked at": result.inputs, **own["settings"]}
    if result.tried:
        own["tried"] = result.tried
    if report is None:
        name = "teacher" if result.problem is None else result.problem.predictor.name
        teacher = None if result.problem is None else result.problem.predictor
        own["models"] = [
            model(name, "teacher", teacher),
            model(named_network(result.student), "student", cost=result.cost()),
        ]
        own["summary"] = str(result).rstrip().rsplit("\n", 1)[-1]
    else:
        names = {**report.names, "baseline": "the same student"}
        if names["student"] == NAMES["student"]:
            names["student"] = named_network(result.student)
        own["models"] = [
            model(names[key], NAMES[key], cost=report.costs[key]) for key in report.measures
        ]
        own["fidelity"] = report.to_dict()
        own["summary"] = report.sentence()
        own["verdicts"] += _verdicts(report)
        own["notes"] = _notes(report)
        if X is not None:
            own |= _examples(X, report, image, arrays)
    own["notes"] = [*own.get("notes", ()), *result.notes]
    own["title"] = f"{heading(own['models'][0]['name'])}, compressed"
    return own, arrays


def _verdicts(report: Fidelity) -> list[dict[str, Any]]:
    found = []
    if report.by_group:
        worse = remarks(report)
        words = worse[0] if worse else "In no subgroup is the student clearly worse."
        found.append(verdict("subgroups", not worse, words))
    if not math.isnan(report.kept):
        held = report.kept >= LITTLE
        only = "" if held else "only "
        said = {
            "agreement": f"agrees with the teacher on {only}{percent(report.kept)} of the rows",
            "teacher_r2": f"follows the teacher with an R² of {only}{report.kept:.3f}",
        }.get(report.main)
        if said is None:
            said = f"keeps {only}{percent(report.kept)} of {kept_noun(report)}"
        found.append(verdict("quality", held, f"The student {said}."))
    return found


def _notes(report: Fidelity) -> list[str]:
    r"""What was not checked, a sentence each."""
    found = [f"{note[:1].upper()}{note[1:]}." for note in rare_class_notes(report)]
    if math.isnan(report.kept):
        title = measure_title(report, report.main)
        found.append(
            f"Unchecked: what the student keeps of the teacher's {title}, which is not above 0."
        )
    return found


def _examples(X: Any, report: Fidelity, image: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    r"""The rows on which both disagree most: of tables as words, of arrays as numbers."""
    count = X.shape[0] if hasattr(X, "shape") else len(X)
    if count != report.rows:
        raise ArgumentError("X", f"{count} rows", f"the {report.rows} of the report")
    chosen = [each["row"] for each in report.disagreements]
    if not chosen:
        return {}
    if hasattr(X, "iloc"):
        part = X.iloc[chosen, :COLUMNS]
        return _in_words(list(map(str, part.columns)), part.itertuples(index=False))
    if not hasattr(X, "shape") and not isinstance(X, list | tuple):
        return {}  # a data set of the user's own
    rows = as_array(X[chosen] if hasattr(X, "shape") else [X[row] for row in chosen])
    if rows.dtype.kind not in "biuf":
        flat = rows.reshape(len(rows), -1)[:, :COLUMNS]
        return _in_words([f"column {place}" for place in range(flat.shape[1])], flat)
    arrays["disagreement_rows"] = rows
    shape = image_shape(rows, image)
    return {} if shape is None else {"image": list(shape)}


def _in_words(names: list[str], rows: Any) -> dict[str, Any]:
    return {"examples": [dict(zip(names, map(str, row), strict=True)) for row in rows]}
