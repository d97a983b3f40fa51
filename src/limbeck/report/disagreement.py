r"""What teacher and student predict together: classes crossed, labels of one alone, values.

Each function draws what a report keeps as `pairs`, and gives back a sentence that says what is to
be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limbeck.report.canvas import COLOURS, INK, MUTED

__all__ = ["crossed", "one_sided", "scattered"]

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
