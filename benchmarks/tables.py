r"""Models of real tables compressed by default, beside what one would take instead.

For each table of `table_data.py`: one teacher, three folds, and on the test rows the fidelity of
each model to the teacher (agreement, or R²), its distance (KL, or 1 − R²), its loss on true labels
(log loss, or 1 − R²) and the average precision of the rarest class. The others are small LightGBM
models in files no larger than the student, of the labels alone and of the teacher's outputs, and
with `--autogluon PYTHON`, an interpreter that has it, AutoGluon's distillation in the first fold.
A fold whose result is in the folder is not measured again; `--quick` measures the first one.

    python benchmarks/tables.py [--quick] [--only NAME ...] [--run NAME] [--autogluon PYTHON]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import table_data
import torch
from compress_others import by_autogluon
from page_tables import COLUMNS, digest, reached
from rich.console import Console
from rich.table import Table
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold, StratifiedKFold
from table_models import TEACHERS, as_categories, fit_teacher, outputs, small_boosted
from timing import machine

import limbeck

RESULTS = Path(__file__).parent.parent / "experiments" / "results" / "tables"
PACKAGES = ("limbeck", "lightgbm", "catboost", "scikit-learn", "pandas", "numpy")
WIDTH = 38  # of AutoGluon's net: two such layers are about (50, 30)


def measure(name: str, path: Path, folds: int, autogluon: str | None) -> None:
    r"""Measure the folds of one table that are not in its file, and write each as it is done."""
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"folds": []}
    if len(result["folds"]) >= folds:
        return
    X, y, task = table_data.load(name)
    kind = TEACHERS[list(table_data.TABLES).index(name) % len(TEACHERS)]
    X = as_categories(X) if kind == "LightGBM" else X
    splits = KFold if task == "regression" else StratifiedKFold
    parts = list(splits(3, shuffle=True, random_state=0).split(X, y))
    about: dict[str, Any] = {
        "table": name, "package": table_data.TABLES[name].package, "task": task, "teacher": kind,
        "rows": len(X), "columns": X.shape[1],
        "classes": None if task == "regression" else np.bincount(y).tolist(), "seconds": 0.0,
    }  # fmt: skip
    result = about | result
    for k in range(len(result["folds"]), folds):
        began = time.perf_counter()
        result["folds"].append(fold(name, kind, X, y, *parts[k], k, autogluon))
        result["seconds"] += time.perf_counter() - began
        result |= {"machine": machine(), "versions": {name: version(name) for name in PACKAGES}}
        path.write_text(json.dumps(result, indent=1, default=float) + "\n", encoding="utf-8")
        print(f"{name}, fold {k + 1}: {time.perf_counter() - began:.0f} s", flush=True)


def fold(
    name: str, kind: str, X: Any, y: np.ndarray, learn: np.ndarray, test: np.ndarray, seed: int,
    autogluon: str | None,
) -> dict[str, Any]:  # fmt: skip
    r"""Teacher, student and others in one fold."""
    regression = table_data.TABLES[name].task == "regression"
    labels = y[:, None] if regression else np.eye(y.max() + 1)[y]
    rows = X.iloc[learn].reset_index(drop=True)
    full = rows.columns[rows.notna().all()]  # a student refuses gaps where it has seen none
    test = test[X.iloc[test][full].notna().all(axis=1).to_numpy()]
    new = X.iloc[test].reset_index(drop=True)
    codes = table_data.TABLES[name].codes
    teacher = fit_teacher(kind, rows, y[learn], regression, codes, seed)
    clocks = sum(os.times()[:4]), time.perf_counter()  # with those of child processes
    try:
        student = limbeck.compress(teacher, rows, seed=seed, progress=False)
    except Exception as error:  # a result as well
        return {"seed": seed, "error": f"{type(error).__name__}: {error}"}
    cpu, wall = sum(os.times()[:4]) - clocks[0], time.perf_counter() - clocks[1]
    report, size = student.report(new, y[test], time=False), student.cost().bytes
    answers = {"teacher": outputs(teacher, new, regression)}
    answers["student"] = outputs(student, new, regression)
    plain, targets = as_categories(X), outputs(teacher, rows, regression)
    sizes = {"student": size}
    for who, goal in (("labels", labels[learn]), ("soft labels", targets)):
        small, sizes[who] = small_boosted(plain.iloc[learn], goal, regression, size, seed)
        answers[who] = small(plain.iloc[test])
    if autogluon is not None and not seed:  # it takes as long as all else
        answers["autogluon"] = by_autogluon(
            teacher, rows, y[learn], new, regression=regression, width=WIDTH, seed=seed,
            python=autogluon,
        )  # fmt: skip
    models = {who: compared(answers["teacher"], p, labels[test]) for who, p in answers.items()}
    student_rows = models["student"]["rows"]
    pairs = {who: student_rows[0] - models[who]["rows"][0] for who in answers}
    pairs["loss"] = student_rows[1] - models["teacher"]["rows"][1]
    return {
        "seed": seed, "bytes": sizes, "cpu_seconds": cpu, "steps": student.steps,
        "search_seconds": cpu * (1 - student.seconds / wall),  # all but the last training
        "inputs": student.inputs, "sentence": report.sentence(), "notes": student.notes,
        "models": {who: {k: v for k, v in m.items() if k != "rows"} for who, m in models.items()},
        "differences": {k: [d.mean(), d.std() / len(d) ** 0.5] for k, d in pairs.items()},
    }  # fmt: skip


def compared(teacher: np.ndarray, p: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    r"""Measures of predictions (n, K), and the distance and loss of every row."""
    if p.shape[1] == 1:
        rows = [((p - goal) ** 2)[:, 0] / goal.var() for goal in (teacher, labels)]
        distance, loss = (row.mean() for row in rows)
        return {"fidelity": 1 - distance, "distance": distance, "loss": loss, "rows": rows}
    logs, t = (np.log(np.clip(q, 1e-7, 1)) for q in (p, teacher))
    rare = labels.sum(0).argmin()
    return {
        "fidelity": (p.argmax(1) == teacher.argmax(1)).mean(),
        "distance": (teacher * (t - logs)).sum(1).mean(), "loss": -(labels * logs).sum(1).mean(),
        "average_precision": average_precision_score(labels[:, rare], p[:, rare]),
        "rows": [(teacher * (t - logs)).sum(1), -(labels * logs).sum(1)],
    }  # fmt: skip


def summary(results: list[dict[str, Any]]) -> None:
    r"""A line for each table and the medians; then the targets, and what was reached."""
    failed = {r["table"]: f["error"] for r in results for f in r["folds"] if "error" in f}
    figures = {r["table"]: digest(r) for r in results if r["table"] not in failed}
    about = {r["table"]: f"{r['teacher']}, {r['rows']} x {r['columns']}" for r in results}
    table = Table("table", "teacher, rows x columns", *COLUMNS, "loss − teacher's")
    for name, own in figures.items():
        cells = [f"{own[key]:.3g}" if key in own else "" for key in COLUMNS.values()]
        gap, error = own["- loss"]
        table.add_row(name, about[name], *cells, f"{gap:.3g} ± {error:.1g}")
    known = {k: [own[k] for own in figures.values() if k in own] for k in COLUMNS.values()}
    medians = (f"{np.nanmedian(values):.3g}" if values else "" for values in known.values())
    table.add_row("median", "", *medians)
    Console(width=190).print(table)
    print("\n".join(reached(results)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first of three folds")
    parser.add_argument("--only", nargs="+", choices=table_data.TABLES, metavar="NAME")
    parser.add_argument("--run", help="a name for the folder of results; default: full or quick")
    parser.add_argument("--autogluon", metavar="PYTHON", help="a Python that has AutoGluon")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    folder = RESULTS / (options.run or ("quick" if options.quick else "full"))
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.only or table_data.TABLES:
        path = folder / f"{name.replace(' ', '-')}.json"
        measure(name, path, 1 if options.quick else 3, options.autogluon)
        results.append(json.loads(path.read_text(encoding="utf-8")))
    summary(results)


if __name__ == "__main__":
    main()
