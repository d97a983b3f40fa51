r"""Parts of every record: verdicts, settings, history, models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limbeck.compression.fidelity.cost import Cost, bytes_on_disk, parameters
from limbeck.models.mlp import MLP
from limbeck.normalization.densities import place_of
from limbeck.report.blocks import Verdict
from limbeck.training.result import Result

Arrays = dict[str, np.ndarray]


def verdict(name: str, held: bool, words: str) -> Verdict:
    r"""A verdict as it is stored."""
    return {"name": name, "held": bool(held), "words": words}


def run_summary(result: Result) -> dict[str, Any]:
    r"""Settings, history, seconds, device and verdicts of a distillation."""
    settings: dict[str, Any] = {"student": named_network(result.student)}
    for name, value in result.settings.items():
        for_programs = name in ("input_shape", "student", "student_output")
        if value is not None and not for_programs:
            settings |= value if isinstance(value, dict) else {name: value}
    settings |= {"steps done": result.steps, "stopped": result.stop_reason, "engine": result.ran_by}
    failed = result.failure is not None
    return {
        "settings": settings, "seconds": result.seconds, "device": str(place_of(result.student)[0]),
        "history": {name: list(values) for name, values in result.history.items()},
        "verdicts": [verdict("training", False, str(result.failure))] if failed else [],
    }  # fmt: skip


def model(name: str, role: str, of: object) -> dict[str, Any]:
    r"""The record of a model, of its cost, or of the model itself, which is then measured."""
    known = of if isinstance(of, Cost) else Cost(parameters(of), bytes_on_disk(of))
    return {"name": name, "role": role, "parameters": known.parameters, "bytes": known.bytes}


def named_network(module: object) -> str:
    r"""A module's class, with its layers where they are few."""
    network = getattr(module, "network", module)
    if isinstance(network, MLP):
        return f"MLP({', '.join(map(str, network.spec()['sizes']))})"
    text = repr(network)
    return text if "\n" not in text and len(text) <= 80 else type(network).__name__


def image_of(rows: np.ndarray | None) -> dict[str, list[int]]:
    r"""Height and width of rows that are images, as a field of content; else nothing.

    Flat rows of at least 8 × 8 numbers, none below zero, are taken for square images.
    """
    if rows is None or rows.dtype.kind not in "biuf" or not len(rows):
        return {}
    shape = rows.shape[1:]
    if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
        return {"image": [int(shape[-2]), int(shape[-1])]}
    side = math.isqrt(math.prod(shape))
    square = len(shape) == 1 and side * side == shape[0] and side >= 8
    return {"image": [side, side]} if square and np.nanmin(rows) >= 0 else {}


def some(count: int, most: int) -> np.ndarray:
    r"""At most `most` of the indices below `count`, in order, drawn at random."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
