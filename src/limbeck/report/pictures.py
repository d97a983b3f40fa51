r"""Pictures of saved results.

Each function takes a saved result (from `limbeck.storage.read`, or its folder), draws on the
matplotlib axes `ax`, or on those of a new figure, and returns the axes. `axes.get_label()` is a
text description of the picture (alt text).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from limbeck import arguments as arg
from limbeck.errors import ArgumentError
from limbeck.report import plots
from limbeck.report.canvas import (
    COLOURS,
    INK,
    MUTED,
    MaybeAxes,
    MissingDataError,
    SavedResult,
    axes_for,
)
from limbeck.report.fidelity_plots import calibration, disagreement, learning, subgroups
from limbeck.storage import Saved, as_saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "calibration", "curve", "difference", "disagreement", "examples", "features", "learning",
    "log_probabilities", "log_z", "ranks", "samples", "subgroups", "surface", "weights", "worth",
]  # fmt: skip

MODELS = ("teacher", "student")
Model = Annotated[str, arg.Choice(*MODELS)]
Output = arg.CountFromZero
PREDICTORS = {"teacher": "average of all draws", "student": "student"}


@arg.checked_arguments
def weights(saved: SavedResult, ax: MaybeAxes = None) -> Axes:
    r"""The student's pseudo-draws among draws of the posterior, by their first two coordinates.

    Discs grow with the weights of pseudo-draws.
    """
    result = as_saved(saved)
    bag = _array(result, "pseudo_draws", "a bag of pseudo-draws", "condense")
    if bag.shape[1] < 2:
        raise MissingDataError("saved", "draws of one number", "draws of two or more")
    share, draws = result.arrays["pseudo_weights"], result.arrays.get("draws")
    with axes_for(ax, (4.2, 4.0)) as ax:
        if draws is not None:
            ax.plot(
                draws[:, 0], draws[:, 1], ".", color=MUTED, markersize=2, alpha=0.5,
                label=f"{len(draws):,} draws", rasterized=True,
            )  # fmt: skip
        ax.scatter(
            bag[:, 0], bag[:, 1], s=300 * share / max(share.max(), 1e-12) / 3 + 10,
            color=COLOURS[1], edgecolor="white", linewidth=0.6, zorder=3,
            label=f"{len(bag)} pseudo-draws",
        )  # fmt: skip
        names = coordinate_names(result)
        ax.set(xlabel=names[0], ylabel=names[1])
        plots.legend_above(ax)
        ax.set_label(
            f"The student's {len(bag)} pseudo-draws among {0 if draws is None else len(draws):,} "
            f"draws of the posterior, by {names[0]} and {names[1]}; their weighted means are "
            f"({share @ bag[:, 0]:.3g}, {share @ bag[:, 1]:.3g})."
        )
    return ax


def coordinate_names(saved: Saved) -> list[str]:
    r"""Names of a draw's coordinates: those of the diagnostics, if they are complete."""
    dim = saved.arrays["pseudo_draws"].shape[1]
    names = (saved.content.get("diagnostics") or {}).get("names", [])
    return list(names) if len(names) == dim else [f"draw[{k}]" for k in range(dim)]


@arg.checked_arguments
def surface(
    saved: SavedResult, ax: MaybeAxes = None, *, model: Model = "student", output: Output = 0
) -> Axes:
    r"""Predictions over two inputs, or a density of two variables.

    Arguments:
        saved: A saved result of `condense`.
        ax: Where to draw. Default: None, a new figure.
        model: "teacher" or "student". Default: "student".
        output: The class or output. Default: 0.
    """
    result = as_saved(saved)
    values, density = _outputs(result, "surface", model, output), result.content.get("density")
    both = np.stack([result.arrays[f"surface_{name}"] for name in MODELS])
    low, high = both.min(), both.max()
    label, style = "probability", dict[str, Any]()
    if density or low < 0 or high > 1:
        label = "density" if density else "mean"
        style = {"colours": "viridis", "ends": (low, high), "lines": False}
    x, y = result.arrays["surface_x"], result.arrays["surface_y"]
    points, labels = map(result.arrays.get, ("points", "labels"))
    with axes_for(ax, (4.0, 3.6)) as ax:
        _draw_surface(result, ax, values, label, PREDICTORS[model], **style)
        if points is not None and points.ndim == 2 and points.shape[1] == 2:
            limits = {"xlim": ax.get_xlim(), "ylim": ax.get_ylim()}
            if labels is not None and set(np.unique(labels)) <= {0, 1}:
                plots.classes(ax, points, labels)
            else:
                ax.plot(*points.T, ".", color=INK, markersize=3)
            ax.set(**limits)
        ax.set_label(
            f"{label.capitalize()} by the {PREDICTORS[model]} over x from {x[0]:.3g} to "
            f"{x[-1]:.3g} and y from {y[0]:.3g} to {y[-1]:.3g}: between {values.min():.3g} and "
            f"{values.max():.3g}."
        )
    return ax


@arg.checked_arguments
def difference(saved: SavedResult, ax: MaybeAxes = None, *, output: Output = 0) -> Axes:
    r"""The student's surface minus the teacher's."""
    result = as_saved(saved)
    student, teacher = (_outputs(result, "surface", m, output) for m in ("student", "teacher"))
    gap = student - teacher
    largest = float(np.abs(gap).max())
    with axes_for(ax, (4.0, 3.6)) as ax:
        ends = (-(largest or 1.0), largest or 1.0)
        title, style = f"difference, at most {largest:.2g}", {"colours": "PuOr_r", "ends": ends}
        _draw_surface(result, ax, gap, "student − average of draws", title, lines=False, **style)
        ax.set_label(
            f"The student minus the average of all draws: {np.abs(gap).mean():.2g} on average and "
            f"{largest:.2g} at most, without regard to sign."
        )
    return ax


@arg.checked_arguments
def curve(saved: SavedResult, ax: MaybeAxes = None, *, output: Output = 0) -> Axes:
    r"""Predictions along one input, or a density of one variable, of teacher and student."""
    result = as_saved(saved)
    teacher, student = (_outputs(result, "curve", name, output) for name in MODELS)
    x, density = result.arrays["curve_x"], result.content.get("density")
    with axes_for(ax, (4.8, 3.2)) as ax:
        ax.plot(x, teacher, color=MUTED, linewidth=4, alpha=0.6, label=PREDICTORS["teacher"])
        ax.plot(x, student, color=COLOURS[1], label="student")
        ax.set_xlabel("variable" if density else "input")
        ax.set_ylabel("density" if density else "mean of the prediction")
        plots.legend_above(ax)
        gap = np.abs(teacher - student)
        ax.set_label(
            f"{'Densities' if density else 'Predictions'} of the average of all draws and of the "
            f"student, from {x[0]:.3g} to {x[-1]:.3g}: they differ by {gap.mean():.2g} on average "
            f"and by {gap.max():.2g} at most."
        )
    return ax


@arg.checked_arguments
def worth(saved: SavedResult, ax: MaybeAxes = None) -> Axes:
    r"""The divergence of averages of N random draws, by N, beside that of the bag."""
    new = as_saved(saved).content.get("new_inputs") or {}
    if not new.get("curve") or new["best"] is None:
        raise MissingDataError("saved", "a result without this curve", "a bag fitted by L-BFGS")
    counts, values = zip(*new["curve"], strict=True)
    with axes_for(ax, (4.8, 3.0)) as ax:
        ax.loglog(counts, values, "o-", color=MUTED, label="averages of random draws")
        ax.axhline(new["best"], color=COLOURS[1], label="the bag")
        ax.set(xlabel="draws", ylabel="KL, nats")
        plots.legend_above(ax)
        ax.set_label(
            f"KL of averages of {counts[0]} to {counts[-1]} random draws, from {values[0]:.2g} to "
            f"{values[-1]:.2g}; of the bag, {new['best']:.2g}."
        )
    return ax


@arg.checked_arguments
def ranks(saved: SavedResult, ax: MaybeAxes = None) -> Axes:
    r"""Outcomes by the student's distribution functions there: even, if it is calibrated."""
    shares = (as_saved(saved).content.get("agreement") or {}).get("pit")
    if shares is None:
        expected = "one of outcomes that are numbers"
        raise MissingDataError("saved", "a result without ranks", expected)
    with axes_for(ax, (4.8, 2.6)) as ax:
        width = 1 / len(shares)
        ax.bar(width * np.arange(len(shares)), shares, width, align="edge", color=COLOURS[1])
        ax.axhline(width, color=INK, linestyle=":")
        ax.set(xlabel="P(Y ≤ y) by the student", ylabel="share of outcomes")
        ax.set_label(
            f"Shares of the outcomes by P(Y ≤ y) of the student: between {min(shares):.1%} and "
            f"{max(shares):.1%} in each of {len(shares)} bins, where {width:.0%} is right."
        )
    return ax


def _draw_surface(
    saved: Saved, ax: Axes, values: np.ndarray, label: str, title: str, **style: Any
) -> None:
    r"""A surface with a bar of its colours, which has a label."""
    ax.set(xlabel="first variable", ylabel="second variable", title=title)
    side, up = saved.arrays["surface_x"], saved.arrays["surface_y"]
    image = plots.surface(ax, side, values, up=up, **style)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=label)  # contour labels come before it


@arg.checked_arguments
def samples(saved: SavedResult, ax: MaybeAxes = None, *, model: Model = "student") -> Axes:
    r"""Samples of one model as a sheet of images; of other events, both models' samples together.

    Samples of one variable are shown as histograms, of two as points, of more by the mean of each
    variable, the student's against the teacher's.

    Arguments:
        saved: A saved result of `normalize`.
        ax: Where to draw. Default: None, a new figure.
        model: "teacher" or "student"; for images. Default: "student".
    """
    result = as_saved(saved)
    rows = _array(result, f"samples_{model}", "samples", "normalize")
    if result.content.get("image"):
        return _sheet(result, ax, rows, model_name(result, model), "samples")
    names, (teacher, student) = _both(result, "samples", "samples")
    teacher, student = (array.reshape(len(array), -1) for array in (teacher, student))
    draw = {1: _histograms, 2: _scatter}.get(teacher.shape[1], _means)
    with axes_for(ax, (4.2, 3.6)) as ax:
        ax.set_label(draw(ax, teacher, student, names))
    return ax


@arg.checked_arguments
def features(saved: SavedResult, ax: MaybeAxes = None, *, model: Model = "student") -> Axes:
    r"""Weights of hidden units as a sheet of images, those of greatest norm first."""
    result = as_saved(saved)
    rows = _array(result, f"features_{model}", "features", "normalize")
    return _sheet(result, ax, rows, model_name(result, model), "features")


@arg.checked_arguments
def examples(saved: SavedResult, ax: MaybeAxes = None) -> Axes:
    r"""The images on which teacher and student differ most, the largest difference first."""
    result = as_saved(saved)
    rows = _array(result, "disagreement_rows", "rows on which both differ", "compress")
    low, high = np.nanmin(rows), np.nanmax(rows)
    grey = (rows - low) / (high - low if high > low else 1)
    return _sheet(result, ax, grey, "Largest differences first", "images")


def _sheet(saved: Saved, ax: Axes | None, rows: np.ndarray, title: str, what: str) -> Axes:
    if not saved.content.get("image"):
        raise MissingDataError("saved", "a result without images", "one of images")
    height, width = saved.content["image"]
    rows = rows[:36].reshape(len(rows[:36]), -1)
    across = math.ceil(math.sqrt(len(rows)))
    down = math.ceil(len(rows) / across)
    with axes_for(ax, (3.4, 0.3 + 3.4 * height * down / (width * across))) as ax:
        options: dict[str, Any] = {"by_column": False, "signed": what == "features", "what": what}
        text = plots.images(ax, rows, shape=(height, width), **options)
        ax.set_title(title)
        ax.set_label(f"{title}: {text}")
    return ax


def _histograms(ax: Axes, teacher: np.ndarray, student: np.ndarray, names: tuple[str, str]) -> str:
    both = np.concatenate([teacher, student])
    edges = np.linspace(both.min(), both.max() + 1e-12, 41).tolist()
    ax.hist(teacher[:, 0], edges, color=COLOURS[0], alpha=0.45, label=names[0])
    ax.hist(student[:, 0], edges, color=COLOURS[1], histtype="step", linewidth=1.4, label=names[1])
    ax.set(xlabel="value", ylabel="samples")
    plots.legend_above(ax)
    return (
        f"Histograms of samples: teacher with mean {teacher.mean():.3g} and deviation "
        f"{teacher.std():.3g}, student with {student.mean():.3g} and {student.std():.3g}."
    )


def _scatter(ax: Axes, teacher: np.ndarray, student: np.ndarray, names: tuple[str, str]) -> str:
    for number, rows in enumerate((teacher, student)):
        ax.scatter(
            rows[:, 0], rows[:, 1], s=10, marker="os"[number], color=COLOURS[number], alpha=0.6,
            linewidths=0, label=names[number],
        )  # fmt: skip
    ax.set(xlabel="first variable", ylabel="second variable")
    plots.legend_above(ax)
    return (
        f"Samples of two variables: {len(teacher)} of the teacher, {len(student)} of the student."
    )


def _means(ax: Axes, teacher: np.ndarray, student: np.ndarray, names: tuple[str, str]) -> str:
    one, two = teacher.mean(0), student.mean(0)
    plots.against(ax, one, two, "mean", names)
    return (
        f"Means of {len(one)} variables over {len(teacher)} samples, the student's against the "
        f"teacher's: they differ by {np.abs(one - two).mean():.2g} on average."
    )


@arg.checked_arguments
def log_probabilities(saved: SavedResult, ax: MaybeAxes = None) -> Axes:
    r"""Log probabilities of the same events by teacher and student, sorted by the teacher's."""
    result = as_saved(saved)
    names, (teacher, student) = _both(result, "log_prob", "log probabilities")
    where = (result.content.get("held_out") or {}).get("where", "events")
    with axes_for(ax, (4.8, 3.3)) as ax:
        text = plots.sorted_log_probabilities(ax, teacher.tolist(), student.tolist(), names=names)
        ax.set_xlabel(f"{where}, sorted by {names[0]}")
        if result.content.get("log_z_used") is None:
            text += " The teacher's are shifted to the student's mean, since log Z is not known."
        ax.set_label(text.replace(" images ", f" {where} "))
    return ax


@arg.checked_arguments
def log_z(saved: SavedResult, ax: MaybeAxes = None) -> Axes:
    r"""Estimates of log Z below one another, with the exact value where it is known."""
    result = as_saved(saved)
    entries = [  # with a value and an error
        entry for entry in result.content.get("log_z", [])
        if entry["value"] is not None and entry["std_error"] is not None
    ]  # fmt: skip
    if not entries:
        raise MissingDataError("saved", "a result without log Z", "one with estimates of it")
    exact = result.content.get("exact")
    with axes_for(ax, (4.8, 1.3 + 0.36 * len(entries))) as ax:
        named = {entry["name"]: entry for entry in entries}
        band = None if exact is None else ("exact", exact, exact, exact)
        ax.set_label(plots.intervals(ax, named, reference=band))
        ax.locator_params(axis="x", nbins=6)
    return ax


def model_name(saved: Saved, role: str) -> str:
    r"""The name of the model with a role; the role itself where there is none."""
    return next((str(e["name"]) for e in saved.content["models"] if e.get("role") == role), role)


def _array(saved: Saved, name: str, what: str, verb: str) -> np.ndarray:
    if name not in saved.arrays:
        raise MissingDataError("saved", f"a result without {what}", f"one of {verb} that has them")
    return saved.arrays[name]


def _outputs(saved: Saved, name: str, model: str, output: int) -> np.ndarray:
    r"""A curve or surface of one output of a condensed posterior."""
    outputs = _array(saved, f"{name}_{model}", f"{name}s", "condense")
    if output >= len(outputs):
        raise ArgumentError("output", output, f"a number from 0 to {len(outputs) - 1}")
    return outputs[output]


def _both(saved: Saved, name: str, what: str) -> tuple[tuple[str, str], list[np.ndarray]]:
    r"""The names of teacher and student, and an array of each."""
    arrays = [_array(saved, f"{name}_{model}", f"{what} of both", "normalize") for model in MODELS]
    return (model_name(saved, "teacher"), model_name(saved, "student")), arrays
