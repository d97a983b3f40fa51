r"""What a result of `condense` holds: agreement with all draws, weights, surfaces or curves."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.condensation.agreement import Agreement, predictive
from limbeck.condensation.condensed import Condensed
from limbeck.condensation.sample_bag import SampleBag
from limbeck.distributions import average
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.read import as_draws
from limbeck.posteriors.stream import Stream, StreamEnded
from limbeck.posteriors.structure import as_parts
from limbeck.report.summary import as_array, model, some, story, verdict
from limbeck.text import compared

__all__ = ["condensed", "pictured"]

SIDE, LINE = 41, 201
r"""Places along each direction of a surface, and along a curve."""

EVALUATIONS = 2 * 10**7
r"""Draws times places; draws beyond this are thinned for pictures."""

MARGIN = 0.05
WIDE = 4.0
r"""Standard deviations to either side of a density's mean that are shown."""

CLASSES = 4
r"""Classes, or outputs, whose surfaces are kept."""


@torch.no_grad()
def pictured(result: Condensed, draws: Draws, x: Any) -> dict[str, np.ndarray]:
    r"""Curves of one variable, surfaces of two; nothing of more."""
    like = next(result.student.parameters())
    if result.head is None:
        return _density(result, _thinned(draws, LINE).to(like.device, like.dtype))
    rows = None if x is None or isinstance(x, dict) else as_array(x).astype(float)
    if rows is None or rows.ndim != 2 or rows.shape[1] > 2 or len(rows) < 2:
        return {}
    ends = _ends(rows)
    places = SIDE**2 if rows.shape[1] == 2 else LINE
    stored = _thinned(draws, places).to(like.device, like.dtype)
    axes = [np.linspace(low, high, SIDE if len(ends) == 2 else LINE) for low, high in ends]
    grid = torch.as_tensor(_grid(axes)).to(like.device, like.dtype)
    assert result.calling is not None
    both = predictive(result.calling, stored, grid), result.predict(grid)
    return _packed(axes, *(_means(found.mean) for found in both))


def _density(result: Condensed, draws: Draws) -> dict[str, np.ndarray]:
    r"""Densities of one or two variables, where the student has its mass."""
    student: Any = result.student
    mean, variance = (getattr(student, name, None) for name in ("mean", "variance"))
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor) or mean.numel() > 2:
        return {}
    middle, width = (
        np.atleast_1d(each.flatten().cpu().double().numpy()) for each in (mean, variance.sqrt())
    )
    count = SIDE if len(middle) == 2 else LINE
    axes = [
        np.linspace(m - WIDE * w, m + WIDE * w, count) for m, w in zip(middle, width, strict=True)
    ]
    assert result.calling is not None
    teacher = average(result.calling.stacked(draws.structure.unflatten(draws.flat)))
    grid = torch.as_tensor(_grid(axes)).to(mean)
    flat = grid[:, 0] if not teacher.event and len(middle) == 1 else grid
    found = [model.log_prob(flat).exp()[:, None] for model in (teacher, student)]
    return _packed(axes, *(each.cpu().double().numpy() for each in found))


def _packed(axes: list[Any], teacher: np.ndarray, student: np.ndarray) -> dict[str, np.ndarray]:
    if len(axes) == 1:
        return {"curve_x": axes[0], "curve_teacher": teacher.T, "curve_student": student.T}
    count = len(axes[0])
    squares = [each.T.reshape(-1, count, count) for each in (teacher, student)]
    return {
        "surface_x": axes[0],
        "surface_y": axes[1],
        "surface_teacher": squares[0],
        "surface_student": squares[1],
    }


def _grid(axes: list[np.ndarray]) -> np.ndarray:
    return np.stack([each.ravel() for each in np.meshgrid(*axes, indexing="ij")], axis=1)


def _ends(rows: np.ndarray) -> list[tuple[float, float]]:
    low, high = rows.min(0), rows.max(0)
    more = MARGIN * np.where(high > low, high - low, 1.0)
    return list(zip((low - more).tolist(), (high + more).tolist(), strict=True))


def _means(found: Tensor) -> np.ndarray:
    # (n,) or (n, K): one column an output
    columns = found.reshape(len(found), -1)[:, :CLASSES]
    return columns.cpu().double().numpy()


def _thinned(draws: Draws, places: int) -> Draws:
    most = max(100, EVALUATIONS // places)
    if draws.count <= most:
        return draws
    flat = draws.take(some(draws.count, most))
    parts = flat if isinstance(flat, dict) else {"": flat}
    return Draws({name: part[None] for name, part in parts.items()})


SHOWN = 2000
r"""Draws that are kept for pictures."""

FROM_STREAM = 4000
r"""Draws that are taken of a stream, to compare with."""

COMPARED = "the student beside the average of all draws"


def condensed(
    result: Condensed,
    *,
    agreement: Agreement | None = None,
    x: Any = None,
    y: Any = None,
    posterior: Any = None,
    points: Any = None,
    labels: Any = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    r"""Content and arrays of a condensed posterior.

    Arguments:
        result: What `condense` gave back.
        agreement: What `result.report` gave; None makes it, at the inputs x.
        x: Inputs at which student and draws are compared. Of one or two variables, their range is
            where curves and surfaces are drawn. None for a density without inputs.
        y: Outcomes there, if known.
        posterior: Draws to compare with; None takes those that were condensed.
        points: Data (n, 2) to draw on surfaces, with labels (n,) of 0 and 1.
        labels: Those labels.
    """
    own, notes = story(result), list(result.notes)
    draws = _draws(result, posterior, notes)
    if agreement is None and draws is not None and (x is not None or result.head is None):
        agreement = result.report(x, y, posterior=draws)
    count = result.used if draws is None else draws.count
    size = result.draw_bytes if agreement is None else agreement.bytes[0]
    own["models"] = [
        model(f"average of {count:,} draws", "teacher") | {"bytes": size},
        model(type(result.student).__name__, "student", result.student) | {"bytes": result.bytes},
    ]
    if draws is not None:
        numbers = draws.count * draws.structure.dim
        own["models"][0]["parameters"] = numbers
    own["title"] = f"{count:,} posterior draws, condensed"
    own["density"] = result.head is None
    if agreement is None:
        own["summary"] = str(result).rstrip().rsplit("\n", 1)[-1]
        notes.append(f"Not measured: {COMPARED}; it needs inputs, the draws and predict.")
    else:
        own["agreement"] = asdict(replace(agreement, new_inputs=None))
        own["summary"] = _summary(agreement)
    own |= _diagnostics(result, own["verdicts"])
    own |= _new_inputs(result, own["verdicts"], notes)
    arrays = _weights(result, draws)
    if draws is not None:
        arrays |= pictured(result, draws, x)
    if points is not None:
        arrays["points"] = as_array(points).astype(float)
        if labels is not None:
            arrays["labels"] = as_array(labels)
    return own | {"notes": notes}, arrays


def _summary(found: Agreement) -> str:
    r"""What a user would tell a colleague."""
    size, speed = found.bytes, found.seconds
    savings = (
        compared(size[0], size[1], "smaller", "larger", "as large"),
        compared(speed[0], speed[1], "faster", "slower", "as fast"),
    )
    said = " and ".join(each for each in savings if each)
    return (
        f"The student is within {found.mean_error:.2g} of the average of {found.draws:,} draws in "
        f"the mean, and {found.max_error:.2g} at most, at {found.inputs:,} {found.at}"
        f"{f'; it is {said}' if said else ''}."
    )


def _draws(result: Condensed, posterior: Any, notes: list[str]) -> Draws | None:
    r"""Stored draws to compare with; of a stream, some more of it."""
    if result.calling is None:
        return None
    given = result.posterior if posterior is None else as_draws(posterior)
    if isinstance(given, Stream):
        try:
            parts = as_parts(given.next(FROM_STREAM))
        except StreamEnded:
            notes.append("The stream has no further draws to compare the student with.")
            return None
        notes.append(f"The student is compared with {FROM_STREAM:,} further draws of the stream.")
        return Draws({name: part[None] for name, part in parts.items()})
    return given


def _new_inputs(result: Condensed, verdicts: list[Any], notes: list[str]) -> dict[str, Any]:
    r"""The student at new inputs: a verdict where that was measured, a note where it was not."""
    found = result.new_inputs
    if found is None:
        return {}
    words = f"{found.reason[:1].upper()}{found.reason[1:]}."
    if found.state == "unchecked":
        notes.append(words)
    else:
        verdicts.append(verdict("new inputs", found.state == "trustworthy", words))
    return {"new_inputs": found.record()}


def _diagnostics(result: Condensed, verdicts: list[Any]) -> dict[str, Any]:
    found = result.diagnostics
    if found is None or not len(found.r_hat):
        return {}
    worst = found.r_hat.nan_to_num(0.0).max().item()
    least = found.ess.nan_to_num(math.inf).min().item()
    words = f"R̂ is at most {worst:.3f} and the effective size at least {least:,.0f}."
    if found.reasons:
        words = f"The draws themselves are doubtful: {'; '.join(found.reasons)}."
    verdicts.append(verdict("draws", not found.reasons, words))
    return {
        "diagnostics": {
            "names": list(found.names),
            "r_hat": found.r_hat.tolist(),
            "ess": found.ess.tolist(),
            "reasons": list(found.reasons),
        }
    }


@torch.no_grad()
def _weights(result: Condensed, draws: Draws | None) -> dict[str, np.ndarray]:
    r"""Draws and pseudo-draws, of two numbers or more."""
    found: dict[str, np.ndarray] = {}
    bag = result.student
    if isinstance(bag, SampleBag):
        found["pseudo_draws"] = bag._flat.cpu().numpy()
        found["pseudo_weights"] = bag.weights.cpu().numpy()
    if draws is not None and isinstance(bag, SampleBag):
        index = some(draws.count, SHOWN)
        found["draws"] = draws.structure.flatten(draws.take(index)).cpu().numpy()
    return found
