r"""The same student trained on true labels alone: a report's baseline, stopped by held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import join, part_of, rows
from limbeck.compression import training as trainer
from limbeck.compression.students import Fitted, narrowed, predictions, student_inputs
from limbeck.compression.training import MAX_HELD_OUT, RATE, Problem, Recipe, take
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset
from limbeck.models import MLP, Preprocessed
from limbeck.teachers.folds import as_labels, mix_labels, unlabelled
from limbeck.teachers.stored import Stored
from limbeck.training.distill import train
from limbeck.training.result import Result

HELD_OUT = 0.1  # the share of rows that is held out, of many
RATES = (RATE, RATE / 10)  # learning rates, of which the one with the lower held-out loss is taken
# rows up to which several folds are held out, one after the other, and how many those are
FEW_ROWS, FOLDS = 500, 5


def train_on_labels(problem: Problem, recipe: Recipe, labels: object) -> tuple[Result, Problem]:
    r"""The student of a recipe, trained on labels alone, and the problem that it solves."""
    x, index, teacher = problem.x, problem.index.numpy(), problem.teacher
    if problem.held_out is not None:
        count = rows(problem.held_out) // 2  # the other half are mixtures of these
        x = join([x, part_of(problem.held_out, 0, count)])
        index = np.concatenate([index, np.setdiff1d(np.arange(rows(x)), index)])
    y = as_labels(labels, rows(x))[index]
    known = np.flatnonzero(~unlabelled(y, teacher.classes).reshape(len(y), -1).any(1))
    if not len(known):
        raise ArgumentError("labels", f"{len(y)} missing ones", "labels of some rows at least")
    zeros = np.zeros((len(known), teacher.outputs))
    targets = mix_labels(zeros, y[known], 1.0, teacher.classes)
    labelled = replace(
        problem, x=take(x, torch.as_tensor(known)), index=torch.arange(len(known)), held_out=None,
        fixed_targets=targets, loss=trainer.default_loss(teacher.task),
    )  # fmt: skip
    # settings that concern the student's own training
    names = ("callbacks", "checkpoint", "held_out", "patience", "every", "seconds")
    nothing: dict[str, Any] = dict.fromkeys(names)
    recipe = replace(recipe, inputs="data", training=replace(recipe.training, **nothing))
    student, origin = trainer.make_student(labelled, recipe)
    if isinstance(student, Fitted):
        student = _best_size(labelled, student, origin)
        return trainer.fit_trees(labelled, student, recipe, origin), labelled
    return _best_network(labelled, recipe), labelled


def _folds(problem: Problem, seed: int) -> list[np.ndarray]:
    r"""Rows to hold out, of few rows in turn: about the same share of every class or range."""
    targets, task, n = problem.targets, problem.teacher.task, len(problem.targets)
    order = np.random.default_rng(seed).permutation(n)
    if task != "multilabel":  # sorted by class or value, every k-th row is one of each range
        key = targets.argmax(1) if task == "classification" else targets[:, 0]
        order = order[np.argsort(key[order], kind="stable")]
    if 2 * FOLDS <= n <= FEW_ROWS:
        return [np.sort(order[k::FOLDS]) for k in range(FOLDS)]
    count = min(MAX_HELD_OUT, round(HELD_OUT * n))
    places = (np.arange(count) + 0.5) * n / max(count, 1)
    return [np.sort(order[places.astype(int)])]


def _best_network(problem: Problem, recipe: Recipe) -> Result:
    r"""A network at its lowest held-out loss; of few rows, at the lowest mean over folds."""
    training, folds = recipe.training, _folds(problem, recipe.training.seed)
    default = trainer.has_default_update(training)
    if len(folds) == 1:
        settings = [replace(training, lr=rate) for rate in RATES] if default else [training]
        recipes = [replace(recipe, training=setting) for setting in settings]
        return min((_network(problem, r, folds[0]) for r in recipes), key=_lowest_loss)
    # steps of a decaying rate would not be the same ones in a shorter run
    if default:
        schedule = "constant" if trainer.is_auto(training.schedule) else training.schedule
        recipe = replace(recipe, training=replace(training, lr=min(RATES), schedule=schedule))
    curves = [_network(problem, recipe, fold).history for fold in folds]
    steps = sorted(set().union(*(curve.get("step", []) for curve in curves)))
    # the mean held-out loss by step; one that has stopped stays as it was
    losses = [np.interp(steps, curve["step"], curve["held_out"]) for curve in curves if curve]
    best = steps[int(np.mean(losses, axis=0).argmin())]
    return _network(problem, recipe, np.arange(0), int(best))


def _lowest_loss(result: Result) -> float:
    losses = result.history.get("held_out", [])
    return min((loss for loss in losses if not math.isnan(loss)), default=math.inf)


def _network(
    problem: Problem, recipe: Recipe, held_out: np.ndarray, stop: int | None = None
) -> Result:
    r"""A network at its lowest held-out loss, or after a given number of steps."""
    learn = np.setdiff1d(np.arange(rows(problem.x)), held_out)
    student, _ = trainer.make_student(problem, recipe)
    assert not isinstance(student, Fitted)
    x, (shift, scale) = student_inputs(student, problem.x), problem.unit(student)
    if isinstance(student, Preprocessed) and isinstance(student.network, MLP):
        # outputs start near 0: on few rows, what is random at the start stays in the end
        last: Any = student.network.layers[-1]
        last.weight.data *= 0.1
    values = trainer.scaled(problem.targets, shift, scale)
    training = trainer.with_defaults(recipe.training, problem.teacher.task, student, problem.x)
    steps = max(recipe.steps or 0, trainer.default_steps(len(learn), training.batch_size))
    training = replace(training, steps=stop or steps)
    lowest: tuple[float, dict[str, Any]] = (math.inf, {})

    def keep_best(entry: Mapping[str, float]) -> None:
        nonlocal lowest
        if entry["held_out"] < lowest[0]:
            state = student.state_dict().items()
            lowest = entry["held_out"], {name: value.detach().clone() for name, value in state}

    if len(held_out):
        source = Dataset(take(x, held_out), y=values[held_out].numpy())
        every = max(1, steps // 200)
        training = replace(training, held_out=source, patience=30, every=every, callbacks=keep_best)
    teacher, inputs = Stored(values[learn], problem.form), Dataset(take(x, learn))
    result = train(teacher, student, inputs, problem.loss, training)
    if lowest[1]:
        student.load_state_dict(lowest[1])
    trainer.finish_student(student, shift, scale)
    return result


def _best_size(problem: Problem, student: Fitted, origin: Tensor | None) -> Fitted:
    r"""Trees of the size, up to the student's, that has the least square error on rows held out."""
    targets, task = problem.targets, problem.teacher.task
    sizes = _smaller(student, len(targets))
    if len(sizes) < 2 or len(targets) < 2 * FOLDS:
        return student
    encoder = problem.format.encoder("one_hot")
    inputs, errors = narrowed(problem.x, origin), np.zeros(len(sizes))
    for fold in _folds(problem, student.seed):
        learn = np.setdiff1d(np.arange(len(targets)), fold)
        x, other = take(inputs, learn), take(inputs, fold)
        for place, size in enumerate(sizes):
            model = replace(size, encoder=encoder).fit(x, targets[learn])
            errors[place] += ((predictions(model, other, task) - targets[fold]) ** 2).sum()
    return sizes[int(errors.argmin())]  # the smaller, if equal


def _smaller(student: Fitted, n: int) -> list[Fitted]:
    r"""Smaller students, the smallest first, and the student: fewer leaves, or boosted trees."""
    from sklearn.base import clone

    known = {} if student.estimator is None else student.estimator.get_params()
    kind, largest = type(student.estimator).__name__, None
    if student.estimator is None:  # the default of `fit_tree` or `fit_boosted`
        name, largest = ("max_leaf_nodes", 64) if student.kind == "tree" else ("trees", 50)
    elif "Boosting" in kind:
        name = "max_iter" if "max_iter" in known else "n_estimators"
        largest = int(known[name])
    elif "Tree" in kind and "n_estimators" not in known:
        name, largest = "max_leaf_nodes", known["max_leaf_nodes"]
    else:
        return [student]  # a forest, which more trees do not make overfit
    if largest is None:
        counts = [2**k for k in range(1, max(2, n.bit_length()))]
    elif name == "max_leaf_nodes":
        counts = [2**k for k in range(1, largest.bit_length()) if 2**k < largest]
    else:
        counts = sorted({max(1, largest // 2**k) for k in range(1, 6)})
    if student.estimator is None:
        smaller = [replace(student, options={name: count}) for count in counts]
    else:
        models = [clone(student.estimator).set_params(**{name: count}) for count in counts]
        smaller = [replace(student, estimator=model) for model in models]
    return [*smaller, student]
