r"""Real tables and their serving, for `page.py`: means over folds, and what was to be reached."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from page_lines import heading, lines, short

__all__ = ["COLUMNS", "digest", "reached", "serving_table", "tables_table"]

MEDIAN, WORST, BELOW = 0.95, 0.90, 2  # of the fidelity; tables that may be below the worst
SHARES = {"loss": 0.8, "labels": 0.9, "autogluon": 0.8}  # of the tables
COLUMNS = {
    "fidelity": "fidelity_student", "labels": "fidelity_labels", "distance": "distance_student",
    "of labels": "distance_labels", "of soft labels": "distance_soft labels",
    "of AutoGluon": "distance_autogluon", "loss": "loss_student", "AP retained": "retained",
    "CPU s": "cpu_seconds", "of them search": "search_seconds", "kB": "kB",
}  # fmt: skip


def digest(result: dict[str, Any]) -> dict[str, Any]:
    r"""Means over the folds of one table, and differences from others with their errors.

    Errors are over all test rows: no row is in two folds, and three folds alone would say little.
    """
    values: dict[str, list[Any]] = {}
    for fold in result["folds"]:
        own = fold | {"kB": fold["bytes"]["student"] / 1000}
        own |= {f"{k}_{who}": m[k] for who, m in fold["models"].items() for k in m}
        own |= {f"- {name}": pair for name, pair in fold["differences"].items()}
        for name, value in own.items():
            values.setdefault(name, []).append(value)
    means = {k: statistics.mean(v) for k, v in values.items() if isinstance(v[0], int | float)}
    if result["classes"]:
        student, teacher = (means[f"average_precision_{who}"] for who in ("student", "teacher"))
        means["retained"] = student / teacher
    for name in [name for name in values if name.startswith("- ")]:
        gaps, errors = zip(*values[name], strict=True)
        means[name] = statistics.mean(gaps), math.hypot(*errors) / len(errors)
    return means


def reached(results: list[dict[str, Any]]) -> list[str]:
    r"""What was to be reached over all tables, and what was."""
    failed = {r["table"]: f["error"] for r in results for f in r["folds"] if "error" in f}
    figures = {r["table"]: digest(r) for r in results if r["table"] not in failed}
    fidelity = {name: own["fidelity_student"] for name, own in figures.items()}
    fidelity |= dict.fromkeys(failed, 0.0)
    low = [name for name in fidelity if fidelity[name] < WORST]
    texts = [f"{name} failed: {error}" for name, error in failed.items()]
    texts += [
        f"fidelity: median {statistics.median(fidelity.values()):.3f}, must be {MEDIAN}",
        f"tables below {WORST}: {len(low)}, at most {BELOW}: {', '.join(low) or 'none'}",
    ]
    for who, share in SHARES.items():
        pairs = {n: own[f"- {who}"] for n, own in figures.items() if f"- {who}" in own}
        if not pairs:
            continue
        limits = {n: 2 * error if who == "loss" else 0 for n, (_, error) in pairs.items()}
        worse = [name for name, (gap, _) in pairs.items() if gap > limits[name]]
        rule = "loss no worse than the teacher's" if who == "loss" else f"nearer than {who}"
        texts.append(
            f"{rule}: {len(pairs) - len(worse)} of {len(pairs)} tables, must be {share:.0%}; "
            f"not: {', '.join(worse) or 'none'}"
        )
    return texts


def tables_table(folder: Path) -> str:
    r"""A line for each table, means over its folds, and what was reached."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    heads = ["table", "teacher", "rows × columns", "folds", *COLUMNS, "loss − teacher's"]
    good = [r for r in results if not any("error" in f for f in r["folds"])]
    figures = {r["table"]: digest(r) for r in good}
    known = [head for head, key in COLUMNS.items() if any(key in own for own in figures.values())]
    heads = [head for head in heads if head in known or head not in COLUMNS]

    def cells(result: dict[str, Any]) -> Iterable[str]:
        own = figures[result["table"]]
        yield result["table"]
        yield result["teacher"]
        yield f"{result['rows']:,} × {result['columns']}"
        yield str(len(result["folds"]))
        for head in known:
            key = COLUMNS[head]
            yield "" if key not in own else _cell(key, own[key])
        gap, error = own["- loss"]
        yield f"{gap:+.4f} ± {error:.4f}"

    rows = [heading(results[0]["machine"]), "", *lines(heads, map(cells, good)), ""]
    return "\n".join([*rows, *(f"* {text}" for text in reached(results))])


def _cell(key: str, value: float) -> str:
    if key.startswith("fidelity") or key == "retained":
        return f"{value:.3f}"
    return f"{value:.2g}" if key.startswith("distance") else short(value)


def serving_table(path: Path) -> str:
    r"""Microseconds of one row, of all forms and both tables."""
    record = json.loads(path.read_text())
    parts = {name: part for name, part in record.items() if isinstance(part, dict)}
    times = {name: part["microseconds"] for name, part in parts.items()}
    forms = dict.fromkeys(form for part in times.values() for form in part)
    title = f"### {record['processor']}, 1 thread, onnxruntime {record['onnxruntime']}"
    rows = [
        [form, *(short(part[form]["median"]) if form in part else "" for part in times.values())]
        for form in forms
    ]
    return "\n".join([title, "", *lines(["µs a row", *times], rows)])
