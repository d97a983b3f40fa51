r"""Labels out of fold, for teachers that have seen the rows; and true labels mixed in."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError
from limbeck.progress import tracked
from limbeck.teachers.keys import Array, as_rows, count, distinct, row_keys, select
from limbeck.teachers.query import label_rows
from limbeck.teachers.row_teacher import RowTeacher

__all__ = ["as_labels", "mix_labels", "out_of_fold", "unlabelled"]


def out_of_fold(
    teacher: RowTeacher, X: Any, labels: Any, folds: int = 5, seed: int = 0, progress: bool = True
) -> Array:
    r"""The targets (n, K) of clones of a teacher, each at the rows that it has not seen.

    A teacher knows its own training rows too well. So the rows are cut into folds, each with
    about the same share of every class, and each fold is labelled by a clone that was fitted to
    the others. Equal rows are in the same fold. A class that a clone has never seen gets 0. Rows
    without a label (see `mix_labels`) are labelled by the teacher itself.
    """
    X = as_rows(X)
    n = count(X)
    labels = as_labels(labels, n)
    folds = whole_number("teacher_folds", folds, "a whole number, 2 or more", 2)
    known = np.flatnonzero(~unlabelled(labels, teacher.classes).reshape(n, -1).any(1))
    first, inverse = distinct(row_keys(select(X, known)))
    if len(first) < folds:
        received = f"{folds}, for {len(first)} distinct rows with labels"
        expected = "at most as many folds as there are such rows"
        raise ArgumentError("teacher_folds", received, expected)
    given, columns = np.array(labels[known].tolist()), None
    if teacher.task == "classification":
        columns = _columns(labels[known], teacher.classes)
        given = np.asarray(teacher.classes)[columns]  # in the teacher's own type
    fold = _folds(None if columns is None else columns[first], len(first), folds, seed)[inverse]
    result = np.zeros((n, teacher.outputs))
    for k in tracked(range(folds), "refitting the teacher", progress):
        clone = teacher.refit(select(X, known[fold != k]), given[fold != k])
        held = known[fold == k]
        answers = label_rows(clone, select(X, held), progress=False)
        if columns is None:
            result[held] = answers
        else:  # classes that the clone has not seen stay at 0
            result[np.ix_(held, _columns(np.asarray(clone.classes), teacher.classes))] = answers
    others = np.setdiff1d(np.arange(n), known)
    if len(others):
        result[others] = label_rows(teacher, select(X, others), progress=False)
    return result


def mix_labels(targets: Any, labels: Any, weight: float, classes: Any = None) -> Array:
    r"""Targets and true labels together: (1 − weight) · targets + weight · labels.

    NaN and None stand for no label, and so does −1 where the labels are classes and it is none of
    them; there the targets stay as they are.

    Arguments:
        targets: The teacher's targets (n, K).
        labels: (n,), which become one-hot rows; or (n, K) in the form of the targets: values, or
            zeros and ones where several labels hold at once.
        weight: The share of the labels, from 0 to 1.
        classes: The K labels in the order of columns; Default: None, for values.

    >>> mix_labels([[0.5, 0.5], [0.25, 0.75]], ["b", None], 0.5, ["a", "b"])
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    targets = np.asarray(targets, np.float64)
    weight = number("weight", weight, "a number from 0 to 1", lambda w: 0 <= w <= 1)
    labels = as_labels(labels, len(targets))
    missing = unlabelled(labels, classes)
    if labels.ndim == 1 and classes is not None and len(classes) > 1:
        given = np.zeros_like(targets)
        rows = np.flatnonzero(~missing)
        given[rows, _columns(labels[rows], classes)] = 1.0
        missing = np.repeat(missing[:, None], targets.shape[1], axis=1)
    else:
        given, missing = _as_values(labels, missing, targets.shape)
    mixed: Array = np.where(missing, targets, (1 - weight) * targets + weight * given)
    return mixed


def as_labels(labels: Any, n: int) -> Array:
    r"""Labels of n rows as an array (n,) or (n, K)."""
    array = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if array.ndim == 0 or len(array) != n:
        received = f"{len(array)} labels" if array.ndim else repr(labels)
        raise ArgumentError("labels", received, f"one for each of {n} rows")
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def unlabelled(labels: Array, classes: Any) -> Array:
    r"""Where there is none, in the shape of the labels."""
    flat = labels.reshape(-1)
    minus = classes is not None and -1 not in np.asarray(classes).tolist()
    if labels.dtype.kind in "biuf":
        missing: Array = np.isnan(flat) | (minus & (flat == -1))
    else:
        missing = np.array([_is_missing(v) or (minus and _is_minus_one(v)) for v in flat], bool)
    return missing.reshape(labels.shape)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _is_minus_one(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and value == -1


def _columns(labels: Array, classes: Any) -> Array:
    r"""The column (n,) of each label."""
    known = {name: column for column, name in enumerate(np.asarray(classes).tolist())}
    labels = np.asarray(labels)
    found = np.array([known.get(value, -1) for value in labels.tolist()], np.intp)
    if (found < 0).any():
        unknown = sorted({repr(value) for value in labels[found < 0].tolist()})[:5]
        names = ", ".join(map(repr, list(known)[:10])) + (", …" if len(known) > 10 else "")
        raise ArgumentError("labels", f"{', '.join(unknown)}", f"the teacher's classes: {names}")
    return found


def _as_values(labels: Array, missing: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    if labels.ndim == 1 and shape[1:] == (1,):
        labels, missing = labels[:, None], missing[:, None]
    if labels.shape != shape:
        raise ArgumentError("labels", f"shape {labels.shape}", f"labels (n,) or values {shape}")
    values = np.zeros(shape)
    try:
        values[~missing] = labels[~missing].astype(np.float64)
    except (TypeError, ValueError) as reason:
        raise ArgumentError("labels", f"what is no number ({reason})", "numbers") from None
    if not np.isfinite(values).all():
        expected = "finite numbers; NaN says that there is none"
        raise ArgumentError("labels", "infinite values", expected)
    return values, missing


def _folds(classes: Array | None, n: int, folds: int, seed: int) -> Array:
    r"""The fold (n,) of each row; classes, by number, are spread evenly over them."""
    from sklearn.model_selection import KFold, StratifiedKFold

    kind = KFold
    if classes is not None:
        sizes = np.bincount(classes)
        few = np.flatnonzero((sizes > 0) & (sizes < folds))
        kind = KFold if len(few) == (sizes > 0).sum() else StratifiedKFold
        if len(few):
            message = (
                f"folds: {len(few)} classes have fewer distinct rows than there are folds, {folds};"
                " clones that have not seen a class give it probability 0"
            )
            warnings.warn(message, stacklevel=3)
    result = np.empty(n, np.intp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same, in other words
        splits = kind(folds, shuffle=True, random_state=seed).split(np.zeros(n), classes)
        for k, (_, inside) in enumerate(splits):
            result[inside] = k
    return result
