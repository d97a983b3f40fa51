r"""A report's baselines, trained on labels alone: the same student, trees that are no larger."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X, rows
from limbeck.compression import training as trainer
from limbeck.compression.rows import RowFormat, TableFormat
from limbeck.compression.students import Fitted, predictions, student_inputs, tree_encoder
from limbeck.compression.training import MAX_HELD_OUT, RATE, Problem, Recipe
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset
from limbeck.models import MLP, Preprocessed
from limbeck.models.tree_fit import lightgbm
from limbeck.tables.columns import Category, Number
from limbeck.teachers.folds import as_labels, mix_labels, unlabelled
from limbeck.teachers.keys import select
from limbeck.teachers.stored import Stored
from limbeck.training.distill import train
from limbeck.training.result import Result

HELD_OUT = 0.1  # the share of rows that is held out, of many
RATES = (RATE, RATE / 10)  # learning rates, of which the one with the lower held-out loss is taken
# rows up to which several folds are held out, one after the other, and how many those are
FEW_ROWS, FOLDS = 500, 5
NODE_BYTES = 16  # feature, threshold or value, two children, of 4 bytes each: files take more
MAX_ROUNDS, MIN_ROWS = 500, 40  # of boosted trees: rounds at most, and labelled rows at least


def train_on_labels(problem: Problem, recipe: Recipe, labels: object) -> tuple[Result, Problem]:
    r"""The student of a recipe, trained on labels alone, and the problem that it solves."""
    teacher, y = problem.teacher, as_labels(labels, rows(problem.data.x))
    index = np.concatenate([problem.index, problem.held_out])
    known = index[~unlabelled(y[index], teacher.classes).reshape(len(index), -1).any(1)]
    if not len(known):
        raise ArgumentError("labels", f"{len(index)} missing ones", "labels of some rows at least")
    loss, nobody = trainer.default_loss(teacher.task), np.zeros((len(known), teacher.outputs))
    labelled = replace(problem, index=known, held_out=index[:0], labels=y, loss=loss)
    labelled.targets = mix_labels(nobody, y[known], 1.0, teacher.classes)
    # settings that concern the student's own training
    names = ("callbacks", "checkpoint", "held_out", "patience", "every", "seconds")
    nothing: dict[str, Any] = dict.fromkeys(names)
    recipe = replace(recipe, inputs="data", training=replace(recipe.training, **nothing))
    student = trainer.make_student(labelled, recipe)
    if isinstance(student, Fitted):
        return trainer.fit_trees(labelled, _best_size(labelled, student), recipe), labelled
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
        fits = (_network(problem, r, folds[0]) for r in recipes)
        return min(fits, key=lambda fit: np.nanmin([math.inf, *fit.history.get("held_out", [])]))
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


def _network(
    problem: Problem, recipe: Recipe, held_out: np.ndarray, stop: int | None = None
) -> Result:
    r"""A network at its lowest held-out loss, or after a given number of steps."""
    learn = np.setdiff1d(np.arange(rows(problem.x)), held_out)
    student = trainer.make_student(problem, recipe)
    assert not isinstance(student, Fitted)
    x, (shift, scale) = student_inputs(student, problem.x), problem.unit(student)
    if isinstance(student, Preprocessed) and isinstance(student.network, MLP):
        # outputs start near 0: on few rows, what is random at the start stays in the end
        last: Any = student.network.layers[-1]
        last.weight.data *= 0.1
    values = trainer.scaled(problem.targets, shift, scale)
    training = trainer.with_defaults(recipe.training, problem.teacher.task, student, problem.x)
    steps = trainer.default_steps(len(learn), training.batch_size)
    training = replace(training, steps=stop or steps)
    if len(held_out):
        source = Dataset(select(x, held_out), y=values[held_out].numpy())
        training = replace(training, held_out=source, patience=8, every=max(1, steps // 50))
    weight = None if problem.weight is None else problem.weight[learn]
    teacher, inputs = Stored(values[learn], problem.form), Dataset(select(x, learn), weight=weight)
    result = train(teacher, student, inputs, problem.loss, training)
    trainer.finish_student(student, shift, scale)
    return result


def _best_size(problem: Problem, student: Fitted) -> Fitted:
    r"""Trees of the size, up to the student's, that has the least square error on rows held out."""
    targets, task = problem.targets, problem.teacher.task
    sizes = _smaller(student, len(targets))
    if len(sizes) < 2 or len(targets) < 2 * FOLDS:
        return student
    encoder = tree_encoder(problem.format, student.kind, problem.x, targets, task)
    errors = np.zeros(len(sizes))
    weight = np.ones(len(targets)) if problem.weight is None else problem.weight
    for fold in _folds(problem, student.seed):
        learn = np.setdiff1d(np.arange(len(targets)), fold)
        x, other = select(problem.x, learn), select(problem.x, fold)
        for place, size in enumerate(sizes):
            model = replace(size, encoder=encoder).fit(x, targets[learn], weight[learn])
            error = (predictions(model, other, task) - targets[fold]) ** 2
            errors[place] += (weight[fold, None] * error).sum()
    return sizes[int(errors.argmin())]  # the smaller, if equal


def _smaller(student: Fitted, n: int) -> list[Fitted]:
    r"""Smaller students, the smallest first, and the student: fewer leaves, or boosted trees."""
    from sklearn.base import clone

    model = student.estimator
    if model is None:  # the default of `fit_tree` or `fit_boosted`
        known = {"max_leaf_nodes": 64} if student.kind == "tree" else {"trees": 100}
        known |= student.options
    else:
        known = model.get_params()
        if "n_estimators" in known and "Boosting" not in type(model).__name__:
            return [student]  # a forest, which more trees do not make overfit
    names = ("trees", "max_iter", "n_estimators", "max_leaf_nodes")
    name = next(name for name in names if name in known)
    largest, least = known[name] or n, 2 if name == "max_leaf_nodes" else 1
    sizes: list[dict[str, Any]] = [{name: largest >> k} for k in range(largest.bit_length(), 0, -1)]
    sizes = [size for size in sizes if size[name] >= least]
    if model is None:
        return [*(replace(student, options=student.options | size) for size in sizes), student]
    return [*(replace(student, estimator=clone(model).set_params(**s)) for s in sizes), student]


class LabelTrees(NamedTuple):
    r"""Boosted trees fitted to labels alone."""

    library: str
    bytes: int  # at most, with `NODE_BYTES` for a node
    models: list[Callable[[np.ndarray], np.ndarray]]  # from columns (n, D) to (n, K)
    format: RowFormat

    def __call__(self, x: X) -> np.ndarray:
        r"""Predictions (n, K) at rows as tensors."""
        columns, _ = _columns(self.format, x)
        return np.hstack([model(columns) for model in self.models])


def fit_label_trees(labelled: Problem, size: int, seed: int) -> LabelTrees | None:
    r"""LightGBM's trees, or else scikit-learn's, of at most `size` bytes; None if too few rows."""
    targets, task, (n, outputs) = labelled.targets, labelled.teacher.task, labelled.targets.shape
    y = targets.argmax(1)[:, None] if task == "classification" else targets
    per_round = 1 if task == "classification" and outputs == 2 else outputs
    leaves = 8 if size >= 20 * 15 * NODE_BYTES * per_round else 4
    round_bytes = (2 * leaves - 1) * NODE_BYTES * per_round
    rounds = min(MAX_ROUNDS, size // round_bytes)
    if n < MIN_ROWS or min(len(np.unique(column)) for column in y.T) < 2 or rounds < 1:
        return None
    columns, categorical = _columns(labelled.format, labelled.x)
    held_out = np.zeros(n, dtype=bool)
    held_out[_folds(labelled, seed)[0]] = True
    # fewer trees take larger steps; of two rates the one with the lower held-out loss is taken
    rates = [min(0.5, max(0.05, total / rounds)) for total in (6, 20)]
    boost = partial(_boost, rounds=rounds, leaves=leaves, seed=seed, categorical=categorical)
    fits = []
    for labels in y.T:
        known = labels if task == "regression" else labels.astype(int)
        tries = (boost(columns, known, held_out, labelled.weight, rate=rate) for rate in rates)
        model, used, _ = min(tries, key=lambda fitted: fitted[2])
        fits.append((partial(_outputs, model, outputs if task == "classification" else 1), used))
    size = round_bytes * sum(used for _, used in fits) // len(fits)
    library = "LightGBM" if lightgbm() else "HistGradientBoosting"
    return LabelTrees(library, size, [predict for predict, _ in fits], labelled.format)


def _outputs(model: Any, width: int, columns: np.ndarray) -> np.ndarray:
    r"""Probabilities of classes, or of the second one if one column is wanted, or values."""
    if not hasattr(model, "classes_"):
        return np.asarray(model.predict(columns)).reshape(-1, 1)
    p = np.zeros((len(columns), max(width, 2)))
    p[:, model.classes_] = model.predict_proba(columns)  # a class may have no rows to learn from
    return p if width > 1 else p[:, 1:]


def _columns(format: RowFormat, x: X) -> tuple[np.ndarray, list[int]]:
    r"""Rows as columns (n, D), with NaN for missing numbers, and which are codes of categories."""
    if not isinstance(format, TableFormat) or isinstance(x, Tensor):
        assert isinstance(x, Tensor)
        return x.flatten(1).double().numpy(), []
    columns = format.table.varying
    parts = [c.values(x) if isinstance(c, Number) else x[c.key].double().numpy() for c in columns]
    categorical = [k for k, c in enumerate(columns) if isinstance(c, Category)]
    return np.column_stack(parts), categorical


def _boost(
    x: np.ndarray, y: np.ndarray, held_out: np.ndarray, weight: np.ndarray | None, *,
    rounds: int, leaves: int, rate: float, seed: int, categorical: list[int],
) -> tuple[Any, int, float]:  # fmt: skip
    r"""A model stopped at its lowest loss on rows held out, its number of rounds, and that loss."""
    kind = "Regressor" if y.dtype.kind == "f" else "Classifier"
    least = min(20, max(1, len(x) // 40))
    w = np.ones(len(y)) if weight is None else weight
    if library := lightgbm():
        made = getattr(library, f"LGBM{kind}")(
            n_estimators=rounds, num_leaves=leaves, learning_rate=rate, min_child_samples=least,
            random_state=seed, n_jobs=torch.get_num_threads(), deterministic=True,
            force_row_wise=True, verbosity=-1,
        )  # fmt: skip
        other = held_out & np.isin(y, y[~held_out]) if kind == "Classifier" else held_out
        with warnings.catch_warnings():  # releases name the rows held out in two ways
            warnings.simplefilter("ignore")
            model = made.fit(
                x[~held_out], y[~held_out], w[~held_out], categorical_feature=categorical,
                eval_set=[(x[other], y[other])], eval_sample_weight=[w[other]],
                callbacks=[library.early_stopping(20, verbose=False)],
            )  # fmt: skip
        return model, model.best_iteration_, min(model.best_score_["valid_0"].values())
    from sklearn import ensemble

    made = getattr(ensemble, f"HistGradientBoosting{kind}")(
        max_iter=rounds, max_leaf_nodes=leaves, learning_rate=rate, min_samples_leaf=least,
        early_stopping=True, n_iter_no_change=20, validation_fraction=HELD_OUT, random_state=seed,
        categorical_features=[k for k in categorical if x[:, k].max() < 255] or None,  # its limit
    )  # fmt: skip
    used = np.ones(len(y), dtype=bool)
    if kind == "Classifier":  # it holds out rows of each class itself, which takes two or more
        used = np.bincount(y)[y] > 1
    model = made.fit(x[used], y[used], w[used])
    return model, model.n_iter_, -float(model.validation_score_[-1])
