r"""The same student trained on true labels alone: a report's baseline, stopped by held-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.arrays import X, join, part_of, rows
from limbeck.compression import training as trainer
from limbeck.compression.problem import MAX_HELD_OUT, Problem, default_loss, take
from limbeck.compression.students import Fitted
from limbeck.compression.training import RATE, Recipe
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset
from limbeck.models import MLP, Preprocessed
from limbeck.teachers.folds import as_labels, mix_labels, unlabelled
from limbeck.teachers.query import safe_scale
from limbeck.teachers.stored import Stored
from limbeck.training.distill import train
from limbeck.training.result import Result

__all__ = ["train_on_labels"]

HELD_OUT = 0.1  # the share of rows that is held out, of many
RATES = (RATE, RATE / 10)  # learning rates, of which the one with the lower held-out loss is taken
# rows up to which several folds are held out, one after the other, and how many those are
FEW_ROWS, FOLDS = 500, 5


def train_on_labels(problem: Problem, recipe: Recipe, labels: object) -> tuple[Result, Problem]:
    r"""The student of a recipe, trained on labels alone, and the problem that it solves.

    Rows held out tell when networks stop, their learning rate if none is given, and trees' size.
    """
    x, targets = _labelled(problem, labels)
    labelled = replace(
        problem, x=x, index=torch.arange(len(targets)), held_out=None, fixed_targets=targets,
        loss=default_loss(problem.teacher.task), _known={},
    )  # fmt: skip
    training = replace(  # without what concerns the student's own training
        recipe.training, callbacks=None, checkpoint=None, held_out=None, patience=None, every=None,
        seconds=None,
    )  # fmt: skip
    recipe = replace(recipe, inputs="data", training=training)
    student, origin = trainer.make_student(labelled, recipe)
    if isinstance(student, Fitted):
        student = _best_size(labelled, student, recipe.training.seed, origin)
        return trainer.fit_trees(labelled, student, recipe, origin), labelled
    return _best_network(labelled, recipe), labelled


def _labelled(problem: Problem, labels: object) -> tuple[X, np.ndarray]:
    r"""All rows of the user's that have a label, and the labels as targets (n, K)."""
    x, index = problem.x, problem.index.numpy()
    if problem.held_out is not None:
        count = rows(problem.held_out) // 2  # the other half are mixtures of these
        x = join([x, part_of(problem.held_out, 0, count)])
        index = np.concatenate([index, np.setdiff1d(np.arange(rows(x)), index)])
    y = as_labels(labels, rows(x))[index]
    missing = unlabelled(y, problem.teacher.classes).reshape(len(y), -1).any(1)
    known = np.flatnonzero(~missing)
    if not len(known):
        raise ArgumentError("labels", f"{len(y)} missing ones", "labels of some rows at least")
    zeros = np.zeros((len(known), problem.teacher.outputs))
    targets = mix_labels(zeros, y[known], 1.0, problem.teacher.classes)
    return take(x, torch.as_tensor(known)), targets


def _held_out(targets: np.ndarray, task: str, seed: int) -> np.ndarray:
    r"""Rows to hold out: at random, with about the same share of every class or range of values."""
    n = len(targets)
    count = min(MAX_HELD_OUT, round(HELD_OUT * n))
    places = (np.arange(count) + 0.5) * n / max(count, 1)
    return np.sort(_ordered(targets, task, seed)[places.astype(int)])


def _ordered(targets: np.ndarray, task: str, seed: int) -> np.ndarray:
    r"""Rows in random order, by class or value: every k-th row is then one of each range."""
    order = np.random.default_rng(seed).permutation(len(targets))
    if task == "multilabel":
        return order
    key = targets.argmax(1) if task == "classification" else targets[:, 0]
    return order[np.argsort(key[order], kind="stable")]


def _best_network(problem: Problem, recipe: Recipe) -> Result:
    r"""A network at its lowest held-out loss.

    With few rows, the mean loss over folds gives the number of steps, which are made with all rows.
    """
    targets, task, training = problem.targets(), problem.teacher.task, recipe.training
    n = len(targets)
    default = trainer.has_default_update(training) and training.lr is None
    if n > FEW_ROWS or n < 2 * FOLDS:
        held_out = _held_out(targets, task, training.seed)
        settings = [replace(training, lr=rate) for rate in RATES] if default else [training]
        recipes = [replace(recipe, training=setting) for setting in settings]
        runs = [_network(problem, candidate, held_out) for candidate in recipes]
        return min(runs, key=lambda run: run[0].loss)[1]
    # steps of a decaying rate would not be the same ones in a shorter run
    if default:
        automatic = isinstance(training.schedule, str) and training.schedule == "auto"
        schedule = "constant" if automatic else training.schedule
        recipe = replace(recipe, training=replace(training, lr=min(RATES), schedule=schedule))
    folds = _folds(targets, task, training.seed)
    curves = [_network(problem, recipe, fold)[0].curve for fold in folds]
    steps = sorted(set().union(*curves))
    # the mean held-out loss by step; one that has stopped stays as it was
    losses = [np.interp(steps, list(curve), list(curve.values())) for curve in curves if curve]
    best = steps[int(np.mean(losses, axis=0).argmin())]
    return _network(problem, recipe, np.arange(0), best)[1]


def _folds(targets: np.ndarray, task: str, seed: int) -> list[np.ndarray]:
    order = _ordered(targets, task, seed)
    return [np.sort(order[k::FOLDS]) for k in range(FOLDS)]


def _network(
    problem: Problem, recipe: Recipe, held_out: np.ndarray, stop: int | None = None
) -> tuple[_Watch, Result]:
    r"""A network at its lowest held-out loss, or after so many steps; and the losses on the way."""
    learn = np.setdiff1d(np.arange(rows(problem.x)), held_out)
    student, _ = trainer.make_student(problem, recipe)
    assert not isinstance(student, Fitted)
    x = trainer.student_inputs(student, problem.x)
    shift, scale = problem.unit()
    if isinstance(student, Preprocessed):
        _start_small(student)
    else:  # its outputs are in the labels' own units
        shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
    values = (torch.as_tensor(problem.targets(), dtype=torch.float32) - shift) / safe_scale(scale)
    training = trainer.with_defaults(recipe.training, problem.teacher.task, student, problem.x)
    steps = max(recipe.steps or 0, trainer.default_steps(len(learn), training.batch_size))
    training = replace(training, steps=stop or steps)
    watch = _Watch(student)
    if len(held_out):
        source = Dataset(take(x, torch.as_tensor(held_out)), y=values[held_out].numpy())
        every = max(1, steps // 200)
        training = replace(training, held_out=source, patience=30, every=every, callbacks=watch)
    teacher, inputs = Stored(values[learn], problem.form), take(x, torch.as_tensor(learn))
    result = train(teacher, student, Dataset(inputs), problem.loss, training)
    watch.restore()
    trainer.finish_student(student, shift, scale)
    return watch, result


@torch.no_grad()
def _start_small(student: Preprocessed) -> None:
    r"""Let the outputs start near 0: on few rows, what is random at the start stays in the end."""
    if isinstance(student.network, MLP):
        last = student.network.layers[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(0.1)


class _Watch:
    r"""A callback that keeps the weights at the lowest held-out loss."""

    def __init__(self, student: nn.Module) -> None:
        self.student, self.loss = student, math.inf
        self.state: dict[str, Any] = {}
        self.curve: dict[int, float] = {}

    def __call__(self, entry: Mapping[str, float]) -> None:
        self.curve[int(entry["step"])] = entry["held_out"]
        if entry["held_out"] < self.loss:
            self.loss = entry["held_out"]
            state = self.student.state_dict()
            self.state = {name: value.detach().clone() for name, value in state.items()}

    def restore(self) -> None:
        if self.state:
            self.student.load_state_dict(self.state)


def _best_size(problem: Problem, student: Fitted, seed: int, origin: Tensor | None) -> Fitted:
    r"""Trees of the size, up to the student's, that has the least square error on rows held out."""
    sizes = list(_sizes(student, rows(problem.x)))
    if len(sizes) < 2 or rows(problem.x) < 2 * FOLDS:
        return student
    task, targets = problem.teacher.task, problem.targets()
    encoder = problem.format.encoder("one_hot")
    inputs, few = trainer.narrowed(problem.x, origin), len(targets) <= FEW_ROWS
    folds = _folds(targets, task, seed) if few else [_held_out(targets, task, seed)]
    errors = np.zeros(len(sizes))
    for fold in folds:
        learn = np.setdiff1d(np.arange(len(targets)), fold)
        x, other = (take(inputs, torch.as_tensor(part)) for part in (learn, fold))
        for place, size in enumerate(sizes):
            model = replace(size, encoder=encoder).fit(x, targets[learn])
            errors[place] += ((trainer.predictions(model, other, task) - targets[fold]) ** 2).sum()
    return sizes[int(errors.argmin())]  # the smaller, if equal


def _sizes(student: Fitted, n: int) -> Iterator[Fitted]:
    r"""The student and smaller ones, the smallest first: fewer leaves, or fewer boosted trees."""
    from sklearn.base import clone

    name, largest = _size_of(student)
    if name is None:
        yield student
        return
    if largest is None:
        counts = [2**k for k in range(1, max(2, n.bit_length()))]
    elif name == "max_leaf_nodes":
        counts = [2**k for k in range(1, largest.bit_length()) if 2**k < largest]
    else:
        counts = sorted({max(1, largest // 2**k) for k in range(1, 6)})
    for count in counts:
        if student.estimator is None:
            yield replace(student, options=student.options | {name: count})
        else:
            yield replace(student, estimator=clone(student.estimator).set_params(**{name: count}))
    yield student


def _size_of(student: Fitted) -> tuple[str | None, int | None]:
    r"""What the size of trees is called, and what it is; no name where they have no one size."""
    if student.kind == "tree":
        return "max_leaf_nodes", student.options.get("max_leaf_nodes", 64)
    if student.kind == "boosted":
        return "trees", student.options.get("trees", 50)
    known, kind = student.estimator.get_params(), type(student.estimator).__name__
    if "Boosting" in kind:
        name = "max_iter" if "max_iter" in known else "n_estimators"
        return name, int(known[name])
    if "Tree" in kind and "n_estimators" not in known:
        return "max_leaf_nodes", known["max_leaf_nodes"]
    return None, None  # a forest, which more trees do not make overfit
