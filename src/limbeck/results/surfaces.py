r"""Predictions along a line or over a square: the average of all draws beside the student."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.draws.stored import Draws
from limbeck.predictive.agreement import predictive
from limbeck.predictive.condensed import Condensed
from limbeck.predictive.distributions import average
from limbeck.results.story import as_array, some

__all__ = ["pictured"]

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
