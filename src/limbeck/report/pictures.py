r"""Pictures of saved results.

Each function takes a saved result (from `limbeck.storage.read`, or its folder), draws on the
matplotlib axes `ax`, or on those of a new figure, and returns the axes. `axes.get_label()` is a
text description of the picture (alt text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np

from limbeck import arguments as arg
from limbeck.errors import ArgumentError
from limbeck.report.canvas import (
    COLOURS,
    INK,
    MUTED,
    MaybeAxes,
    MissingDataError,
    SavedResult,
    against,
    fit,
    image_sheet,
    legend_above,
    picture,
    rows_below,
)
from limbeck.report.fidelity_plots import calibration, disagreement, learning, subgroups
from limbeck.storage import Saved

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


@picture(4.2, 4.0)
def weights(saved: SavedResult, ax: MaybeAxes = None) -> str:
    r"""The student's pseudo-draws among draws of the posterior, by their first two coordinates.

    Discs grow with the weights of pseudo-draws.
    """
    bag = _array(saved, "pseudo_draws", "a bag of pseudo-draws", "condense")
    if bag.shape[1] < 2:
        raise MissingDataError("saved", "draws of one number", "draws of two or more")
    share, draws = saved.arrays["pseudo_weights"], saved.arrays.get("draws")
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
    names = coordinate_names(saved)
    ax.set(xlabel=names[0], ylabel=names[1])
    legend_above(ax)
    return (
        f"The student's {len(bag)} pseudo-draws among {0 if draws is None else len(draws):,} "
        f"draws of the posterior, by {names[0]} and {names[1]}; their weighted means are "
        f"({share @ bag[:, 0]:.3g}, {share @ bag[:, 1]:.3g})."
    )


def coordinate_names(saved: Saved) -> list[str]:
    r"""Names of a draw's coordinates: those of the diagnostics, if they are complete."""
    dim = saved.arrays["pseudo_draws"].shape[1]
    names = (saved.content.get("diagnostics") or {}).get("names", [])
    return list(names) if len(names) == dim else [f"draw[{k}]" for k in range(dim)]


@picture(4.0, 3.6)
def surface(
    saved: SavedResult, ax: MaybeAxes = None, *, model: Model = "student", output: Output = 0
) -> str:
    r"""Predictions over two inputs, or a density of two variables.

    Arguments:
        model: "teacher" or "student". Default: "student".
        output: The class or output. Default: 0.
    """
    values, density = _outputs(saved, "surface", model, output), saved.content.get("density")
    both = np.stack([saved.arrays[f"surface_{name}"] for name in MODELS])
    low, high = both.min(), both.max()
    label, style = "probability", ("RdBu_r", 0.0, 1.0)
    if density or low < 0 or high > 1:
        label, style = "density" if density else "mean", ("viridis", low, high)
    x, y = saved.arrays["surface_x"], saved.arrays["surface_y"]
    points = saved.arrays.get("points")
    _draw_surface(saved, ax, values, label, PREDICTORS[model], *style)
    if points is not None and points.shape[1:] == (2,):
        labels = saved.arrays.get("labels", np.zeros(len(points)))
        for number, group in reversed(list(enumerate(np.unique(labels)))):
            ax.plot(
                *points[labels == group].T, "so^vDPX"[number % 7], color=COLOURS[number % 7],
                markersize=4, markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip
    return (
        f"{label.capitalize()} by the {PREDICTORS[model]} over x from {x[0]:.3g} to "
        f"{x[-1]:.3g} and y from {y[0]:.3g} to {y[-1]:.3g}: between {values.min():.3g} and "
        f"{values.max():.3g}."
    )


@picture(4.0, 3.6)
def difference(saved: SavedResult, ax: MaybeAxes = None, *, output: Output = 0) -> str:
    r"""The student's surface minus the teacher's."""
    student, teacher = (_outputs(saved, "surface", m, output) for m in ("student", "teacher"))
    gap = student - teacher
    largest = float(np.abs(gap).max())
    style = ("PuOr_r", -(largest or 1.0), largest or 1.0)
    label, title = "student − average of draws", f"difference, at most {largest:.2g}"
    _draw_surface(saved, ax, gap, label, title, *style)
    return (
        f"The student minus the average of all draws: {np.abs(gap).mean():.2g} on average and "
        f"{largest:.2g} at most, without regard to sign."
    )


@picture(4.8, 3.2)
def curve(saved: SavedResult, ax: MaybeAxes = None, *, output: Output = 0) -> str:
    r"""Predictions along one input, or a density of one variable, of teacher and student."""
    teacher, student = (_outputs(saved, "curve", name, output) for name in MODELS)
    x, density = saved.arrays["curve_x"], saved.content.get("density")
    ax.plot(x, teacher, color=MUTED, linewidth=4, alpha=0.6, label=PREDICTORS["teacher"])
    ax.plot(x, student, color=COLOURS[1], label="student")
    ax.set_xlabel("variable" if density else "input")
    ax.set_ylabel("density" if density else "mean of the prediction")
    legend_above(ax)
    gap = np.abs(teacher - student)
    return (
        f"{'Densities' if density else 'Predictions'} of the average of all draws and of the "
        f"student, from {x[0]:.3g} to {x[-1]:.3g}: they differ by {gap.mean():.2g} on average "
        f"and by {gap.max():.2g} at most."
    )


@picture(4.8, 3.0)
def worth(saved: SavedResult, ax: MaybeAxes = None) -> str:
    r"""The divergence of averages of N random draws, by N, beside that of the bag."""
    new = saved.content.get("new_inputs") or {}
    if not new.get("curve") or new["best"] is None:
        raise MissingDataError("saved", "a result without this curve", "a bag fitted by L-BFGS")
    counts, values = zip(*new["curve"], strict=True)
    ax.loglog(counts, values, "o-", color=MUTED, label="averages of random draws")
    ax.axhline(new["best"], color=COLOURS[1], label="the bag")
    ax.set(xlabel="draws", ylabel="KL, nats")
    for axis in (ax.xaxis, ax.yaxis):  # pages show no mathematics, such as powers of ten
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    legend_above(ax)
    return (
        f"KL of averages of {counts[0]} to {counts[-1]} random draws, from {values[0]:.2g} to "
        f"{values[-1]:.2g}; of the bag, {new['best']:.2g}."
    )


@picture(4.8, 2.6)
def ranks(saved: SavedResult, ax: MaybeAxes = None) -> str:
    r"""Outcomes by the student's distribution functions there: even, if it is calibrated."""
    shares = (saved.content.get("agreement") or {}).get("pit")
    if shares is None:
        expected = "one of outcomes that are numbers"
        raise MissingDataError("saved", "a result without ranks", expected)
    width = 1 / len(shares)
    ax.bar(width * np.arange(len(shares)), shares, width, align="edge", color=COLOURS[1])
    ax.axhline(width, color=INK, linestyle=":")
    ax.set(xlabel="P(Y ≤ y) by the student", ylabel="share of outcomes")
    return (
        f"Shares of the outcomes by P(Y ≤ y) of the student: between {min(shares):.1%} and "
        f"{max(shares):.1%} in each of {len(shares)} bins, where {width:.0%} is right."
    )


def _draw_surface(
    saved: Saved, ax: Axes, values: np.ndarray, label: str, title: str, colours: str, low: float,
    high: float,
) -> None:  # fmt: skip
    r"""A surface with contour lines of probabilities, and a labelled bar of its colours."""
    x, y = saved.arrays["surface_x"], saved.arrays["surface_y"]
    half = (x[1] - x[0]) / 2, (y[1] - y[0]) / 2
    image = ax.imshow(
        values.T, origin="lower", cmap=colours, vmin=low, vmax=high, aspect="auto",
        extent=(x[0] - half[0], x[-1] + half[0], y[0] - half[1], y[-1] + half[1]),
        interpolation="bilinear",
    )  # fmt: skip
    ax.grid(False)
    ax.set(xlabel="first variable", ylabel="second variable", title=title)
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    if label == "probability":
        levels = [0.1, 0.25, 0.5, 0.75, 0.9]
        contours = ax.contour(x, y, values.T, levels, colors=INK, linewidths=0.6)
        ax.clabel(contours, fmt="%g", fontsize=6)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=label)  # contour labels come before it


@picture(4.2, 3.6)
def samples(saved: SavedResult, ax: MaybeAxes = None, *, model: Model = "student") -> str:
    r"""Samples of one model as a sheet of images; of other events, both models' samples together.

    Samples of one variable are shown as histograms, of two as points, of more by the mean of each
    variable, the student's against the teacher's.

    Arguments:
        model: "teacher" or "student"; for images. Default: "student".
    """
    rows = _array(saved, f"samples_{model}", "samples", "normalize")
    if saved.content.get("image"):
        return image_sheet(saved, ax, rows, model_name(saved, model), "samples")
    names, (teacher, student) = _both(saved, "samples", "samples")
    teacher, student = (array.reshape(len(array), -1) for array in (teacher, student))
    if teacher.shape[1] > 2:
        one, two = teacher.mean(0), student.mean(0)
        against(ax, one, two, "mean", names)
        return (
            f"Means of {len(one)} variables over {len(teacher)} samples, the student's against the "
            f"teacher's: they differ by {np.abs(one - two).mean():.2g} on average."
        )
    if teacher.shape[1] == 2:
        both = zip((teacher, student), names, COLOURS[:2], "os", strict=True)
        for array, name, colour, mark in both:
            ax.scatter(*array.T, s=10, marker=mark, color=colour, alpha=0.6, lw=0, label=name)
        ax.set(xlabel="first variable", ylabel="second variable")
        legend_above(ax)
        counts = f"{len(teacher)} of the teacher, {len(student)} of the student"
        return f"Samples of two variables: {counts}."
    ends = min(teacher.min(), student.min()), max(teacher.max(), student.max())
    edges = np.linspace(ends[0], ends[1] + 1e-12, 41).tolist()
    ax.hist(teacher[:, 0], edges, color=COLOURS[0], alpha=0.45, label=names[0])
    ax.hist(student[:, 0], edges, color=COLOURS[1], histtype="step", lw=1.4, label=names[1])
    ax.set(xlabel="value", ylabel="samples")
    legend_above(ax)
    return (
        f"Histograms of samples: teacher with mean {teacher.mean():.3g} and deviation "
        f"{teacher.std():.3g}, student with {student.mean():.3g} and {student.std():.3g}."
    )


@picture(3.4, 3.4)
def features(saved: SavedResult, ax: MaybeAxes = None, *, model: Model = "student") -> str:
    r"""Weights of hidden units as a sheet of images, those of greatest norm first."""
    rows = _array(saved, f"features_{model}", "features", "normalize")
    return image_sheet(saved, ax, rows, model_name(saved, model), "features")


@picture(3.4, 3.4)
def examples(saved: SavedResult, ax: MaybeAxes = None) -> str:
    r"""The images on which teacher and student differ most, the largest difference first.

    Other rows are no images: `Fidelity.disagreements` and the report page list them as text.
    """
    report = saved.content.get("fidelity") or {}
    if "disagreement_rows" not in saved.arrays and report.get("disagreements"):
        count = len(report["disagreements"])
        received = f"a result whose {count} rows with the largest differences are no images"
        expected = "one of images; report.disagreements has the rows"
        raise MissingDataError("saved", received, expected)
    rows = _array(saved, "disagreement_rows", "rows on which both differ", "compress")
    low, high = np.nanmin(rows), np.nanmax(rows)
    grey = (rows - low) / (high - low if high > low else 1)
    return image_sheet(saved, ax, grey, "Largest differences first", "images")


@picture(4.8, 3.3)
def log_probabilities(saved: SavedResult, ax: MaybeAxes = None) -> str:
    r"""Log probabilities of the same events by teacher and student, sorted by the teacher's."""
    names, (teacher, student) = _both(saved, "log_prob", "log probabilities")
    where = (saved.content.get("held_out") or {}).get("where", "events")
    order, rank, gap = np.argsort(-teacher), np.arange(1, len(teacher) + 1), student - teacher
    ax.plot(rank, student[order], ".", color=COLOURS[1], markersize=2.5, label=names[1])
    ax.plot(rank, teacher[order], color=COLOURS[0], label=names[0])
    ax.set(xlabel=f"{where}, sorted by {names[0]}", ylabel="log probability (nats)")
    ax.legend(loc="lower left", markerscale=3)
    text = (
        f"Log probabilities of {len(teacher):,} {where} in falling order of the {names[0]}'s, "
        f"with the {names[1]}'s scattered about them: on average {abs(gap.mean()):.2f} nats "
        f"{'above' if gap.mean() > 0 else 'below'}, with a standard deviation of "
        f"{gap.std():.2f} nats."
    )
    if saved.content.get("log_z_used") is None:
        text += " The teacher's are shifted to the student's mean, since log Z is not known."
    return text


@picture(4.8, 3.3)
def log_z(saved: SavedResult, ax: MaybeAxes = None) -> str:
    r"""Estimates of log Z below one another, with three standard errors on either side.

    Doubtful and unchecked ones are hollow and dashed; the exact value is a line if it is known.
    """
    entries = [  # with a value and an error
        entry for entry in saved.content.get("log_z", [])
        if entry["value"] is not None and entry["std_error"] is not None
    ]  # fmt: skip
    if not entries:
        raise MissingDataError("saved", "a result without log Z", "one with estimates of it")
    names, states = ([entry[key] for entry in entries] for key in ("name", "state"))
    middle, half = np.array([(entry["value"], 3 * entry["std_error"]) for entry in entries]).T
    exact = saved.content.get("exact")
    fit(ax, 4.8, 1.3 + 0.36 * len(entries))
    if exact is not None:
        ax.axvline(exact, color=COLOURS[4], linewidth=1, label=f"exact {exact:.4f}")
    for state in dict.fromkeys(states):
        rows = [row for row, other in enumerate(states) if other == state]
        good = state == "trustworthy"
        colour, line = (COLOURS[0], "-") if good else (COLOURS[1], (0, (2, 2)))
        ends = ((middle - half)[rows], (middle + half)[rows])
        ax.hlines(rows, *ends, color=colour, linestyle=line, linewidth=2)
        fill = colour if good else "white"
        ax.plot(middle[rows], rows, "o", color=colour, mfc=fill, markersize=5, label=state)
    rows_below(ax, names)
    ax.set_xlabel("log Z (nats), ± 3 standard errors")
    legend_above(ax, 3)
    ax.locator_params(axis="x", nbins=6)
    texts = [
        f"{name} {value:.3f} ± {error:.3f}{'' if state == 'trustworthy' else f' ({state})'}"
        for name, value, error, state in zip(names, middle, half, states, strict=True)
    ]
    words = "" if exact is None else f" The line is exact {exact:.4f}."
    return f"Estimates of log Z with three standard errors: {'; '.join(texts)}.{words}"


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
