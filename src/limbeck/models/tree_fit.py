r"""Fitting a tree, or a sum of boosted trees, to soft targets."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from limbeck.arguments import Choice, Count, Flag, Seed, Share, UserObject, Whole, checked_arguments
from limbeck.arrays import as_weights
from limbeck.errors import ArgumentError
from limbeck.models.tree import SURE, TreeArrays, Trees, of_tree
from limbeck.outputs import check_probabilities, columns
from limbeck.progress import tracked

TASKS = ("classification", "multilabel", "regression")
ROWS = 20_000  # the most rows that a boosted tree is grown from
Numbers = np.ndarray | torch.Tensor


@checked_arguments
def fit_tree(
    X: UserObject[Numbers], targets: UserObject[Numbers], *,
    max_leaf_nodes: Annotated[int, Whole(2)] | None = 64, max_depth: Count | None = None,
    min_samples_leaf: Count = 1, seed: Seed = 0,
    task: Annotated[str, Choice(*TASKS)] = "classification",
    sample_weight: UserObject[Numbers | None] = None,
) -> Trees:  # fmt: skip
    r"""One tree of least square error; its leaves hold the mean targets (n, K) of their rows.

    Arguments:
        X: Inputs (n, D); NaN is a missing value.
        targets: Probabilities (n, K), of classes or of separate labels, or values (n, K).
        max_leaf_nodes: The largest number of leaves; None for no limit. Default: 64.
        max_depth: The largest number of levels; None for no limit. Default: None.
        min_samples_leaf: The smallest number of rows in a leaf. Default: 1.
        seed: Decides between equally good splits. Default: 0.
        task: "classification", "multilabel" or "regression". Default: "classification".
        sample_weight: Weights (n,) of the rows, from 0. Default: None, equal ones.
    """
    options = {
        "max_leaf_nodes": max_leaf_nodes, "max_depth": max_depth,
        "min_samples_leaf": min_samples_leaf,
    }  # fmt: skip
    inputs, outputs, shift, scale = _check_data(X, targets, task)
    weight = as_weights(sample_weight, len(inputs))
    tree = of_tree(_fit(inputs, outputs, seed, options, weight).tree_, False)
    mean = tree.value * scale + shift
    if task == "classification":
        mean = np.clip(mean, 0, None)
        mean /= mean.sum(1, keepdims=True)
    kind = {"classification": "probabilities", "multilabel": "labels"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees([tree._replace(value=mean)], inputs.shape[1], kind, missing=missing)


@checked_arguments
def fit_boosted(
    X: UserObject[Numbers], targets: UserObject[Numbers], *, trees: Count = 50,
    max_leaf_nodes: Annotated[int, Whole(2)] | None = 8, max_depth: Count | None = None,
    min_samples_leaf: Count = 5, learning_rate: Share = 0.3, seed: Seed = 0,
    task: Annotated[str, Choice(*TASKS)] = "classification", progress: Flag = False,
    sample_weight: UserObject[Numbers | None] = None,
) -> Trees:  # fmt: skip
    r"""Small trees with all outputs in their leaves, each fitted to the residuals so far.

    The sum is logits of classes and labels, by Newton steps of the cross entropy, or values of a
    regression, by square error.

    Arguments:
        X: Inputs, as in `fit_tree`, like `targets`, `max_depth`, `task` and `sample_weight`.
        trees: The number of trees. Default: 50.
        max_leaf_nodes: The largest number of leaves of a tree. Default: 8.
        min_samples_leaf: The smallest number of rows in a leaf. Default: 5.
        learning_rate: The fraction of each Newton step. Default: 0.3.
        seed: Chooses the rows that a tree is fitted to, if there are more than 20,000. Default: 0.
        progress: Whether to show a bar. Default: False.
    """
    options = {
        "max_leaf_nodes": max_leaf_nodes, "max_depth": max_depth,
        "min_samples_leaf": min_samples_leaf,
    }  # fmt: skip
    inputs, outputs, shift, scale = _check_data(X, targets, task)
    weight = as_weights(sample_weight, len(inputs))
    w = np.ones((len(inputs), 1)) if weight is None else weight[:, None]
    base = np.zeros(outputs.shape[1])  # the logits of the mean probabilities
    if task != "regression":
        mean = (w * outputs).mean(0).clip(SURE, 1 - SURE)
        base = np.log(mean) - (np.log1p(-mean) if task == "multilabel" else 0.0)
    z = np.tile(base, (len(outputs), 1))  # (n, K): the sum of the trees so far
    random, fits = np.random.default_rng(seed), list[TreeArrays]()
    for _ in tracked(range(trees), "boosting trees", progress):
        rows = random.permutation(len(inputs))[:ROWS]
        residuals, curvature = _slopes(z, outputs, task)
        part = None if weight is None else weight[rows]
        fitted = _fit(inputs[rows], residuals[rows], int(random.integers(2**31)), options, part)
        leaf, nodes = fitted.apply(inputs), fitted.tree_.node_count
        # the 1 added to the curvature keeps leaves of few rows small
        step = _sums(leaf, w * residuals, nodes) / (_sums(leaf, w * curvature, nodes) + 1.0)
        z += learning_rate * step[leaf]
        fits.append(of_tree(fitted.tree_, False)._replace(value=learning_rate * step * scale))
    kind = {"classification": "logits", "multilabel": "label_logits"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees(fits, inputs.shape[1], kind, base=base * scale + shift, missing=missing)


def _check_data(X: Numbers, targets: Numbers, task: str) -> tuple[np.ndarray, ...]:
    r"""Inputs (n, D), targets (n, K), and the mean and deviation by which values are scaled."""
    rows, outputs = _as_tensor("X", X), _as_tensor("targets", targets).to(torch.float64)
    inputs = rows.flatten(1).to(torch.float32) if rows.ndim > 1 else rows
    if inputs.ndim != 2 or 0 in inputs.shape:
        raise ArgumentError("X", f"shape {tuple(rows.shape)}", "rows and columns (n, D)")
    if outputs.ndim == 1 and task == "regression":
        outputs = outputs.unsqueeze(1)
    if outputs.ndim != 2 or len(outputs) != len(inputs) or not outputs.shape[1]:
        expected = f"({len(inputs)}, K): {'values' if task == 'regression' else 'probabilities'}"
        raise ArgumentError("targets", f"shape {tuple(outputs.shape)}", expected)
    if bool(inputs.isinf().any()):
        raise ArgumentError("X", "infinity, or numbers beyond float32", "finite numbers or NaN")
    if not bool(outputs.isfinite().all()):
        raise ArgumentError("targets", "NaN or infinity", "finite numbers")
    if task == "regression":
        values = outputs.numpy()
        shift, spread = values.mean(0), values.std(0)
        scale = np.where(spread > 0, spread, 1.0)
        return inputs.numpy(), (values - shift) / scale, shift, scale
    classes = task == "classification"  # whose rows sum to one; labels are independent
    check_probabilities(outputs if classes else outputs.reshape(-1, 1), "targets")
    if classes and outputs.shape[1] == 1:  # the second of two classes
        outputs = columns(1 - outputs, outputs)
    return inputs.numpy(), outputs.numpy(), np.zeros(1), np.ones(1)


def _as_tensor(argument: str, values: Numbers) -> torch.Tensor:
    try:
        tensor = values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        expected = "an array or a tensor of numbers"
        raise ArgumentError(argument, f"a {type(values).__name__}", expected) from None
    return tensor.detach().cpu()


def _fit(
    inputs: np.ndarray, outputs: np.ndarray, seed: int, options: dict[str, Any],
    weight: np.ndarray | None,
) -> Any:  # fmt: skip
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(random_state=seed, **options).fit(inputs, outputs, weight)


def _slopes(z: np.ndarray, outputs: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    r"""Minus the gradient of the loss with respect to z, and its curvature, (n, K) each."""
    from scipy import special

    if task == "regression":
        return outputs - z, np.ones_like(z)
    if task == "multilabel":
        p = special.expit(z)
        return outputs - p, p * (1 - p)
    p = special.softmax(z, axis=1)
    # all K logits move at once, though one of them would do: of two, each goes half the way
    return outputs - p, p * (1 - p) * z.shape[1] / max(z.shape[1] - 1, 1)


def _sums(leaf: np.ndarray, values: np.ndarray, nodes: int) -> np.ndarray:
    r"""Sums over the rows of each leaf, (nodes, K)."""
    return np.stack([np.bincount(leaf, weights=column, minlength=nodes) for column in values.T], 1)
