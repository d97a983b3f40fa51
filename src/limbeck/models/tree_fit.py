r"""Fitting a tree, or a sum of boosted trees, to soft targets."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import torch

from limbeck.arrays import as_weights
from limbeck.errors import ArgumentError
from limbeck.models.tree import SURE, TreeArrays, Trees, of_lightgbm, of_tree

ROWS = 20_000  # the most rows that a boosted tree is grown from
LEAF_ROWS = 5  # the fewest rows in a leaf of a boosted tree
Numbers = np.ndarray | torch.Tensor


def fit_tree(
    X: Numbers, targets: Numbers, *, max_leaf_nodes: int = 64, seed: int = 0,
    task: str = "classification", sample_weight: np.ndarray | None = None,
) -> Trees:  # fmt: skip
    r"""One tree of least square error; its leaves hold the mean targets (n, K) of their rows.

    Arguments:
        X: Inputs (n, ...); NaN is a missing value.
        targets: Probabilities (n, K), of classes or of separate labels, or values (n, K).
        max_leaf_nodes: The largest number of leaves. Default: 64.
        seed: Decides between equally good splits. Default: 0.
        task: "classification", "multilabel" or "regression". Default: "classification".
        sample_weight: Weights (n,) of the rows, from 0. Default: None, equal ones.
    """
    from sklearn.tree import DecisionTreeRegressor

    inputs, outputs, weight, shift, scale = _prepare(X, targets, task, sample_weight)
    model = DecisionTreeRegressor(max_leaf_nodes=max_leaf_nodes, random_state=seed)
    tree = of_tree(model.fit(inputs, outputs, weight).tree_, False)
    mean = tree.value * scale + shift
    if task == "classification":
        mean = np.clip(mean, 0, None)
        mean /= mean.sum(1, keepdims=True)
    kind = {"classification": "probabilities", "multilabel": "labels"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees([tree._replace(value=mean)], inputs.shape[1], kind, missing=missing)


def fit_boosted(
    X: Numbers, targets: Numbers, *, trees: int = 100, max_leaf_nodes: int = 16,
    learning_rate: float = 0.3, seed: int = 0, task: str = "classification",
    sample_weight: np.ndarray | None = None,
) -> Trees:  # fmt: skip
    r"""Small trees with all outputs in their leaves, each fitted to the residuals so far.

    The sum is logits of classes and labels, by Newton steps of the cross entropy, or values of a
    regression, by square error. LightGBM grows the trees where it is installed, each for a random
    combination of the outputs; else scikit-learn does, which takes longer.

    Arguments:
        X: Inputs, as in `fit_tree`, like `targets`, `task` and `sample_weight`.
        trees: The number of trees. Default: 100.
        max_leaf_nodes: The largest number of leaves of a tree. Default: 16.
        learning_rate: The fraction of each Newton step. Default: 0.3.
        seed: Chooses the combinations of outputs; for scikit-learn, the rows that a tree is fitted
            to, if there are more than 20,000. Default: 0.
    """
    inputs, outputs, weight, shift, scale = _prepare(X, targets, task, sample_weight)
    w = np.ones((len(inputs), 1)) if weight is None else weight[:, None]
    base = np.zeros(outputs.shape[1])  # the logits of the mean probabilities
    if task != "regression":
        mean = (w * outputs).mean(0).clip(SURE, 1 - SURE)
        base = np.log(mean) - (np.log1p(-mean) if task == "multilabel" else 0.0)
    z = np.tile(base, (len(outputs), 1))  # (n, K): the sum of the trees so far
    library, settings, steps = lightgbm(), (inputs, max_leaf_nodes, seed), list[np.ndarray]()
    grower: LightGBMGrower | SklearnGrower = (
        LightGBMGrower(library, *settings) if library else SklearnGrower(*settings)
    )
    for _ in range(trees):
        residuals, curvature = _slopes(z, outputs, task)
        leaf, count = grower.grow(residuals, curvature, w)
        if not count:  # nothing is left to split
            break
        # the 1 added to the curvature keeps leaves of few rows small
        step = _sums(leaf, w * residuals, count) / (_sums(leaf, w * curvature, count) + 1.0)
        steps.append(learning_rate * step)
        z += steps[-1][leaf]
    fits = grower.trees([step * scale for step in steps])
    kind = {"classification": "logits", "multilabel": "label_logits"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees(fits, inputs.shape[1], kind, base=base * scale + shift, missing=missing)


class LightGBMGrower:
    r"""Trees of LightGBM, which splits bins of numbers: fast for many rows."""

    def __init__(self, library: Any, inputs: np.ndarray, leaves: int, seed: int) -> None:
        self.inputs, self.random = inputs, np.random.default_rng(seed)
        self.leaves = min(leaves, max(2, len(inputs)), 2**17)
        options = {
            "objective": "none", "num_leaves": self.leaves, "lambda_l2": 1.0, "learning_rate": 1.0,
            "min_data_in_leaf": LEAF_ROWS,
            # with a smaller least curvature LightGBM may choose an empty leaf, and fails
            "min_sum_hessian_in_leaf": 1e-3, "min_data_in_bin": 1, "feature_pre_filter": False,
            "seed": seed, "num_threads": torch.get_num_threads(), "deterministic": True,
            "force_row_wise": True, "verbosity": -1,
        }  # fmt: skip
        data = library.Dataset(inputs, np.zeros(len(inputs)), params=options)
        self.model = library.Booster(options, data)

    def grow(
        self, residuals: np.ndarray, curvature: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, int]:
        r"""Numbers (n,) of a new tree's leaves for all rows, and how many; none if none splits."""
        # a random combination of the outputs, in which large residuals weigh more
        mix = residuals.T @ (w[:, 0] * self.random.normal(size=len(residuals)))
        mix = mix / np.abs(mix).max() if mix.any() else np.ones_like(mix)
        slope, bend = -(w * residuals) @ mix, (w * curvature) @ mix**2
        number = self.model.current_iteration()
        self.model.update(fobj=lambda *_: (slope, bend))
        if self.model.current_iteration() == number:
            return np.zeros(0, int), 0
        place: Any = {"start_iteration": number, "num_iteration": 1, "pred_leaf": True}
        leaf = np.asarray(self.model.predict(self.inputs, **place)).reshape(-1)
        return leaf, self.leaves

    def trees(self, steps: list[np.ndarray]) -> list[TreeArrays]:
        r"""The trees, with steps (leaves, K) as values."""
        texts = self.model.model_to_string().split("\nTree=")[1:]
        return [of_lightgbm(text, step) for text, step in zip(texts, steps, strict=True)]


class SklearnGrower:
    r"""Trees of scikit-learn, each of at most 20,000 rows, for all outputs together."""

    def __init__(self, inputs: np.ndarray, leaves: int, seed: int) -> None:
        self.inputs, self.leaves, self.random = inputs, leaves, np.random.default_rng(seed)
        self.fits: list[Any] = []

    def grow(
        self, residuals: np.ndarray, curvature: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, int]:
        from sklearn.tree import DecisionTreeRegressor

        rows = self.random.permutation(len(self.inputs))[:ROWS]
        size: Any = {"max_leaf_nodes": self.leaves, "min_samples_leaf": LEAF_ROWS}
        model = DecisionTreeRegressor(**size, random_state=int(self.random.integers(2**31)))
        model.fit(self.inputs[rows], residuals[rows], w[rows, 0])
        self.fits.append(model.tree_)
        return model.apply(self.inputs), model.tree_.node_count

    def trees(self, steps: list[np.ndarray]) -> list[TreeArrays]:
        pairs = zip(self.fits, steps, strict=True)
        return [of_tree(tree, False)._replace(value=step) for tree, step in pairs]


def lightgbm() -> ModuleType | None:
    r"""The library that grows boosted trees; None, for scikit-learn, where it is not there."""
    try:
        return importlib.import_module("lightgbm")
    except (ImportError, OSError):  # a library that it needs may be missing
        return None


def _prepare(X: Numbers, targets: Numbers, task: str, sample_weight: Any) -> tuple[Any, ...]:
    r"""Inputs (n, D), targets (n, K), weights, and mean and deviation that scale values."""
    inputs = torch.as_tensor(X).cpu().flatten(1).to(torch.float32)
    outputs = torch.as_tensor(targets).reshape(len(inputs), -1).double().numpy()
    if bool(inputs.isinf().any()):
        raise ArgumentError("X", "infinity, or numbers beyond float32", "finite numbers or NaN")
    weight = as_weights(sample_weight, len(inputs))
    if task == "regression":
        shift = np.average(outputs, 0, weight)
        spread = np.sqrt(np.average((outputs - shift) ** 2, 0, weight))
        scale = np.where(spread > 0, spread, 1.0)
        return inputs.numpy(), (outputs - shift) / scale, weight, shift, scale
    if task == "classification" and outputs.shape[1] == 1:  # the second of two classes
        outputs = np.hstack([1 - outputs, outputs])
    return inputs.numpy(), outputs, weight, np.zeros(1), np.ones(1)


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
