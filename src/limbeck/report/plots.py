r"""Curves and intervals: training, log probabilities side by side, estimates of log Z.

Each function draws saved numbers on one of matplotlib's axes and gives back a sentence that says
what is to be seen, for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, MUTED

__all__ = ["falls", "intervals", "progress", "sorted_log_probabilities"]

Curve = tuple[Sequence[float], Sequence[float]]
r"""Numbers along the horizontal axis, and along the vertical one."""

FAR = 5.0
r"""The ratio of the largest to the least value from which a scale is logarithmic."""

WIDTH = 3.0
r"""Standard errors on either side of an estimate, as in the source text."""


def progress(
    axes: Any,
    curves: Mapping[str, Curve],
    *,
    label: str = "test log probability (nats)",
    reference: tuple[str, float] | None = None,
) -> str:
    r"""Curves of training: something against the number of steps.

    Arguments:
        axes: Where to draw.
        curves: Steps and values, by name.
        label: What the values are, with their unit.
        reference: A name and a value to compare with, drawn as a level line.
    """
    for number, (name, curve) in enumerate(_some(curves).items()):
        x, y = _pair(name, curve)
        axes.plot(x, y, color=_colour(number), label=name)
    if reference is not None:
        axes.axhline(reference[1], color=MUTED, linestyle="--", linewidth=1, label=reference[0])
    axes.set_xlabel("steps")
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(_thousands)
    axes.legend(loc="best")
    ends = [f"{name} ends at {_last(curve):.2f}" for name, curve in curves.items()]
    level = "" if reference is None else f" The dashed line is {reference[0]}, {reference[1]:.2f}."
    return f"Line plot of {label} against training steps: {'; '.join(ends)}.{level}"


def falls(axes: Any, values: Any) -> None:
    r"""A logarithmic scale for values that fall far: the first would hide the rest."""
    from matplotlib.ticker import LogLocator

    found = np.asarray(values, dtype=float)
    if found.min() > 0 and found.max() > FAR * found.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()


def sorted_log_probabilities(
    axes: Any,
    teacher: Sequence[float],
    student: Sequence[float],
    *,
    names: tuple[str, str] = ("RBM", "NADE"),
) -> str:
    r"""Log probabilities of the same images, which are sorted by what the teacher gives them.

    Arguments:
        axes: Where to draw.
        teacher: Of each image, (n,).
        student: Of each image, (n,), in the same order.
        names: What the two are called.
    """
    one, two = _numbers("teacher", teacher), _numbers("student", student)
    if len(one) != len(two):
        raise ArgumentError("student", f"{len(two)} numbers", f"{len(one)}, as of the teacher")
    order = np.argsort(-one, kind="stable")
    place = np.arange(1, len(one) + 1)
    axes.plot(place, two[order], ".", color=COLOURS[1], markersize=2.5, label=names[1])
    axes.plot(place, one[order], color=COLOURS[0], label=names[0])
    axes.set_xlabel(f"image, by its log probability under the {names[0]}")
    axes.set_ylabel("log probability (nats)")
    axes.legend(loc="lower left", markerscale=3)
    gap = two - one
    return (
        f"Log probabilities of {len(one):,} images in falling order of the {names[0]}'s, with the "
        f"{names[1]}'s scattered about them: on average {abs(gap.mean()):.2f} nats "
        f"{'above' if gap.mean() > 0 else 'below'}, with a standard deviation of "
        f"{gap.std():.2f} nats."
    )


def intervals(
    axes: Any,
    estimates: Mapping[str, Mapping[str, Any]],
    *,
    reference: tuple[str, float, float, float] | None = None,
    bounds: bool = False,
) -> str:
    r"""Estimates of log Z below one another, with three standard errors on either side.

    Doubtful and unchecked ones are drawn hollow and dashed.

    Arguments:
        axes: Where to draw.
        estimates: By name, what `LogPartition.to_dict` gives: value, std_error, trustworthy,
            state, bounds.
        reference: Name, value, and ends of an interval to compare with, drawn as a band.
        bounds: Whether to mark lower and upper bounds too, which may be far away.
    """
    if reference is not None:
        _, middle, low, high = reference
        axes.axvspan(low, high, color=COLOURS[4], alpha=0.25, linewidth=0, label=reference[0])
        axes.axvline(middle, color=COLOURS[4], linewidth=1)
    said, seen = [], set[str]()
    for place, (name, estimate) in enumerate(_some(estimates).items()):
        value, half = float(estimate["value"]), WIDTH * float(estimate["std_error"])
        trusted = bool(estimate.get("trustworthy", True))
        colour = COLOURS[0] if trusted else COLOURS[1]
        line = "-" if trusted else (0, (2, 2))
        axes.hlines(place, value - half, value + half, color=colour, linestyle=line, linewidth=2)
        kind = estimate.get("state", "trustworthy" if trusted else "doubtful")
        label = None if kind in seen else kind
        seen.add(kind)
        axes.plot(
            value, place, "o", color=colour, mfc=colour if trusted else "white", markersize=5,
            label=label,
        )  # fmt: skip
        if bounds:
            for bound, mark in (("lower", ">"), ("upper", "<")):
                found = (estimate.get("bounds") or {}).get(bound)
                if found is not None:
                    axes.plot(found[0], place, mark, color=MUTED, markersize=5)
        said.append(f"{name} {value:.3f} ± {half:.3f}{'' if trusted else f' ({kind})'}")
    axes.set_yticks(range(len(estimates)), list(estimates))
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.set_xlabel("log Z (nats), ± 3 standard errors")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)  # above the axes
    band = ""
    if reference is not None:
        band = f" The band is {reference[0]}: {middle:.2f} ({low:.2f} to {high:.2f})."
    return f"Estimates of log Z with three standard errors: {'; '.join(said)}.{band}"


def _some(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not given:
        raise ArgumentError("curves", "nothing to draw", "one or more, by name")
    return given


def _pair(name: str, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    x, y = (_numbers(name, part) for part in curve)
    if len(x) != len(y):
        raise ArgumentError(name, f"{len(x)} and {len(y)} numbers", "as many of each")
    return x, y


def _numbers(argument: str, values: Any) -> np.ndarray:
    found = np.asarray(values, dtype=float)
    if found.ndim != 1 or not len(found):
        raise ArgumentError(argument, f"shape {found.shape}", "a list of numbers")
    return found


def _last(curve: Curve) -> float:
    return float(curve[1][-1])


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _thousands(value: float, _: Any = None) -> str:
    return f"{value:,.0f}"
