r"""Reading the trees of scikit-learn's fitted estimators."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from limbeck.errors import ArgumentError
from limbeck.models.tree import Grown, Trees

__all__ = ["is_tree_estimator", "of_tree", "read"]

NAMES = (
    "DecisionTree", "ExtraTree", "RandomForest", "ExtraTrees", "GradientBoosting",
    "HistGradientBoosting",
)  # fmt: skip
IDENTITY = ("squared_error", "absolute_error", "quantile", "huber", "log_loss", "exponential")
r"""Losses whose boosted sum is the prediction, or its logit."""


def is_tree_estimator(estimator: Any) -> bool:
    r"""Whether something is one of scikit-learn's trees, forests or boosted models."""
    return _kind(estimator) is not None


def read(estimator: Any) -> dict[str, Any]:
    r"""What `Trees` is made of: the trees, their factor and constant, what they give."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    kind = _kind(estimator)
    if kind is None:
        accepted = ", ".join(f"{name}Classifier or -Regressor" for name in NAMES)
        raise ArgumentError("estimator", f"a {type(estimator).__name__}", accepted)
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        received = f"a {type(estimator).__name__} that is not fitted"
        raise ArgumentError("estimator", received, "a fitted one") from None
    classifies = hasattr(estimator, "classes_")
    if classifies and getattr(estimator, "n_outputs_", 1) > 1:
        accepted = "one with a single output; for several labels, a regressor on 0 and 1"
        raise ArgumentError("estimator", "a classifier with several outputs", accepted)
    inputs = int(estimator.n_features_in_)
    if "Boosting" not in kind:
        members = getattr(estimator, "estimators_", None) or [estimator]
        return {
            "grown": [of_tree(member.tree_, classifies) for member in members],
            "inputs": inputs,
            "kind": "probabilities" if classifies else "values",
            "factor": 1 / len(members),
        }
    return _boosted(estimator, kind.startswith("Hist"), classifies, inputs)


def _kind(estimator: Any) -> str | None:
    r"""The name of the scikit-learn class that something is, less its ending."""
    if not type(estimator).__module__.startswith("sklearn."):
        return None
    from sklearn import ensemble, tree

    for name in NAMES:
        for ending in ("Classifier", "Regressor"):
            found = getattr(tree, name + ending, None) or getattr(ensemble, name + ending, None)
            if found is not None and type(estimator) is found:
                return name
    return None


def of_tree(tree: Any, classifies: bool) -> Grown:
    r"""A tree as estimators keep it under `tree_`."""
    value = tree.value[:, 0, :] if classifies else tree.value[:, :, 0]
    if classifies:  # counts in older versions
        value = value / value.sum(1, keepdims=True)
    return Grown(
        tree.children_left, tree.children_right, tree.feature, _rounded_down(tree.threshold),
        tree.missing_go_to_left, value, tree.weighted_n_node_samples,
    )  # fmt: skip


def _rounded_down(threshold: np.ndarray) -> np.ndarray:
    r"""The greatest 32-bit numbers below: a 32-bit x is above both or neither."""
    with np.errstate(over="ignore"):
        near = threshold.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near.astype(np.float64) > threshold, below, near)


def _of_nodes(nodes: np.ndarray) -> Grown:
    r"""A tree of a histogram-based model."""
    leaf = nodes["is_leaf"] != 0
    left = np.where(leaf, -1, nodes["left"].astype(np.int64))
    right = np.where(leaf, -1, nodes["right"].astype(np.int64))
    value, weight = nodes["value"][:, None], nodes["count"].astype(np.float64)
    with np.errstate(over="ignore"):
        # thresholds may be rows' own 64-bit numbers, and these are rounded in the same way
        threshold = nodes["num_threshold"].astype(np.float32)
    return Grown(
        left, right, nodes["feature_idx"].astype(np.int64), threshold,
        nodes["missing_go_to_left"], value, weight,
    )  # fmt: skip


def _boosted(estimator: Any, histogram: bool, classifies: bool, inputs: int) -> dict[str, Any]:
    _refuse(estimator, histogram)
    if histogram:
        rounds = [[_of_nodes(p.nodes) for p in each] for each in estimator._predictors]
        factor = 1.0  # values are shrunk already
    else:
        rounds = [[of_tree(e.tree_, False) for e in each] for each in estimator.estimators_]
        factor = float(estimator.learning_rate)
    outputs = len(rounds[0])
    columns = [*range(outputs)]
    if classifies and outputs == 1:  # log odds: the logit of the second of two classes
        outputs, columns = 2, [1]
        factor *= 2 if estimator.loss == "exponential" else 1
    grown = [
        tree._replace(value=_in_column(tree.value, k, outputs))
        for each in rounds
        for k, tree in zip(columns, each, strict=True)
    ]
    made = {
        "grown": grown, "inputs": inputs, "kind": "logits" if classifies else "values",
        "factor": factor,
    }  # fmt: skip
    # the constant is what the model says of any row beyond its trees
    row = np.zeros((1, inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names of columns
        raw = estimator.decision_function(row) if classifies else estimator.predict(row)
    whole = np.zeros(outputs)
    whole[columns] = raw.reshape(-1) * (2 if estimator.loss == "exponential" else 1)
    trees = Trees(**made, dtype=torch.float64)  # type: ignore[arg-type]
    return {**made, "base": whole - trees(torch.tensor(row))[0].numpy()}


def _in_column(value: np.ndarray, column: int, outputs: int) -> np.ndarray:
    found = np.zeros((len(value), outputs))
    found[:, column] = value[:, 0]
    return found


def _refuse(estimator: Any, histogram: bool) -> None:
    r"""Refuse boosted models whose sum of trees is not all that there is to them."""
    from sklearn.dummy import DummyClassifier, DummyRegressor

    if histogram:
        categorical = getattr(estimator, "is_categorical_", None)
        if categorical is not None and np.any(categorical):
            accepted = "one without categorical columns, which its trees split in another way"
            raise ArgumentError("estimator", f"a {type(estimator).__name__} with some", accepted)
        if estimator.loss not in IDENTITY:
            raise ArgumentError.unknown("estimator.loss", estimator.loss, IDENTITY)
        return
    start = estimator.init_
    if not isinstance(start, str | DummyClassifier | DummyRegressor):
        received = f"a {type(start).__name__}"
        raise ArgumentError("estimator.init", received, "None or 'zero': a constant to start from")
