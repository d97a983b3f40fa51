r"""Teachers of real tables, and small LightGBM models of at most so many bytes, for `tables.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

__all__ = ["TEACHERS", "as_categories", "fit_teacher", "outputs", "small_boosted"]

TEACHERS = ("LightGBM", "CatBoost", "forest")


def words_of(X: pd.DataFrame) -> list[str]:
    r"""The names of columns of strings and categories."""
    return [name for name in X if X[name].dtype.kind == "O"]


def as_categories(X: pd.DataFrame) -> pd.DataFrame:
    r"""The same table with categories for strings and seconds for dates, as LightGBM takes it."""
    return X.astype(dict.fromkeys(words_of(X), "category")).assign(**dates(X))


def dates(X: pd.DataFrame) -> dict[str, pd.Series]:
    return {name: in_seconds(X[[name]])[name] for name in X if X[name].dtype.kind == "M"}


def in_seconds(X: pd.DataFrame) -> pd.DataFrame:
    return (X - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "s")


def fit_teacher(
    kind: str, X: pd.DataFrame, y: np.ndarray, regression: bool, codes: tuple[str, ...], seed: int
) -> Any:
    r"""A teacher that takes the table as it is; boosted ones are stopped on held-out rows."""
    shared = {"random_state": seed}
    if kind == "forest":
        unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
        codes_of = OrdinalEncoder(**unknown, encoded_missing_value=-2)
        parts = (codes_of, words_of(X)), (FunctionTransformer(in_seconds), list(dates(X)))
        columns = make_column_transformer(*parts, remainder="passthrough")
        made = RandomForestRegressor if regression else RandomForestClassifier
        return make_pipeline(columns, made(100, min_samples_leaf=2, **shared)).fit(X, y)
    stratify = None if regression else y
    learn, X_held, z, y_held = train_test_split(X, y, test_size=0.15, stratify=stratify, **shared)
    if kind == "CatBoost":
        import catboost

        made = catboost.CatBoostRegressor if regression else catboost.CatBoostClassifier
        model = made(
            600, allow_writing_files=False, cat_features=[*words_of(X), *codes], thread_count=1,
            early_stopping_rounds=30, verbose=False, **shared,
        )  # fmt: skip
        return model.fit(learn, z, eval_set=(X_held, y_held))
    made = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
    many = regression or y.max() == 1  # else a round has a tree for every class
    options = {"n_estimators": 600 if many else 200, "learning_rate": 0.05 if many else 0.1}
    # without a penalty it diverges at rare classes
    options |= {"n_jobs": 1, "verbose": -1, "reg_lambda": 0 if regression else 1, **shared}
    models = [made(num_leaves=leaves, **options) for leaves in (15, 63)]
    for model in models:
        stop = lightgbm.early_stopping(30, verbose=False)
        model.fit(learn, z, eval_set=[(X_held, y_held)], callbacks=[stop])
    best = min(models, key=lambda model: next(iter(model.best_score_["valid_0"].values())))
    return made(**best.get_params() | {"n_estimators": best.best_iteration_}).fit(X, y)


def outputs(model: Any, X: pd.DataFrame, regression: bool) -> np.ndarray:
    r"""Probabilities (n, K) or values (n, 1)."""
    return np.asarray(model.predict(X).reshape(-1, 1) if regression else model.predict_proba(X))


def small_boosted(
    X: pd.DataFrame, targets: np.ndarray, regression: bool, most_bytes: int, seed: int
) -> tuple[Callable[[pd.DataFrame], np.ndarray], int]:
    r"""The best LightGBM of at most so many bytes for targets (n, K), and its size.

    Leaves, rates and numbers of trees are chosen on a sixth of the rows. A model of three or more
    classes sees a row once for each of its likely classes, with a weight.
    """
    K, best = targets.shape[1], (np.inf, {}, 1)
    order = np.random.default_rng(seed).permutation(len(X))
    held, learn = order[: len(X) // 6], order[len(X) // 6 :]
    kind = "regression" if regression else "cross_entropy" if K == 2 else "multiclass"
    settings = {"objective": kind, "num_threads": 1, "verbose": -1, "seed": seed}
    # few trees with high rates diverge at rare classes unless their steps are limited
    settings |= {"lambda_l2": 1} if regression else {"lambda_l2": 3, "max_delta_step": 1}
    settings |= {"num_class": K} if kind == "multiclass" else {}

    def rows(part: np.ndarray) -> lightgbm.Dataset:
        if kind != "multiclass":
            return lightgbm.Dataset(X.iloc[part], targets[part, -1])
        which, classes = np.nonzero(targets[part] > 0.02)
        weights = targets[part[which], classes]
        return lightgbm.Dataset(X.iloc[part[which]], classes, weight=weights)

    for leaves, rate in itertools.product((4, 8, 16, 31), (0.1, 0.3, 0.5)):
        trial = settings | {"num_leaves": leaves, "learning_rate": rate}
        rounds = max(1, min(300, most_bytes // (75 * leaves * (K if K > 2 else 1))))
        scores: dict[str, Any] = {}
        record = [lightgbm.record_evaluation(scores)]
        model = lightgbm.train(trial, rows(learn), rounds, [rows(held)], callbacks=record)
        losses = scores["valid_0"].popitem()[1][: _fitting(model, most_bytes)]
        if losses and min(losses) < best[0]:
            best = min(losses), trial, int(np.argmin(losses)) + 1
    model = lightgbm.train(best[1] or settings, rows(order), best[2])
    count = max(1, _fitting(model, most_bytes))

    def predict(X: pd.DataFrame) -> np.ndarray:
        p = np.asarray(model.predict(X, num_iteration=count)).reshape(len(X), -1)
        return p if regression or K > 2 else np.hstack([1 - p, p])

    return predict, _size(model, count)


def _size(model: lightgbm.Booster, count: int) -> int:
    return len(model.model_to_string(num_iteration=count).encode())


def _fitting(model: lightgbm.Booster, most_bytes: int) -> int:
    r"""The largest number of rounds whose file is small enough; 0 if none is."""
    low, high = 0, model.num_trees() // model.num_model_per_iteration()
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(model, middle) <= most_bytes else (low, middle - 1)
    return low
