r"""Pictures of students beside teachers: learning, calibration, disagreement, subgroups."""

from __future__ import annotations

from functools import partial
from typing import Any

from limbeck.errors import ArgumentError
from limbeck.report import fidelity_plots as reports
from limbeck.report.canvas import drawn_on
from limbeck.report.plots import falls, progress
from limbeck.storage.folder import as_saved

__all__ = ["calibration", "disagreement", "learning", "measures", "subgroups"]

LETTERS = 28
r"""Letters of a name in a picture."""

ASIDE = ("step", "gradient_norm", "seconds")
r"""What a history has beside losses and measures."""


def learning(saved: Any, ax: Any = None) -> Any:
    r"""Losses and measures against steps."""
    history = dict(as_saved(saved).content["history"])
    names = [name for name in history if name not in ASIDE]
    if not history.get("step") or not names:
        raise ArgumentError("saved", "a result without a history", "one of a distillation")
    if len(names) > 1 and _alike([history[name] for name in names]):
        return reports.learning_curves(history, ax, names=names)
    return reports.learning_curves(history, ax, names=names[:1])


def calibration(saved: Any, ax: Any = None) -> Any:
    r"""How often predictions are right, against how sure they are."""
    return reports.calibration(_fidelity(saved), ax)


def disagreement(saved: Any, ax: Any = None) -> Any:
    r"""Where teacher and student disagree: classes, labels or values."""
    return reports.disagreement(_fidelity(saved), ax)


def subgroups(saved: Any, ax: Any = None) -> Any:
    r"""How much better or worse the student is, by subgroup."""
    return reports.subgroups(_fidelity(saved), ax)


def measures(saved: Any, ax: Any = None, *, name: str) -> Any:
    r"""One column of the history against steps, on a scale of its own."""
    history = as_saved(saved).content["history"]
    if name not in history:
        raise ArgumentError.unknown("name", name, set(history) - {"step"})
    return drawn_on(ax, (4.4, 2.9), partial(_column, history, name))


def _column(history: Any, name: str, axes: Any) -> str:
    said = progress(axes, {name: (history["step"], history[name])}, label=name.replace("_", " "))
    falls(axes, history[name])
    axes.get_legend().remove()
    return said


def _fidelity(saved: Any) -> Any:
    found = as_saved(saved).content.get("fidelity")
    if not found:
        raise ArgumentError("saved", "a result without a comparison", "one of compress, with rows")
    names = list(map(_short, found["classes"]))
    pairs = dict(found["pairs"])
    if "classes" in pairs:
        pairs["classes"] = list(map(_short, pairs["classes"]))
    groups = {
        _short(column): {_short(group, k): part for k, (group, part) in enumerate(parts.items())}
        for column, parts in found["by_group"].items()
    }
    return {**found, "classes": names, "pairs": pairs, "by_group": groups}


def _short(name: Any, place: int | None = None) -> str:
    r"""A name that leaves room for the picture; a number keeps long ones apart."""
    text = str(name)
    if len(text) <= LETTERS:
        return text
    return f"{text[: LETTERS - 4]}…{'' if place is None else place}"


def _alike(columns: list[list[float]]) -> bool:
    r"""Whether curves can share a scale: their ends are within a factor of fifty."""
    sizes = [abs(column[-1] or 0.0) for column in columns]
    return max(sizes) <= 50 * max(min(sizes), 1e-12)
