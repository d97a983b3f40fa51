r"""Fitting trees, and reading those of scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError
from limbeck.models.tree import SURE, Grown, Trees
from limbeck.outputs import check_probabilities, columns
from limbeck.progress import tracked

__all__ = ["TASKS", "fit_boosted", "fit_tree", "is_tree_estimator", "of_tree", "read"]

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
        expected = ", ".join(f"{name}Classifier or -Regressor" for name in NAMES)
        raise ArgumentError("estimator", f"a {type(estimator).__name__}", expected)
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        received = f"a {type(estimator).__name__} that is not fitted"
        raise ArgumentError("estimator", received, "a fitted one") from None
    classifies = hasattr(estimator, "classes_")
    if classifies and getattr(estimator, "n_outputs_", 1) > 1:
        expected = "one with a single output; for several labels, a regressor on 0 and 1"
        raise ArgumentError("estimator", "a classifier with several outputs", expected)
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
            expected = "one without categorical columns, which its trees split in another way"
            raise ArgumentError("estimator", f"a {type(estimator).__name__} with some", expected)
        if estimator.loss not in IDENTITY:
            raise ArgumentError.unknown("estimator.loss", estimator.loss, IDENTITY)
        return
    start = estimator.init_
    if not isinstance(start, str | DummyClassifier | DummyRegressor):
        received = f"a {type(start).__name__}"
        raise ArgumentError("estimator.init", received, "None or 'zero': a constant to start from")


TASKS = ("classification", "multilabel", "regression")

STEADY = 1.0
r"""Added to the curvature of a leaf, so that few rows move it little."""

ROWS = 20_000
r"""Rows at most that a boosted tree is grown from."""


def fit_tree(
    X: Any,
    targets: Any,
    *,
    max_leaf_nodes: int | None = 64,
    max_depth: int | None = None,
    min_samples_leaf: int = 1,
    seed: int = 0,
    task: str = "classification",
) -> Trees:
    r"""One tree, whose leaves hold the mean targets of their rows.

    Its splits are those that leave the least square error, which for probabilities is what Gini's
    index is for classes. With several targets in regression, each counts by its own deviation.

    Arguments:
        X: Inputs (n, D); NaN is a missing value.
        targets: Probabilities (n, K), of classes or of labels by themselves, or values (n, K).
        max_leaf_nodes: The number of leaves at most; None sets no limit.
        max_depth: The number of levels at most; None sets no limit.
        min_samples_leaf: The number of rows at least in each leaf.
        seed: Decides between splits that are equally good.
        task: "classification", "multilabel" or "regression".
    """
    inputs, wanted = _checked(X, targets, task)
    options = _options(max_leaf_nodes, max_depth, min_samples_leaf)
    shift, scale = _units(wanted, task)
    tree = of_tree(_fitted(inputs, (wanted - shift) / scale, seed, options).tree_, False)
    mean = tree.value * scale + shift
    if task == "classification":
        mean = np.clip(mean, 0, None)
        mean /= mean.sum(1, keepdims=True)
    kind = {"classification": "probabilities", "multilabel": "labels"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees([tree._replace(value=mean)], inputs.shape[1], kind, missing=missing)


def fit_boosted(
    X: Any,
    targets: Any,
    *,
    trees: int = 50,
    max_leaf_nodes: int | None = 8,
    max_depth: int | None = None,
    min_samples_leaf: int = 5,
    learning_rate: float = 0.3,
    seed: int = 0,
    task: str = "classification",
    progress: bool = False,
) -> Trees:
    r"""Small trees, each fitted to what is left to explain after those before it.

    Classes and labels: trees add up to logits, follow the gradient t − p of the cross entropy,
    and each leaf takes a Newton step. Regression: they add up to values, by square error. Each
    tree has all outputs in its leaves.

    Arguments:
        X: Inputs (n, D); NaN is a missing value.
        targets: As of `fit_tree`, and so is `task`.
        trees: How many.
        max_leaf_nodes: Of each tree, as of `fit_tree`, and so are the other limits.
        learning_rate: The part of each step that is made.
        seed: Chooses the rows that a tree is grown from, where there are more than 20,000.
        progress: Whether to show a bar.
    """
    inputs, wanted = _checked(X, targets, task)
    count = whole_number("trees", trees, "a whole number from 1", least=1)
    expected = "a number above 0, up to 1"
    rate = number("learning_rate", learning_rate, expected, lambda r: 0 < r <= 1)
    options = _options(max_leaf_nodes, max_depth, min_samples_leaf)
    shift, scale = _units(wanted, task)
    wanted = (wanted - shift) / scale
    base = _constant(wanted, task)
    z = np.tile(base, (len(wanted), 1))  # (n, K): what the trees so far add up to
    random, grown = np.random.default_rng(seed), []
    for _ in tracked(range(count), "boosting trees", progress):
        some = random.permutation(len(inputs))[:ROWS]
        left_over, curvature = _slopes(z, wanted, task)
        found = _fitted(inputs[some], left_over[some], int(random.integers(2**31)), options)
        tree, leaf = of_tree(found.tree_, False), found.apply(inputs)
        step = _sums(leaf, left_over, found) / (_sums(leaf, curvature, found) + STEADY)
        z += rate * step[leaf]
        grown.append(tree._replace(value=rate * step * scale))
    kind = {"classification": "logits", "multilabel": "label_logits"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees(grown, inputs.shape[1], kind, base=base * scale + shift, missing=missing)


def _checked(X: Any, targets: Any, task: str) -> tuple[np.ndarray, np.ndarray]:
    if task not in TASKS:
        raise ArgumentError.unknown("task", task, TASKS)
    given, wanted = _numbers("X", X), _numbers("targets", targets).to(torch.float64)
    inputs = given.flatten(1).to(torch.float32) if given.ndim > 1 else given
    if inputs.ndim != 2 or 0 in inputs.shape:
        raise ArgumentError("X", f"shape {tuple(given.shape)}", "rows and columns (n, D)")
    if wanted.ndim == 1 and task == "regression":
        wanted = wanted.unsqueeze(1)
    if wanted.ndim != 2 or len(wanted) != len(inputs) or not wanted.shape[1]:
        expected = f"({len(inputs)}, K): {'values' if task == 'regression' else 'probabilities'}"
        raise ArgumentError("targets", f"shape {tuple(wanted.shape)}", expected)
    if bool(inputs.isinf().any()):
        raise ArgumentError("X", "infinity, or numbers beyond float32", "finite numbers or NaN")
    if not bool(wanted.isfinite().all()):
        raise ArgumentError("targets", "NaN or infinity", "finite numbers")
    if task != "regression":
        # labels are probabilities each by itself, classes sum to one
        each = wanted if task == "classification" else wanted.reshape(-1, 1)
        check_probabilities(each, "targets")
    if task == "classification" and wanted.shape[1] == 1:  # the second of two classes
        wanted = columns(1 - wanted, wanted)
    return inputs.numpy(), wanted.numpy()


def _numbers(argument: str, given: Any) -> torch.Tensor:
    try:
        found = given if isinstance(given, torch.Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError):
        expected = "an array or a tensor of numbers"
        raise ArgumentError(argument, f"a {type(given).__name__}", expected) from None
    return found.detach().cpu()


def _options(
    max_leaf_nodes: int | None, max_depth: int | None, min_samples_leaf: int
) -> dict[str, int | None]:
    limits: dict[str, int | None] = {"max_leaf_nodes": max_leaf_nodes, "max_depth": max_depth}
    for (name, value), least in zip(limits.items(), (2, 1), strict=True):
        if value is not None:
            expected = f"a whole number from {least}, or None"
            limits[name] = whole_number(name, value, expected, least=least)
    expected = "a whole number from 1"
    return {
        **limits,
        "min_samples_leaf": whole_number("min_samples_leaf", min_samples_leaf, expected, least=1),
    }


def _units(wanted: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and deviation of the targets of a regression; 0 and 1 of probabilities."""
    zero, one = np.zeros(wanted.shape[1]), np.ones(wanted.shape[1])
    if task != "regression":
        return zero, one
    spread = wanted.std(0)
    return wanted.mean(0), np.where(spread > 0, spread, one)


def _fitted(inputs: np.ndarray, wanted: np.ndarray, seed: int, options: dict[str, Any]) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(random_state=seed, **options).fit(inputs, wanted)


def _constant(wanted: np.ndarray, task: str) -> np.ndarray:
    r"""Where boosting starts (K,): the logits of the mean probabilities, or 0."""
    if task == "regression":
        return np.zeros(wanted.shape[1])
    mean = wanted.mean(0).clip(SURE, 1 - SURE)
    return np.log(mean) if task == "classification" else np.log(mean) - np.log1p(-mean)


def _slopes(z: np.ndarray, wanted: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    r"""What the loss falls by as z rises, and its curvature, (n, K) each."""
    if task == "regression":
        return wanted - z, np.ones_like(z)
    from scipy import special

    outputs = z.shape[1]
    if task == "multilabel":
        p = special.expit(z)
        return wanted - p, p * (1 - p)
    p = special.softmax(z, axis=1)
    # all K move at once, though one of them would do: of two classes, each goes half the way
    return wanted - p, p * (1 - p) * outputs / max(outputs - 1, 1)


def _sums(leaf: np.ndarray, of: np.ndarray, found: Any) -> np.ndarray:
    r"""Sums over the rows of each leaf, (nodes, K)."""
    nodes = found.tree_.node_count
    return np.stack([np.bincount(leaf, weights=column, minlength=nodes) for column in of.T], 1)
