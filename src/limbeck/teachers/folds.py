r"""Out-of-fold labels, for teachers that were fitted to the rows; and true labels mixed in."""

from __future__ import annotations

import warnings
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from limbeck.arguments import Flag, Fraction, Seed, UserObject, Whole, checked_arguments
from limbeck.arrays import as_plain_array
from limbeck.errors import ArgumentError, warn
from limbeck.progress import tracked
from limbeck.teachers.keys import Array, as_rows, count, distinct, missing, row_keys, select
from limbeck.teachers.query import Query, teacher_failures
from limbeck.teachers.row_teacher import RowTeacher, class_columns


@checked_arguments
def out_of_fold(
    teacher: UserObject[RowTeacher], X: UserObject[object], y: UserObject[object],
    folds: Annotated[int, Whole(2)] = 5, seed: Seed = 0, progress: Flag = True,
) -> Array:  # fmt: skip
    r"""The targets (n, K) of clones of a teacher, each at the rows that it was not fitted to."""
    X = as_rows(X)
    n = count(X)
    y = as_labels(y, n)
    known = np.flatnonzero(~unlabelled(y, teacher.classes).reshape(n, -1).any(1))
    first, inverse = distinct(row_keys(select(X, known)))  # equal rows are in the same fold
    if len(first) < folds:
        received = f"{folds}, for {len(first)} distinct rows with labels"
        expected = "at most as many folds as there are such rows"
        raise ArgumentError("teacher_folds", received, expected)
    if teacher.task == "classification":
        columns = class_columns(y[known], teacher.classes)
        y, strata = np.asarray(teacher.classes)[columns], columns[first]  # in the teacher's type
    else:
        y, strata = np.array(y[known].tolist()), None
    fold = _folds(strata, len(first), folds, seed)[inverse]
    result = np.zeros((n, teacher.outputs))
    for k in tracked(range(folds), "refitting the teacher", progress):
        others = known[fold != k]
        with teacher_failures("the rows of a fold", others):
            clone = teacher.refit(select(X, others), y[fold != k])
        inside = known[fold == k]
        answers = Query(progress=False).label(clone, select(X, inside))
        columns = np.arange(teacher.outputs)
        if strata is not None:  # classes that the clone has not seen stay at 0
            columns = class_columns(np.asarray(clone.classes), teacher.classes)
        result[np.ix_(inside, columns)] = answers
    others = np.setdiff1d(np.arange(n), known)
    if len(others):
        result[others] = Query(progress=False).label(teacher, select(X, others))
    return result


@checked_arguments
def mix_labels(
    targets: UserObject[ArrayLike], labels: UserObject[object], weight: Fraction,
    classes: UserObject[ArrayLike | None] = None,
) -> Array:  # fmt: skip
    r"""Targets (n, K) and labels together: (1 − weight) · targets + weight · labels if there."""
    targets = np.asarray(targets, np.float64)
    y = as_labels(labels, len(targets))
    missing, values = unlabelled(y, classes), np.zeros_like(targets)
    if y.ndim == 1 and classes is not None and np.size(classes) > 1:
        rows = np.flatnonzero(~missing)
        values[rows, class_columns(y[rows], classes)] = 1.0
        missing = missing[:, None]
    else:
        if y.ndim == 1 and targets.shape[1:] == (1,):
            y, missing = y[:, None], missing[:, None]
        if y.shape != targets.shape:
            expected = f"labels (n,) or values {targets.shape}"
            raise ArgumentError("labels", f"shape {y.shape}", expected)
        try:
            values[~missing] = y[~missing].astype(np.float64)
        except (TypeError, ValueError) as reason:
            raise ArgumentError("labels", f"what is no number ({reason})", "numbers") from None
        if not np.isfinite(values).all():
            expected = "finite numbers; NaN says that there is none"
            raise ArgumentError("labels", "infinite values", expected)
    return np.where(missing, targets, (1 - weight) * targets + weight * values)


def as_labels(labels: object, n: int) -> Array:
    r"""Labels of n rows as an array (n,) or (n, K)."""
    array = as_plain_array(labels, "labels")
    if len(array) != n:
        raise ArgumentError("labels", f"{len(array)} labels", f"one for each of {n} rows")
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def unlabelled(labels: Array, classes: ArrayLike | None) -> Array:
    r"""Where labels are missing, in their shape: NaN, None, or −1 if that is no class."""
    gone = missing(labels)
    if classes is not None and -1 not in np.asarray(classes).tolist():
        gone[~gone] = labels[~gone] == -1
    return gone


def _folds(classes: Array | None, n: int, folds: int, seed: int) -> Array:
    r"""The fold (n,) of each row; classes, by number, are spread evenly over them."""
    from sklearn.model_selection import KFold, StratifiedKFold

    splitter = KFold
    if classes is not None:
        _, sizes = np.unique(classes, return_counts=True)
        rare = int((sizes < folds).sum())
        splitter = KFold if rare == len(sizes) else StratifiedKFold
        if rare:
            message = f"folds: {rare} classes have fewer distinct rows than there are folds, "
            message += f"{folds}; clones that have not seen a class give it probability 0"
            warn(message)
    result = np.empty(n, np.intp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same, in other words
        splits = splitter(folds, shuffle=True, random_state=seed).split(np.zeros(n), classes)
        for k, (_, inside) in enumerate(splits):
            result[inside] = k
    return result
