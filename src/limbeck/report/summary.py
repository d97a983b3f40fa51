r"""What a result folder says: the sentence, settings, verdicts, numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limbeck.compression.fidelity.cost import Cost, bytes_on_disk, parameters
from limbeck.errors import ArgumentError
from limbeck.models.mlp import MLP
from limbeck.training.result import Result

__all__ = [
    "as_array",
    "device_of",
    "image_shape",
    "model",
    "named_network",
    "required",
    "some",
    "story",
    "verdict",
]


def verdict(name: str, held: bool, words: str) -> dict[str, Any]:
    r"""A verdict as results keep it.

    >>> verdict("draws", True, "the chains agree")
    {'name': 'draws', 'held': True, 'words': 'the chains agree'}
    """
    return {"name": name, "held": bool(held), "words": words}


def required(
    name: str,
    value: float | None,
    bound: float,
    *,
    most: bool = False,
    title: str | None = None,
    reason: str = "it could not be computed",
) -> dict[str, Any]:
    r"""The verdict on a figure that must be at least, or at most, so much.

    A figure that could not be computed is unchecked, which is not met.

    Arguments:
        name: The figure's name.
        value: What it came to; None or not finite where it could not be computed.
        bound: What was required.
        most: Whether the bound is the most that it may be.
        title: What the figure is called in words.
        reason: Why there is no value, for the case that there is none.

    >>> required("agreement", 0.97, 0.98)["words"]
    'agreement is 0.97, below the 0.98 that was required'
    """
    if not math.isfinite(bound):
        raise ArgumentError(name, bound, "a finite number to compare with")
    title = name.replace("_", " ") if title is None else title
    if value is None or not math.isfinite(value):
        return verdict(name, False, f"{title} is unchecked: {reason}; {bound:g} was required")
    held = value <= bound if most else value >= bound
    shown = f"{value:.4g}"
    if float(shown) == bound != value:  # rounding must not hide a failure
        shown = repr(float(value))
    side = ("at most" if most else "at least") if held else ("above" if most else "below")
    rest = f"{bound:g} as required" if held else f"the {bound:g} that was required"
    return verdict(name, held, f"{title} is {shown}, {side} {rest}")


SQUARE = 8
r"""Flat rows are taken for square images from this side on."""

HIDDEN = ("input_shape", "student", "student_output")
r"""Settings that mean something to programs only."""


def story(result: Result) -> dict[str, Any]:
    r"""Settings, history and verdicts of a distillation."""
    named: dict[str, Any] = {"student": named_network(result.student)}
    for name, value in result.settings.items():
        if isinstance(value, dict) and name not in HIDDEN:
            named |= value
        elif name not in HIDDEN and value is not None:
            named[name] = value
    named |= {"steps done": result.steps, "stopped": result.stop_reason, "engine": result.ran_by}
    found = []
    if result.failure is not None:
        found.append(verdict("training", False, str(result.failure)))
    return {
        "settings": named,
        "history": {name: list(values) for name, values in result.history.items()},
        "seconds": result.seconds,
        "device": device_of(result.student),
        "verdicts": found,
    }


def model(name: str, role: str, of: Any = None, cost: Cost | None = None) -> dict[str, Any]:
    r"""A model's line: its name, its role, and what it costs.

    Arguments:
        name: What it is called.
        role: "teacher", "student" or "labels alone".
        of: The model, for its parameters and bytes.
        cost: Those, if they are known.
    """
    if cost is not None:
        return {
            "name": name, "role": role, "parameters": cost.parameters, "bytes": cost.bytes,
            "latency": {str(size): seconds for size, seconds in cost.latency.items()},
        }  # fmt: skip
    if of is None:
        return {"name": name, "role": role, "parameters": None, "bytes": None}
    return {
        "name": name,
        "role": role,
        "parameters": parameters(of),
        "bytes": bytes_on_disk(of),
    }


def named_network(module: Any) -> str:
    r"""A module's kind, with its layers where they are few."""
    inner = getattr(module, "network", module)
    if isinstance(inner, MLP):
        return f"MLP({', '.join(map(str, inner.spec()['sizes']))})"
    said = repr(inner)
    return said if "\n" not in said and len(said) <= 80 else type(inner).__name__


def device_of(module: Any) -> str:
    r"""Where a module's parameters are."""
    held = getattr(module, "parameters", None)
    first = next(iter(held()), None) if callable(held) else None
    return "cpu" if first is None else str(first.device)


def image_shape(rows: np.ndarray, image: Any = "auto") -> tuple[int, int] | None:
    r"""Height and width of rows that are images, or None.

    Arguments:
        rows: (n, height, width), (n, 1, height, width), or flat (n, d).
        image: (height, width), None, or "auto", which takes flat rows of at least 8 × 8 numbers,
            none below zero, for square images.

    >>> (
    ...     image_shape(np.zeros((5, 64))),
    ...     image_shape(np.zeros((5, 3))),
    ...     image_shape(np.zeros((2, 4, 6))),
    ... )
    ((8, 8), None, (4, 6))
    """
    size = int(np.prod(rows.shape[1:]))
    if not isinstance(image, str):
        fits = image is not None and math.prod(image) == size
        return (int(image[0]), int(image[1])) if fits else None
    if rows.dtype.kind not in "biuf" or not len(rows):
        return None
    shape = rows.shape[1:]
    if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
        return int(shape[-2]), int(shape[-1])
    side = math.isqrt(size)
    whole = len(shape) == 1 and side * side == size and side >= SQUARE
    return (side, side) if whole and np.nanmin(rows) >= 0 else None


def as_array(given: Any) -> np.ndarray:
    r"""An array of what is one, a tensor anywhere, a sparse matrix, or lists."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    return np.asarray(given.toarray() if hasattr(given, "toarray") else given)


def some(count: int, most: int, seed: int = 0) -> np.ndarray:
    r"""At most so many of `count` places, in order, drawn at random."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
