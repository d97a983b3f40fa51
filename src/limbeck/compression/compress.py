r"""`compress`: any teacher and rows without labels in; a small student out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from limbeck.arguments import number, whole_number
from limbeck.arrays import join, rows
from limbeck.compression.compressed import Compressed
from limbeck.compression.dispatch import Predictor, as_predictor
from limbeck.compression.generators import candidates, fresh
from limbeck.compression.problem import Problem, default_loss, split, take
from limbeck.compression.rows import Rows, TableKind, read
from limbeck.compression.search import best_inputs, grown
from limbeck.compression.training import Recipe, train
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.losses.base import Loss
from limbeck.tables.table import code_note
from limbeck.teachers.base import Opaque
from limbeck.teachers.cache import TeacherCache, as_cache
from limbeck.teachers.folds import mix, out_of_fold
from limbeck.teachers.keys import as_rows, count, select
from limbeck.teachers.query import TeacherError, label
from limbeck.training.config import refuse_unknown
from limbeck.training.preparation import as_loss, whole

__all__ = ["compress"]

ASKED = (10_000, 50_000, 10)
r"""Inputs that a teacher is asked about: ten for each row, within these numbers."""

LOOKED_AT = 100
r"""Rows at which a teacher is looked at first."""

SETTLED = ("steps", "teacher_output", "precompute", "seed")
r"""Settings of a training that `compress` decides itself."""


def compress(
    teacher: Any,
    X: Any,
    student: Any = (50, 30),
    *,
    labels: Any = None,
    label_weight: float = 0.5,
    loss: str | Loss = "auto",
    inputs: Any = "auto",
    size: int | None = None,
    steps: int | None = None,
    task: str = "auto",
    output: str = "auto",
    weights: Any = None,
    stack: Any = None,
    classes: Any = None,
    table: Any = None,
    teacher_folds: int | None = None,
    cache: str | Path | TeacherCache | None = None,
    cache_key: str | None = None,
    teacher_batch: int | None = None,
    retries: int = 3,
    retry_on: tuple[type[Exception], ...] = (OSError,),
    held_out: float = 0.1,
    keep: float = 0.99,
    max_bytes: int | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Compressed:
    r"""Train one small model to predict like a cumbersome one; no labels are needed.

    The teacher is asked about the rows of X, as they are, and about further inputs made of them, in
    the same types. A teacher that
    is not of torch is asked beforehand, once for each input; a torch teacher is asked by the loop,
    at fresh inputs each step.

    Arguments:
        teacher: A torch module, an estimator of scikit-learn, XGBoost, LightGBM or CatBoost, a
            list of these, the path of an ONNX or booster file, or a function of arrays.
        X: Rows: an array, a tensor, a data frame with columns of any kind, a sparse matrix, a
            torch Dataset.
        student: Hidden sizes, such as (50, 30); "auto" for the smallest net that keeps enough;
            "linear", "tree" or "boosted"; a tree of scikit-learn; or a torch module, a copy of
            which is trained.
        labels: True labels of the rows, to be mixed with what the teacher says of them. Missing
            ones are None or NaN.
        label_weight: Their share, from 0 to 1; with 0 they only serve the report's comparison.
        loss: From `limbeck.losses`, or a name; by default cross entropy, or square error for
            regression. Derivatives can be matched where the teacher is a torch module.
        inputs: Where inputs come from: a name (see `limbeck.compression.generators`), a source of
            `limbeck.inputs`, or "auto", which tries a few and keeps what does best at rows that
            were held out and near them.
        size: How many inputs the teacher is asked about, beforehand: the rows and, if these are
            fewer, generated ones. By default ten for each row, at least 10,000 and at most 50,000;
            or twice the rows, if that is more and `inputs` names what to generate.
        steps: Steps of the training; by default by the number of inputs.
        task: "classification", "multilabel" or "regression"; "auto" asks the teacher.
        output: What a torch teacher's outputs are: "logits", "probabilities", … ; "auto" looks.
        weights: Of the members, for a list of teachers.
        stack: A model of the members' answers, for a list of teachers.
        classes: Names of the classes, where the teacher does not know them.
        table: The schema of a data frame, a `limbeck.Table`; None reads it off X.
        teacher_folds: For a teacher that was fitted to these rows and labels: the number of folds
            in which copies of it are fitted anew, so that no row is labelled by one that saw it.
        cache: A folder in which the teacher's answers, and derivatives if the loss asks for some,
            are kept for the next time. A torch teacher is then asked beforehand, too.
        cache_key: A name for a teacher whose content cannot be read, such as a remote one.
        teacher_batch: Inputs that the teacher is asked about at once.
        retries: How often a teacher is asked again after an error of its connection.
        retry_on: Which errors those are; OSError has ConnectionError and TimeoutError among it.
        held_out: The fraction of the rows that students are compared on, where there is a choice.
        keep: For student="auto": the fraction of the teacher's measure that is enough.
        max_bytes: For student="auto": the largest student.
        seed: Seeds everything.
        progress: Whether to show bars, if a terminal is there.
        options: Further arguments of `limbeck.distill`: optimizer, batch_size, device, ….
    """
    refuse_unknown(options, SETTLED, inspect.signature(compress).parameters)
    seed = whole_number("seed", seed, "a whole number")
    if options.get("batch_size", "auto") != "auto":
        options["batch_size"] = whole("batch_size", options["batch_size"])
    data = read(X, table)
    labels = data.labels if labels is None else labels
    some = select(as_rows(data.given), np.arange(min(LOOKED_AT, rows(data.x))))
    predictor = _looked_at(
        teacher, some, task=task, output=output, weights=weights, stack=stack, classes=classes
    )
    options["progress"] = progress
    ask = partial(
        _asked, predictor=predictor, cache=as_cache(cache), cache_key=cache_key,
        batch_size=teacher_batch, retries=retries, retry_on=retry_on, progress=progress,
    )  # fmt: skip
    chosen = "auto" in [choice for choice in (inputs, student) if isinstance(choice, str)]
    fraction = number("held_out", held_out, "a fraction from 0 to below 1", lambda f: 0 <= f < 1)
    fraction = fraction if chosen else 0.0
    refit = None
    if teacher_folds is not None:
        refit = partial(out_of_fold, predictor, folds=teacher_folds, seed=seed, progress=progress)
    problem = _problem(data, predictor, ask, labels, label_weight, refit, fraction, seed)
    problem.loss = default_loss(predictor.task) if loss == "auto" else _loss(loss)
    problem.progress = progress
    # inputs of the user's own source never come again
    problem.kept = cache is not None and isinstance(inputs, str)
    _refuse_derivatives(problem)
    wanted = _size(rows(problem.x), inputs)
    size = wanted if size is None else whole_number("size", size, "a whole number from 1", least=1)
    if steps is not None:
        steps = whole_number("steps", steps, "a whole number from 1", least=1)
    number("keep", keep, "a fraction above 0, up to 1", lambda share: 0 < share <= 1)
    recipe = Recipe(student, inputs, size, steps, seed, options)
    tried: list[dict[str, Any]] = []
    if isinstance(inputs, str) and inputs == "auto":
        names = candidates(data.kind, problem.x, problem.live, size)
        recipe, tried = best_inputs(problem, recipe, names)
    if isinstance(student, str) and student == "auto":
        result, recipe, grew = grown(problem, recipe, keep, max_bytes)
        tried += grew
    else:
        result = train(problem, recipe)
    return Compressed.of(result, problem, recipe, labels, tried, _notes(problem))


def _notes(problem: Problem) -> list[str]:
    r"""What a user should know of the rows, beside the student."""
    if not isinstance(problem.kind, TableKind) or not isinstance(problem.x, dict):
        return []
    note = code_note(problem.kind.table, problem.x, problem.targets())
    return [] if note is None else [note]


def _size(many: int, inputs: Any) -> int:
    r"""How many inputs a teacher is asked about, if nobody says."""
    low, high, each = ASKED
    wanted = max(many, min(high, max(low, each * many)))
    made = isinstance(inputs, str) and inputs not in ("auto", "data")
    return max(wanted, 2 * many) if made else wanted  # half of them at least as the user wants


def _looked_at(teacher: Any, some: Any, **said: Any) -> Predictor:
    r"""The teacher as a predictor; what it raises where it is looked at first is its own error."""
    try:
        return as_predictor(teacher, some, **said)
    except LimbeckError:
        raise
    except Exception as error:
        raise TeacherError.of(error, "the first rows of X", np.arange(count(some))) from error


def _problem(
    data: Rows,
    predictor: Any,
    ask: Any,
    labels: Any,
    weight: float,
    refit: Callable[..., np.ndarray] | None,
    fraction: float,
    seed: int,
) -> Problem:
    r"""The rows split, and how the teacher's word on those to learn from is had."""
    weight = number("label_weight", weight, "a number from 0 to 1", lambda w: 0 <= w <= 1)
    ours, theirs = split(rows(data.x), fraction, seed)
    x, given = take(data.x, ours), data.given
    own: Callable[[], np.ndarray] | None = None
    if theirs is not None:
        given = select(as_rows(data.given), ours.numpy())
    if labels is not None:
        labels = _labels(labels, rows(data.x))
    if refit is not None:
        if labels is None:
            raise ArgumentError("labels", None, "the labels of the rows, beside teacher_folds")
        own = partial(refit, given, labels[ours.numpy()])
    if labels is not None and weight > 0:
        # looked at before the teacher is asked
        mix(np.zeros((len(labels), predictor.outputs)), labels, weight, predictor.classes)
        before = own or partial(ask, given)
        own = partial(_mixed, before, labels[ours.numpy()], weight, predictor.classes)
    held, held_given = None, None
    if theirs is not None:
        held, held_given = take(data.x, theirs), select(as_rows(data.given), theirs.numpy())
        held = join([held, fresh("munge", data.kind, held, rows(held), seed)])
    loss = default_loss(predictor.task)
    return Problem(
        predictor, data.kind, x, ours, held, ask, own, loss, given=given, held_given=held_given
    )


def _mixed(before: Any, labels: np.ndarray, weight: float, classes: Any) -> np.ndarray:
    return mix(before(), labels, weight, classes)


def _asked(X: Any, other: Any = None, *, predictor: Any, **options: Any) -> np.ndarray:
    r"""The word of the teacher on rows, or that of another in its place."""
    return label(predictor if other is None else other, X, **options)


def _labels(labels: Any, n: int) -> np.ndarray:
    found = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else labels
    found = np.asarray(found)
    if found.shape[:1] != (n,):
        received = f"{len(found)} labels" if found.ndim else repr(labels)
        raise ArgumentError("labels", received, f"one for each of {n} rows")
    return found


def _loss(loss: str | Loss) -> Loss:
    return as_loss(loss, None, None, "", None) if isinstance(loss, str) else loss  # type: ignore[arg-type]


def _refuse_derivatives(problem: Problem) -> None:
    r"""Say at once that there are no derivatives to be matched."""
    asking = any("derivatives" in term.asks for _, term in problem.loss)
    if problem.differentiable or not asking:
        return
    if problem.predictor.module is not None:
        received = f"{problem.loss!r}, which matches derivatives"
        expected = (
            "a loss on values: there are no derivatives with respect to a table, nor of labels "
            "that are mixed in (label_weight=0 leaves them out)"
        )
        raise ArgumentError("loss", received, expected)
    Opaque(problem.predictor, "values").refuse_derivatives(repr(problem.loss))
