r"""Pictures of a student beside its teacher: calibration, disagreement, subgroups, learning.

Each function takes a saved result of `compress`, its folder, a `Fidelity` or its `to_dict()`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limbeck.arguments import CountFromZero, Text, UserObject, choice
from limbeck.compression.fidelity import tables
from limbeck.compression.fidelity.comparison import ERRORS, decisive
from limbeck.compression.fidelity.measures import MEASURES, Figure
from limbeck.compression.fidelity.report import Fidelity
from limbeck.errors import ArgumentError
from limbeck.report.canvas import (
    COLOURS,
    INK,
    MUTED,
    MaybeAxes,
    MissingDataError,
    against,
    fit,
    legend_above,
    picture,
    rows_below,
)
from limbeck.storage import Saved, as_saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUPS = 24  # subgroups in a picture, at most
History = Mapping[str, Sequence[float]]


def _report(given: Any) -> Fidelity:
    if isinstance(given, Saved | str | Path):
        given = as_saved(given).content.get("fidelity")
        if not given:
            received = "a result without a comparison"
            raise ArgumentError("saved", received, "one of compress, with rows")
    return given if isinstance(given, Fidelity) else Fidelity.from_dict(given)


def _history(given: Any) -> History:
    whole = not isinstance(given, Mapping) or "step" not in given
    return as_saved(given).content["history"] if whole else given


Report = UserObject[Any]


@picture(4.8, 3.2, _history)
def learning(
    saved: UserObject[Saved | str | Path | History], ax: MaybeAxes = None, *,
    name: Text | None = None,
) -> str:  # fmt: skip
    r"""Losses and measures against steps; only the first if their scales differ much.

    Arguments:
        saved: Also a result's history alone: "step", "loss", terms of the loss, metrics.
        name: One column of the history, to be drawn alone. Default: None, all.
    """
    history: Any = saved  # as it was read
    if not (groups := columns_together(history)):
        raise ArgumentError("saved", "a result without a history", "one of a distillation")
    columns = groups[0] if name is None else [name]
    choice("name", columns[0], history.keys())
    label = "loss and measures" if len(columns) > 1 else columns[0].replace("_", " ")
    steps = history["step"]
    if any(len(history[column]) != len(steps) for column in columns):
        raise ArgumentError("saved", "columns of different lengths", "a value for each step")
    values = np.array([history[column] for column in columns], float)
    from matplotlib.ticker import LogLocator

    for column, curve, colour in zip(columns, values, cycle(COLOURS), strict=False):
        ax.plot(steps, curve, color=colour, label=column)
    ax.set(xlabel="steps", ylabel=label)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    if len(columns) > 1:
        ax.legend(loc="best")
    ends = "; ".join(f"{c} ends at {y[-1]:.2f}" for c, y in zip(columns, values, strict=True))
    if values.min() > 0 and values.max() > 5 * values.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
    return f"Line plot of {label} against training steps: {ends}."


def columns_together(history: History) -> list[list[str]]:
    r"""Columns of a history in one group, or in groups of their own if their scales differ much."""
    names = [name for name in history if name not in ("step", "gradient_norm", "seconds")]
    if not history.get("step") or not names:
        return []
    sizes = [abs(history[name][-1] or 0.0) for name in names]
    return [names] if max(sizes) <= 50 * max(min(sizes), 1e-12) else [[name] for name in names]


@picture(4.4, 4.4, _report)
def calibration(saved: Report, ax: MaybeAxes = None) -> str:
    r"""Calibration curves: the share of right predictions against the confidence.

    Arguments:
        saved: Of a classifier, with labels.
    """
    if not saved.calibration:
        received = "a report without calibration curves"
        raise MissingDataError("report", received, "one of a classifier, with labels")
    marks = {"teacher": ("o", "-"), "student": ("s", "-")}
    marks |= {"baseline": ("^", "--"), "trees": ("v", "--")}
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":", zorder=1)
    texts, low = [], 1.0
    for number, (model, curve) in enumerate(saved.calibration.items()):
        mark, line = marks[model]
        error = np.array(curve["std_error"], float)  # NaN where it is not known
        texts.append(f"{saved.names[model]}: {saved.measures[model]['ece'].value:.1%}")
        ax.errorbar(
            curve["confidence"], curve["frequency"], error, marker=mark, linestyle=line,
            markersize=4, elinewidth=0.8, color=COLOURS[number], label=texts[-1],
        )  # fmt: skip
        low = min([low, *curve["confidence"], *curve["frequency"]])
    ends = (max(0.0, low - 0.04), 1.02)
    right = "label is there" if saved.task == "multilabel" else "prediction is right"
    ax.set(xlim=ends, ylim=ends, aspect="equal", xlabel="mean confidence in a bin")
    ax.set_ylabel(f"share of the bin where the {right}")
    # above the axes: curves may be anywhere
    legend = ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, title_fontsize=8)
    legend.set(title="calibration error", alignment="left")
    return f"Calibration curves, with expected calibration errors: {', '.join(texts)}."


@picture(4.4, 4.4, _report)
def disagreement(saved: Report, ax: MaybeAxes = None, *, target: CountFromZero = 0) -> str:
    r"""Where teacher and student disagree.

    For a classifier, the student's classes against the teacher's; for multilabel classification,
    how often only one of them predicts a label; for values, the student's against the teacher's.

    Arguments:
        target: The number of the target, if there are several. Default: 0.
    """
    pairs, names = saved.pairs, list(map(_short, saved.classes))
    if saved.task == "classification":
        return _heat_map(ax, pairs)
    if saved.task == "multilabel":
        return _label_bars(ax, pairs, names)
    if target >= len(names):
        raise ArgumentError("target", target, f"a number from 0 to {len(names) - 1}")
    title = names[target] if len(names) > 1 else ""
    x, y = (np.array(pairs[model], dtype=float)[:, target] for model in ("teacher", "student"))
    against(ax, x, y, "value", ("the teacher", "the student"))
    ax.set(aspect="equal", title=title)
    return (
        f"{title}{': v' if title else 'V'}alues by the student against those by the teacher, "
        f"{len(x):,} rows, with a mean difference of {np.abs(x - y).mean():.3g} where the "
        f"teacher's have a standard deviation of {x.std():.3g}."
    )


def _heat_map(ax: Axes, pairs: Mapping[str, Any]) -> str:
    r"""The student's classes against the teacher's; agreement is left white."""
    names, counts = list(map(_short, pairs["classes"])), np.array(pairs["counts"], dtype=float)
    fit(ax, *(1.6 + 0.36 * len(names),) * 2)
    differing = counts * (1 - np.eye(len(names)))
    most = differing.max()
    # few disagreements must not look like many: the full colour needs at least 5
    heat = np.ma.masked_equal(differing, 0)
    ax.imshow(heat, cmap="Oranges", vmin=0, vmax=1.4 * max(most, 5), aspect="equal")
    for row, column in np.argwhere(counts > 0):
        ax.text(
            column, row, f"{counts[row, column]:,.0f}", ha="center", va="center",
            fontsize=6.5 if len(names) > 12 else 8, color=MUTED if row == column else INK,
        )  # fmt: skip
    slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, **(slant if max(map(len, names)) > 3 else {}))
    ax.set_yticks(range(len(names)), names)
    ax.grid(False)
    text = f"{pairs['differ']:,} of {counts.sum():,.0f} rows differ"
    ax.set(xlabel="class by the student", ylabel="class by the teacher", title=text)
    if not most:
        return f"Classes by teacher and student: {text}."
    row, column = np.unravel_index(differing.argmax(), differing.shape)
    return (
        f"Heat map of classes by teacher and student: {text}; most often, {most:,.0f} times, the "
        f"teacher says {names[row]} and the student {names[column]}."
    )


def _label_bars(ax: Axes, pairs: Mapping[str, Any], names: list[str]) -> str:
    r"""How often only the teacher, or only the student, predicts a label."""
    place = np.arange(len(names))
    fit(ax, 4.8, 1.2 + 0.34 * len(names))
    for number, (model, shift) in enumerate((("teacher", -0.19), ("student", 0.19))):
        ax.barh(
            place + shift, 100 * np.array(pairs[model], dtype=float), 0.36, color=COLOURS[number],
            hatch="///" if number else None, edgecolor="white", linewidth=0,
            label=f"only the {model} predicts it",
        )  # fmt: skip
    rows_below(ax, names)
    ax.set_xlabel("share of rows (%)")
    legend_above(ax)
    differing = np.add(pairs["teacher"], pairs["student"])
    worst = int(differing.argmax())
    return (
        f"Bars of the shares of rows where only teacher or only student predicts a label: "
        f"{differing.mean():.1%} on average, most for {names[worst]}, {differing[worst]:.1%}."
    )


@picture(4.4, 4.4, _report)
def subgroups(saved: Report, ax: MaybeAxes = None) -> str:
    r"""How much better or worse the student is than the teacher, by subgroup.

    It is compared by accuracy, the root mean square error, or without labels by the student's
    agreement in a group and on all other rows. Lines are three paired standard errors on either
    side; groups in which the student is worse by more than that are marked.
    """
    other, measure = decisive(saved.task, saved.labelled)
    gaps: list[tuple[str, str, int, Figure]] = [  # the worst first
        (column, group, part.rows, gap)
        for column, group, part in tables.groups(saved, worst=True)
        if (gap := part.differences.get(other, {}).get(measure)) and not math.isnan(gap.value)
    ]
    if not gaps:
        raise MissingDataError("report", "a report without subgroups", "one made with groups=")
    order = [part[:2] for part in tables.groups(saved)]
    shown = sorted(gaps[:GROUPS], key=lambda gap: order.index(gap[:2]))
    kind, several, texts, names = MEASURES[measure], len(saved.by_group) > 1, [], []
    scale, unit = (100, " (points)") if kind.share else (1, "")
    fit(ax, 5.6, 1.1 + 0.26 * len(shown))
    ax.axvline(0, color=MUTED, linewidth=1)
    for place, (column, group, count, gap) in enumerate(shown):
        worse, name = (column, group) in saved.worse, _short(group, place)
        value, half = scale * gap.value, ERRORS * scale * np.nan_to_num(gap.std_error)
        ax.errorbar(
            value, place, xerr=half, marker="D" if worse else "o", markersize=5,
            color=COLOURS[1] if worse else COLOURS[0], elinewidth=1.2,
        )  # fmt: skip
        names.append(
            f"{_short(column)}: {name}  ({count:,})" if several else f"{name}  ({count:,})"
        )
        texts += [f"{_short(column)} = {name} ({value:+.3g} ± {half:.2g})"] if worse else []
    rows_below(ax, names)
    ax.set_xlabel(f"{kind.title}, student − {other}{unit}\n± {ERRORS:g} standard errors")
    ax.set_ylabel("group (rows)" if several else f"{_short(shown[0][0])} (rows)")
    title = f"better to the {'right' if kind.rises else 'left'}"
    title += ", ◆ clearly worse" if texts else ""
    title += f"; {len(shown)} worst of {len(gaps)}" if len(gaps) > len(shown) else ""
    ax.set_title(title)
    return (
        f"{kind.title} of the student minus that of {other}, in {len(shown)} groups: "
        f"clearly worse in {'; '.join(texts) or 'none'}."
    )


def _short(name: object, number: int | None = None) -> str:
    r"""A name of at most 28 letters or so; a number keeps long names distinct."""
    text = str(name)
    return text if len(text) <= 28 else f"{text[:24]}…{'' if number is None else number}"
