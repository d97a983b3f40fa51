r"""Choices that are measured: which inputs to ask about, and how large a student must be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.arrays import rows
from limbeck.compression.fidelity.cost import bytes_on_disk
from limbeck.compression.fidelity.measures import agreement, kl, label_agreement, label_kl
from limbeck.compression.problem import FEWEST_HELD_OUT, Problem
from limbeck.compression.students import sizes
from limbeck.compression.training import Recipe, predictions, train
from limbeck.errors import ArgumentError
from limbeck.progress import tracked
from limbeck.training.result import Result

__all__ = ["best_inputs", "closeness", "grown", "kept"]

PILOT = 2000
r"""Steps of the short runs that inputs are compared by."""


def best_inputs(
    problem: Problem, recipe: Recipe, names: list[str]
) -> tuple[Recipe, list[dict[str, Any]]]:
    r"""The recipe with the inputs that did best in a short run, and what each of them reached."""
    if problem.held_out is None or len(names) == 1:
        name = "munge" if "munge" in names else names[0]
        return replace(recipe, inputs=name), []
    student = (50, 30) if recipe.student == "auto" else recipe.student
    found: list[dict[str, Any]] = []
    for name in tracked(names, "trying inputs", problem.progress):
        steps = min(PILOT, recipe.steps or PILOT)
        quiet = recipe.options | {"progress": False, "callbacks": None}
        options = _own_place(quiet, f"inputs-{name}")
        pilot = replace(recipe, inputs=name, student=student, steps=steps, options=options)
        result = train(problem, pilot)
        found.append({"inputs": name, "divergence": closeness(problem, result)})
    best = min(found, key=lambda entry: entry["divergence"])
    options = _own_place(recipe.options, "student")  # not among those of the short runs
    return replace(recipe, inputs=best["inputs"], options=options), found


def grown(
    problem: Problem, recipe: Recipe, keep: float, max_bytes: int | None
) -> tuple[Result, Recipe, list[dict[str, Any]]]:
    r"""The smallest student of a growing sequence that keeps enough; the last one, if none does."""
    if problem.held_out is None:
        count = rows(problem.x)
        received = f"{count} rows, too few to hold some out"
        expected = f"for student='auto' so many that held_out takes {FEWEST_HELD_OUT} or more"
        if count >= 2 * FEWEST_HELD_OUT:
            expected += f", as held_out={math.ceil(100 * FEWEST_HELD_OUT / count) / 100:g} does"
        raise ArgumentError("X", received, expected)
    tried: list[dict[str, Any]] = []
    last: tuple[Result, Recipe] | None = None
    predictor, encoder = problem.predictor, problem.kind.encoder()
    for hidden, _ in sizes(
        problem.x, predictor.outputs, predictor.task, encoder=encoder, max_bytes=max_bytes
    ):
        place = _own_place(recipe.options, "-".join(map(str, hidden)))
        attempt = replace(recipe, student=hidden, options=place)
        result = train(problem, attempt)
        share = kept(problem, result)
        tried.append({"student": hidden, "kept": share, "bytes": bytes_on_disk(result.student)})
        last = result, attempt
        if share >= keep:
            break
    assert last is not None
    return *last, tried


def _own_place(options: dict[str, Any], name: str) -> dict[str, Any]:
    r"""Options with a checkpoint folder of its own for what is tried, if there is to be any."""
    if options.get("checkpoint") is None:
        return options
    return options | {"checkpoint": Path(options["checkpoint"]) / name}


def closeness(problem: Problem, result: Result) -> float:
    r"""How far a student is from its teacher where it is measured: mean KL, or 1 − R²."""
    teacher, student = _both(problem, result)
    if problem.predictor.task == "regression":
        around = np.maximum(teacher.var(0), np.finfo(float).tiny)
        return float((((teacher - student) ** 2).mean(0) / around).mean())
    divergence = kl if problem.predictor.task == "classification" else label_kl
    return float(divergence(teacher, student).mean())


def kept(problem: Problem, result: Result) -> float:
    r"""Agreement with the teacher where it is measured; for regression R² against it."""
    if problem.predictor.task == "regression":
        return 1 - closeness(problem, result)
    same = agreement if problem.predictor.task == "classification" else label_agreement
    return float(same(*_both(problem, result)).mean())


def _both(problem: Problem, result: Result) -> tuple[np.ndarray, np.ndarray]:
    r"""What teacher and student say of the inputs to measure by, (n, K)."""
    assert problem.held_out is not None
    form = result.settings.get("student_output")
    student = predictions(result.student, problem.held_out, problem.predictor.task, form)
    return problem.held_out_targets(), student
