r"""The teacher of an estimator: fitted already, fitted first, or a forest if none is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from limbeck.compression.tables.values import measured
from limbeck.errors import ArgumentError

__all__ = ["all_floats", "carried", "forest", "is_fitted", "is_frame", "settled"]

TREES = 100
r"""Trees of the forest that is fitted where no teacher is given."""


def is_frame(X: Any) -> bool:
    r"""Whether rows come as a data frame, whose columns have types of their own."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def all_floats(X: Any) -> bool:
    r"""Whether all columns of a data frame are of floating-point numbers."""
    return not _other(X, "f")


def is_fitted(teacher: Any) -> bool:
    r"""Whether a teacher predicts as it is; of a list, whether all do."""
    if teacher is None:
        return False
    if isinstance(teacher, list | tuple):
        return all(map(is_fitted, teacher))
    if callable(own := getattr(teacher, "is_fitted", None)):  # CatBoost has its own word for it
        return bool(own())
    if not isinstance(teacher, BaseEstimator):
        return True
    try:
        check_is_fitted(teacher)
    except NotFittedError:
        return False
    return True


def carried(teacher: Any) -> Any:
    r"""The teacher that a clone gets: the same one if it is fitted, else an unfitted copy."""
    if teacher is None or is_fitted(teacher):
        return teacher
    if isinstance(teacher, list | tuple):
        return type(teacher)(map(carried, teacher))
    return clone(teacher)


def settled(teacher: Any, X: Any, y: Any, regression: bool, seed: int) -> Any:
    r"""A fitted teacher. What is not fitted is cloned and fitted to the labels.

    Arguments:
        teacher: Of any kind, or None for a forest.
        X: The rows.
        y: Their labels, or None.
        regression: Whether labels are values.
        seed: Seeds the forest.
    """
    if is_fitted(teacher):
        return teacher
    if y is None:
        name = "None" if teacher is None else f"an unfitted {type(teacher).__name__}"
        accepted = "fit(X, y), or a fitted teacher"
        received = f"None, with {name} for a teacher, which requires y to be passed, but the target"
        raise ArgumentError("y", f"{received} y is None", accepted)
    if isinstance(teacher, list | tuple):
        return [settled(each, X, y, regression, seed) for each in teacher]
    made = forest(X, regression, seed) if teacher is None else clone(teacher)
    return made.fit(X, y)


def forest(X: Any, regression: bool, seed: int) -> Any:
    r"""A random forest for rows of this kind; all columns of a frame become numbers first."""
    kind = RandomForestRegressor if regression else RandomForestClassifier
    trees = kind(TREES, random_state=seed)
    if not is_frame(X):
        return trees
    words = _other(X, "biufM")
    # pandas' own numbers and flags have gaps of another kind than NaN
    own = [name for name in X.columns if name not in words and not _plain(X[name].dtype)]
    if not words and not own:
        return trees
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
    )
    columns = make_column_transformer(
        (codes, words), (FunctionTransformer(in_numbers), own), remainder="passthrough"
    )
    return make_pipeline(columns, trees)


def in_numbers(frame: Any) -> np.ndarray:
    r"""Columns of numbers, flags and dates as numbers (n, D); NaN where values are missing."""
    found = [measured(frame[name], frame[name].dtype.kind == "M", f"X[{name!r}]") for name in frame]
    return np.stack(found, axis=1)


def _plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind != "M"


def _other(X: Any, kinds: str) -> list[Any]:
    r"""Names of a frame's columns whose types are none of NumPy's kinds, such as "f"."""
    return [name for name in X.columns if getattr(X[name].dtype, "kind", "O") not in kinds]
