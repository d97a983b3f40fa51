r"""Pictures of a report on a student: calibration, disagreement, subgroups, learning.

Each function draws saved numbers (a report, or what its `to_dict` gave) on one of matplotlib's
axes, its own if none are given, and gives the axes back. Their label, `axes.get_label()`, is a
sentence that says what is to be seen, for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.compression.fidelity.comparison import ERRORS, SMALL, decisive
from limbeck.compression.fidelity.measures import MEASURES
from limbeck.errors import ArgumentError
from limbeck.report import plots
from limbeck.report.canvas import COLOURS, INK, MUTED, drawn_on, save

__all__ = [
    "calibration",
    "crossed",
    "disagreement",
    "learning_curves",
    "one_sided",
    "pictures",
    "scattered",
    "subgroups",
]

CROWDED = 12
r"""Classes from which numbers are set smaller."""

FEW = 5
r"""Disagreements of one kind below which the colour is not the full one."""


def crossed(pairs: Mapping[str, Any], axes: Any) -> str:
    r"""A heat map of the student's classes against the teacher's; agreement is left white."""
    names, counts = pairs["classes"], np.array(pairs["counts"], dtype=float)
    apart = counts * (1 - np.eye(len(names)))
    differ, most = pairs["differ"], apart.max()
    heat = np.ma.masked_equal(apart, 0)
    axes.imshow(heat, cmap="Oranges", vmin=0, vmax=1.4 * max(most, FEW), aspect="equal")
    for row, column in np.argwhere(counts > 0):
        axes.text(
            column, row, f"{counts[row, column]:,.0f}", ha="center", va="center",
            fontsize=6.5 if len(names) > CROWDED else 8, color=MUTED if row == column else INK,
        )  # fmt: skip
    steep = max(map(len, names)) > 3
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if steep else {}
    axes.set_xticks(range(len(names)), names, **turned)
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.set_xlabel("class by the student")
    axes.set_ylabel("class by the teacher")
    said = f"{differ:,} of {counts.sum():,.0f} rows differ"
    axes.set_title(said)
    if not most:
        return f"Classes by teacher and student: {said}."
    row, column = np.unravel_index(apart.argmax(), apart.shape)
    return (
        f"Heat map of classes by teacher and student: {said}; most often, {most:,.0f} times, the "
        f"teacher says {names[row]} and the student {names[column]}."
    )


def one_sided(pairs: Mapping[str, Any], labels: Sequence[Any], axes: Any) -> str:
    r"""Bars of how often only the teacher, or only the student, finds a label."""
    place = np.arange(len(labels))
    for number, (model, shift) in enumerate((("teacher", -0.19), ("student", 0.19))):
        share = 100 * np.array(pairs[model], dtype=float)
        hatch = "///" if number else None
        axes.barh(
            place + shift, share, 0.36, color=COLOURS[number], hatch=hatch, edgecolor="white",
            linewidth=0, label=f"only the {model} says yes",
        )  # fmt: skip
    axes.set_yticks(place, [str(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.set_xlabel("share of rows (%)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    apart = np.add(pairs["teacher"], pairs["student"])
    worst = int(apart.argmax())
    return (
        f"Bars of the shares of rows where only teacher or only student finds a label: "
        f"{apart.mean():.1%} on average, most for {labels[worst]}, {apart[worst]:.1%}."
    )


def scattered(pairs: Mapping[str, Any], target: int, title: str, axes: Any) -> str:
    r"""The student's values of a target against the teacher's, with the diagonal."""
    x, y = (np.array(pairs[model], dtype=float)[:, target] for model in ("teacher", "student"))
    ends = (min(x.min(), y.min()), max(x.max(), y.max()))
    size = 8 if len(x) > 300 else 16
    axes.scatter(x, y, s=size, color=COLOURS[0], alpha=0.5, linewidths=0)
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":", label="equal values")
    axes.set_aspect("equal")
    axes.set_xlabel("value by the teacher")
    axes.set_ylabel("value by the student")
    axes.set_title(title)
    axes.legend(loc="upper left")
    return (
        f"{title}{': v' if title else 'V'}alues by the student against those by the teacher, "
        f"{len(x):,} rows, with a mean difference of {np.abs(x - y).mean():.3g} where the "
        f"teacher's have a standard deviation of {x.std():.3g}."
    )


MARKS = {"teacher": ("o", "-"), "student": ("s", "-"), "baseline": ("^", "--")}
r"""Marks and lines of models, which differ without colours too."""

GROUPS = 24
r"""Subgroups in a picture."""


def calibration(report: Any, axes: Any = None) -> Any:
    r"""How often predictions are right, against how sure they are; on the diagonal, as often.

    Arguments:
        report: A classifier's report with labels, or its dict.
        axes: Where to draw; None for a figure of its own.
    """
    found = _saved(report)
    if not found["calibration"]:
        received = "a report without calibration curves"
        raise ArgumentError("report", received, "one of a classifier, with labels")
    return drawn_on(axes, (4.4, 4.4), partial(_curves, found))


def disagreement(report: Any, axes: Any = None, *, target: int = 0) -> Any:
    r"""Where teacher and student disagree.

    Of a classifier, the student's classes against the teacher's; of a multi-label one, how often
    only one of both says yes; of values, the student's against the teacher's.

    Arguments:
        report: A report, or its dict.
        axes: Where to draw; None for a figure of its own.
        target: Which target, if there are several.
    """
    found = _saved(report)
    names = found["classes"]
    if found["task"] == "classification":
        side = 1.6 + 0.36 * len(found["pairs"]["classes"])
        return drawn_on(axes, (side, side), partial(crossed, found["pairs"]))
    if found["task"] == "multilabel":
        return drawn_on(
            axes, (4.8, 1.2 + 0.34 * len(names)), partial(one_sided, found["pairs"], names)
        )
    if not 0 <= target < len(names):
        raise ArgumentError("target", target, f"a number from 0 to {len(names) - 1}")
    title = str(names[target]) if len(names) > 1 else ""
    return drawn_on(axes, (4.4, 4.4), partial(scattered, found["pairs"], target, title))


def subgroups(
    report: Any, axes: Any = None, *, column: str | None = None, measure: str | None = None
) -> Any:
    r"""How much better or worse the student is than the teacher, by subgroup.

    Lines are three paired standard errors to either side; groups where the student is worse by more
    than that have a mark of their own. Without labels, the student in the group is compared with
    itself elsewhere.

    Arguments:
        report: A report with groups, or its dict.
        axes: Where to draw; None for a figure of its own.
        column: Which column's groups; None for all.
        measure: What is compared, such as "log_probability"; None for accuracy, the root mean
            square error, or without labels agreement.
    """
    found = _saved(report)
    if not (groups := found["by_group"]):
        raise ArgumentError("report", "a report without subgroups", "one made with groups=")
    if column is not None and column not in groups:
        raise ArgumentError.unknown("column", column, groups)
    other, deciding = decisive(found["task"], bool(found["differences"]["teacher"]))
    measure = deciding if measure is None else measure
    rows = [
        (name, group, part["rows"], gap)
        for name, parts in groups.items()
        if column in (None, name)
        for group, part in parts.items()
        if (gap := part["differences"].get(other, {}).get(measure)) and gap[0] is not None
    ]
    if not rows:
        raise ArgumentError("measure", repr(measure), "a measure that the report has by group")
    size = (5.6, 1.1 + 0.26 * min(len(rows), GROUPS))
    return drawn_on(axes, size, partial(_gaps, rows, measure, other))


def learning_curves(
    history: Mapping[str, Sequence[float]], axes: Any = None, *, names: Sequence[str] | None = None
) -> Any:
    r"""What a run wrote down, against its steps.

    Arguments:
        history: A result's history: "step", "loss", terms of the loss, metrics.
        axes: Where to draw; None for a figure of its own.
        names: Which columns; None for all.
    """
    if not history.get("step"):
        raise ArgumentError("history", "no steps", "the history of a run")
    chosen = [name for name in history if name != "step"] if names is None else list(names)
    for name in chosen:
        if name not in history:
            raise ArgumentError.unknown("names", name, set(history) - {"step"})
    return drawn_on(axes, (4.8, 3.2), partial(_learning, history, chosen))


def pictures(
    report: Any, folder: str | Path, history: Mapping[str, Sequence[float]] | None = None
) -> dict[str, str]:
    r"""Draw all that a report has, as files.

    Arguments:
        report: A report, or its dict.
        folder: Where to.
        history: A result's history, for its learning curves.

    Returns:
        For each picture that was written, by its file's name, what it shows in words.
    """
    found = _saved(report)
    drawn = {"disagreement": disagreement(found)}
    if found["calibration"]:
        drawn["calibration"] = calibration(found)
    if found["by_group"]:
        drawn["subgroups"] = subgroups(found)
    if history is not None and history.get("step"):
        drawn["learning"] = learning_curves(history)
    said = {}
    for name, axes in drawn.items():
        path = save(axes.figure, Path(folder) / f"{name}.png", axes.get_label())
        said[path.name] = axes.get_label()
    return said


def _saved(report: Any) -> Mapping[str, Any]:
    found = report.to_dict() if hasattr(report, "to_dict") else report
    if not isinstance(found, Mapping) or "by_group" not in found:
        raise ArgumentError("report", f"a {type(report).__name__}", "a Fidelity, or its to_dict()")
    return found


def _curves(found: Mapping[str, Any], axes: Any) -> str:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":", zorder=1)
    said, low = [], 1.0
    for number, (model, curve) in enumerate(found["calibration"].items()):
        mark, line = MARKS[model]
        error = [0.0 if each is None else each for each in curve["std_error"]]
        value = found["measures"][model]["ece"][0]
        name = f"{found['names'][model]}: {value:.1%}"
        axes.errorbar(
            curve["confidence"], curve["frequency"], error, marker=mark, linestyle=line,
            markersize=4, elinewidth=0.8, color=COLOURS[number], label=name,
        )  # fmt: skip
        low = min([low, *curve["confidence"], *curve["frequency"]])
        said.append(name)
    low = max(0.0, low - 0.04)
    axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
    right = "label is there" if found["task"] == "multilabel" else "prediction is right"
    axes.set_xlabel("mean confidence in a bin")
    axes.set_ylabel(f"share of the bin where the {right}")
    # above the axes: curves may be anywhere
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, title_fontsize=8)
    axes.get_legend().set(title="calibration error", alignment="left")
    return f"Calibration curves, with expected calibration errors: {', '.join(said)}."


def _gaps(rows: list[Any], measure: str, other: str, axes: Any) -> str:
    known = MEASURES[measure]
    scale, unit = (100, " (points)") if known.share else (1, "")
    sign = 1 if known.rises else -1

    def score(row: Any) -> float:
        return sign * row[3][0] / max(row[3][1] or 0.0, 1e-12)

    several = len({row[0] for row in rows}) > 1
    total, worst = len(rows), sorted(rows, key=score)[:GROUPS]
    rows = [row for row in rows if row in worst]
    said = []
    axes.axvline(0, color=MUTED, linewidth=1)
    for place, (name, group, count, (value, error)) in enumerate(rows):
        worse = count >= SMALL and score((name, group, count, (value, error))) < -ERRORS
        half = ERRORS * scale * (error or 0.0)
        axes.errorbar(
            scale * value, place, xerr=half, marker="D" if worse else "o", markersize=5,
            color=COLOURS[1] if worse else COLOURS[0], elinewidth=1.2,
        )  # fmt: skip
        if worse:
            said.append(f"{name} = {group} ({scale * value:+.3g} ± {half:.2g})")
    names = [f"{n}: {g}" if several else str(g) for n, g, *_ in rows]
    axes.set_yticks(
        range(len(rows)), [f"{n}  ({r[2]:,})" for n, r in zip(names, rows, strict=True)]
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(False, axis="y")
    better = "right" if known.rises else "left"
    axes.set_xlabel(f"{known.title}, student − {other}{unit}\n± {ERRORS:g} standard errors")
    axes.set_ylabel("group (rows)" if several else f"{rows[0][0]} (rows)")
    title = f"better to the {better}" + ", ◆ clearly worse" * bool(said)
    axes.set_title(title if total == len(rows) else f"{title}; {len(rows)} worst of {total}")
    found = f"clearly worse in {'; '.join(said)}" if said else "clearly worse in none"
    return f"{known.title} of the student minus that of {other}, in {len(rows)} groups: {found}."


def _learning(history: Mapping[str, Sequence[float]], chosen: list[str], axes: Any) -> str:
    curves = {name: (history["step"], history[name]) for name in chosen}
    alone = len(chosen) == 1
    said = plots.progress(axes, curves, label=chosen[0] if alone else "loss and measures")
    plots.falls(axes, np.concatenate([history[name] for name in chosen]))
    if alone:
        axes.get_legend().remove()
    return said
