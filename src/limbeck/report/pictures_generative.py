r"""Pictures of generative models: samples, features, sorted log probabilities, log Z."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.report.canvas import COLOURS, INK, LINES, drawn_on
from limbeck.report.plots import intervals, sorted_log_probabilities
from limbeck.storage.folder import Saved, as_saved

__all__ = ["features", "has_interval", "images", "log_probabilities", "log_z", "mosaic", "samples"]


def images(
    axes: Any,
    rows: Any,
    *,
    columns: int | None = None,
    shape: tuple[int, int] = (28, 28),
    by_column: bool = True,
    signed: bool = False,
    what: str = "images",
) -> str:
    r"""Images side by side in one picture, with thin lines between.

    Arguments:
        axes: Where to draw.
        rows: One image a row, (n, height · width).
        columns: How many stand side by side; None makes a square.
        shape: Height and width of an image.
        by_column: Whether the numbers of an image go down its columns, one after the other.
        signed: Whether grey stands for zero and each image has a scale of its own, as for
            features; if not, white is 0 and black is 1.
        what: What the images are, in the plural.
    """
    sheet = mosaic(rows, columns=columns, shape=shape, by_column=by_column, signed=signed)
    from matplotlib import colormaps

    tones = colormaps["gray_r"].with_extremes(bad=LINES)
    axes.imshow(sheet, cmap=tones, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    kind = ", each scaled to its largest value, zero in grey" if signed else ""
    return f"{len(np.asarray(rows))} {what} of {shape[0]} by {shape[1]} pixels in a grid{kind}."


def mosaic(
    rows: Any,
    *,
    columns: int | None = None,
    shape: tuple[int, int] = (28, 28),
    by_column: bool = True,
    signed: bool = False,
) -> np.ndarray:
    r"""The images as one array, with NaN in the lines between them; see `images`."""
    given = np.asarray(rows, dtype=float)
    height, width = shape
    if given.ndim != 2 or not len(given) or given.shape[1] != height * width:
        expected = f"shape (n, {height * width}), n from 1"
        raise ArgumentError("rows", f"shape {given.shape}", expected)
    if signed:
        largest = np.abs(given).max(1, keepdims=True)
        given = given / np.where(largest > 0, largest, 1)
    if by_column:
        tiles = given.reshape(-1, width, height).transpose(0, 2, 1)
    else:
        tiles = given.reshape(-1, height, width)
    across = int(np.ceil(np.sqrt(len(tiles))))
    if columns is not None:
        across = whole_number("columns", columns, "a whole number from 1", least=1)
    down = -(-len(tiles) // across)
    sheet = np.full((down * (height + 1) - 1, across * (width + 1) - 1), np.nan)
    for number, tile in enumerate(tiles):
        y, x = number // across * (height + 1), number % across * (width + 1)
        sheet[y : y + height, x : x + width] = tile
    return sheet


SHEET, WIDE = 36, 3.4
r"""Images of a sheet, and its inches."""

MODELS = ("teacher", "student")
BINS = 40


def samples(saved: Any, ax: Any = None, *, model: str = "student") -> Any:
    r"""Samples of one model as a sheet of images; of others, both models' together.

    Of one variable they are histograms, of two scattered points, of more the means of each
    variable, the student's against the teacher's.

    Arguments:
        saved: A saved result of `normalize`.
        ax: Where to draw; None for a figure of its own.
        model: "teacher" or "student", of images.
    """
    found = as_saved(saved)
    if model not in MODELS:
        raise ArgumentError.unknown("model", model, MODELS)
    rows = _array(found, f"samples_{model}", "samples")
    if found.content.get("image"):
        return drawn_on(
            ax, _size(found, rows), partial(_sheet, found, rows, model, "samples", False)
        )
    size = math.prod(rows.shape[1:])
    both = [_array(found, f"samples_{each}", "samples of both").reshape(-1, size)
            for each in MODELS]  # fmt: skip
    draw = {1: _histograms, 2: _scattered}.get(both[0].shape[1], _averages)
    return drawn_on(ax, (4.2, 3.6), partial(draw, found, *both))


def features(saved: Any, ax: Any = None, *, model: str = "student") -> Any:
    r"""The weights of hidden units as a sheet of images, those of greatest norm first."""
    found = as_saved(saved)
    if model not in MODELS:
        raise ArgumentError.unknown("model", model, MODELS)
    rows = _array(found, f"features_{model}", "features")
    if not found.content.get("image"):
        raise ArgumentError("saved", "a result without images", "one whose events are images")
    return drawn_on(ax, _size(found, rows), partial(_sheet, found, rows, model, "features", True))


def log_probabilities(saved: Any, ax: Any = None) -> Any:
    r"""Log probabilities of the same events by both, sorted by the teacher's."""
    found = as_saved(saved)
    both = [_array(found, f"log_prob_{each}", "log probabilities of both") for each in MODELS]
    return drawn_on(ax, (4.8, 3.3), partial(_sorted, found, *both))


def log_z(saved: Any, ax: Any = None) -> Any:
    r"""Estimates of log Z below one another, with the exact value where it is known."""
    found = as_saved(saved)
    entries = [each for each in found.content.get("log_z", []) if has_interval(each)]
    if not entries:
        raise ArgumentError("saved", "a result without log Z", "one with estimates of it")
    return drawn_on(ax, (4.8, 1.3 + 0.36 * len(entries)), partial(_intervals, found, entries))


def _size(found: Saved, rows: np.ndarray) -> tuple[float, float]:
    r"""Inches of a sheet, so that nothing stays empty."""
    count = min(len(rows), SHEET)
    across = math.ceil(math.sqrt(count))
    height, width = found.content["image"]
    return WIDE, 0.3 + WIDE * height * math.ceil(count / across) / (width * across)


def _sheet(found: Saved, rows: np.ndarray, model: str, what: str, signed: bool, axes: Any) -> str:
    height, width = found.content["image"]
    said = images(
        axes, rows[:SHEET].reshape(min(len(rows), SHEET), -1), shape=(height, width),
        by_column=bool(found.content.get("by_column")), signed=signed, what=what,
    )  # fmt: skip
    name = _name(found, model)
    axes.set_title(name)
    return f"{name}: {said}"


def _histograms(found: Saved, teacher: np.ndarray, student: np.ndarray, axes: Any) -> str:
    every = np.concatenate([teacher, student])
    edges = np.linspace(every.min(), every.max() + 1e-12, BINS + 1)
    axes.hist(teacher[:, 0], edges, color=COLOURS[0], alpha=0.45, label=_name(found, "teacher"))
    axes.hist(student[:, 0], edges, color=COLOURS[1], histtype="step", linewidth=1.4,
              label=_name(found, "student"))  # fmt: skip
    axes.set_xlabel("value")
    axes.set_ylabel("samples")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return (
        f"Histograms of samples: teacher with mean {teacher.mean():.3g} and deviation "
        f"{teacher.std():.3g}, student with {student.mean():.3g} and {student.std():.3g}."
    )


def _scattered(found: Saved, teacher: np.ndarray, student: np.ndarray, axes: Any) -> str:
    for place, (name, rows) in enumerate(zip(MODELS, (teacher, student), strict=True)):
        axes.scatter(
            rows[:, 0], rows[:, 1], s=10, marker="os"[place], color=COLOURS[place], alpha=0.6,
            linewidths=0, label=_name(found, name),
        )  # fmt: skip
    axes.set_xlabel("first variable")
    axes.set_ylabel("second variable")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    counts = f"{len(teacher)} of the teacher, {len(student)} of the student"
    return f"Samples of two variables: {counts}."


def _averages(found: Saved, teacher: np.ndarray, student: np.ndarray, axes: Any) -> str:
    one, two = teacher.mean(0), student.mean(0)
    ends = min(one.min(), two.min()), max(one.max(), two.max())
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":", label="equal")
    axes.scatter(one, two, s=14, color=COLOURS[0], alpha=0.7, linewidths=0, label="a variable")
    axes.set_xlabel(f"mean by {_name(found, 'teacher')}")
    axes.set_ylabel(f"mean by {_name(found, 'student')}")
    axes.legend(loc="upper left")
    return (
        f"Means of {len(one)} variables over {len(teacher)} samples, the student's against the "
        f"teacher's: they differ by {np.abs(one - two).mean():.2g} on average."
    )


def _sorted(found: Saved, teacher: np.ndarray, student: np.ndarray, axes: Any) -> str:
    names = (_name(found, "teacher"), _name(found, "student"))
    said = sorted_log_probabilities(axes, teacher.tolist(), student.tolist(), names=names)
    where = (found.content.get("held_out") or {}).get("where", "events")
    axes.set_xlabel(f"{where}, sorted by {names[0]}")
    if found.content.get("log_z_used") is None:
        said += " The teacher's are shifted to the student's mean, since log Z is not known."
    return said.replace(" images ", f" {where} ")


def _intervals(found: Saved, entries: list[Any], axes: Any) -> str:
    said = intervals(axes, {each["name"]: each for each in entries})
    axes.locator_params(axis="x", nbins=6)
    exact = found.content.get("exact")
    if exact is None:
        return said
    axes.axvline(exact, color=COLOURS[2], linestyle="--", linewidth=1.2, label=f"exact {exact:.4f}")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return f"{said} The dashed line is the exact value, {exact:.4f}."


def has_interval(estimate: Any) -> bool:
    r"""Whether a saved estimate can be drawn: it has a value and an error."""
    return estimate["value"] is not None and estimate["std_error"] is not None


def _name(found: Saved, role: str) -> str:
    models = (each for each in found.content["models"] if each.get("role") == role)
    return str(next(models, {"name": role})["name"])


def _array(found: Saved, name: str, what: str) -> np.ndarray:
    if name not in found.arrays:
        raise ArgumentError("saved", f"a result without {what}", "one of normalize that has them")
    return found.arrays[name]
