r"""Fitting a tree, or a sum of boosted trees, to soft targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError
from limbeck.models.tree import SURE, Trees, of_tree
from limbeck.outputs import check_probabilities, columns
from limbeck.progress import tracked

__all__ = ["TASKS", "fit_boosted", "fit_tree"]

TASKS = ("classification", "multilabel", "regression")

# rows at most that a boosted tree is grown from
ROWS = 20_000


def fit_tree(
    X: np.ndarray | torch.Tensor,
    targets: np.ndarray | torch.Tensor,
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
        targets: Probabilities (n, K), of classes or of separate labels, or values (n, K).
        max_leaf_nodes: The largest number of leaves; None for no limit. Default: 64.
        max_depth: The largest number of levels; None for no limit. Default: None.
        min_samples_leaf: The smallest number of rows in a leaf. Default: 1.
        seed: Decides between splits that are equally good. Default: 0.
        task: "classification", "multilabel" or "regression". Default: "classification".
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
    X: np.ndarray | torch.Tensor,
    targets: np.ndarray | torch.Tensor,
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
        trees: The number of trees. Default: 50.
        max_leaf_nodes: Of each tree, as of `fit_tree`. Default: 8.
        max_depth: Default: None.
        min_samples_leaf: Default: 5.
        learning_rate: The part of each Newton step that is taken. Default: 0.3.
        seed: Chooses the rows that a tree is fitted to, if there are more than 20,000. Default: 0.
        progress: Whether to show a bar. Default: False.
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
        fitted = _fitted(inputs[some], left_over[some], int(random.integers(2**31)), options)
        tree, leaf = of_tree(fitted.tree_, False), fitted.apply(inputs)
        nodes = fitted.tree_.node_count
        # the 1 added to the curvature keeps leaves of few rows small
        step = _sums(leaf, left_over, nodes) / (_sums(leaf, curvature, nodes) + 1.0)
        z += rate * step[leaf]
        grown.append(tree._replace(value=rate * step * scale))
    kind = {"classification": "logits", "multilabel": "label_logits"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees(grown, inputs.shape[1], kind, base=base * scale + shift, missing=missing)


def _checked(
    X: np.ndarray | torch.Tensor, targets: np.ndarray | torch.Tensor, task: str
) -> tuple[np.ndarray, np.ndarray]:
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


def _numbers(argument: str, given: np.ndarray | torch.Tensor) -> torch.Tensor:
    try:
        numbers = given if isinstance(given, torch.Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError):
        expected = "an array or a tensor of numbers"
        raise ArgumentError(argument, f"a {type(given).__name__}", expected) from None
    return numbers.detach().cpu()


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


def _sums(leaf: np.ndarray, of: np.ndarray, nodes: int) -> np.ndarray:
    r"""Sums over the rows of each leaf, (nodes, K)."""
    return np.stack([np.bincount(leaf, weights=column, minlength=nodes) for column in of.T], 1)
