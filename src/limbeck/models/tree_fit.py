r"""Fitting a tree, or a sum of boosted trees, to soft targets."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from limbeck.arguments import Choice, Count, Flag, Seed, Share, UserObject, Whole, checked_arguments
from limbeck.arrays import as_weights
from limbeck.errors import ArgumentError
from limbeck.models.tree import SURE, TreeArrays, Trees, of_lightgbm, of_tree
from limbeck.outputs import check_probabilities, columns
from limbeck.progress import tracked

ROWS = 20_000  # the most rows that a boosted tree is grown from
Numbers = UserObject[np.ndarray | torch.Tensor]
Leaves = Annotated[int, Whole(2)]
Task = Annotated[str, Choice("classification", "multilabel", "regression")]
Size = dict[str, int | None]  # limits of a tree, by scikit-learn's names


@checked_arguments
def fit_tree(
    X: Numbers, targets: Numbers, *, max_leaf_nodes: Leaves | None = 64,
    max_depth: Count | None = None, min_samples_leaf: Count = 1, seed: Seed = 0,
    task: Task = "classification", sample_weight: Numbers | None = None,
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
    size = dict(
        max_leaf_nodes=max_leaf_nodes, max_depth=max_depth, min_samples_leaf=min_samples_leaf
    )
    inputs, outputs, weight, shift, scale = _check_data(X, targets, task, sample_weight)
    tree = of_tree(_fit(inputs, outputs, seed, size, weight).tree_, False)
    mean = tree.value * scale + shift
    if task == "classification":
        mean = np.clip(mean, 0, None)
        mean /= mean.sum(1, keepdims=True)
    kind = {"classification": "probabilities", "multilabel": "labels"}.get(task, "values")
    missing = bool(np.isnan(inputs).any())
    return Trees([tree._replace(value=mean)], inputs.shape[1], kind, missing=missing)


@checked_arguments
def fit_boosted(
    X: Numbers, targets: Numbers, *, trees: Count = 100, max_leaf_nodes: Leaves | None = 16,
    max_depth: Count | None = None, min_samples_leaf: Count = 5, learning_rate: Share = 0.3,
    seed: Seed = 0, task: Task = "classification", progress: Flag = False,
    sample_weight: Numbers | None = None,
) -> Trees:  # fmt: skip
    r"""Small trees with all outputs in their leaves, each fitted to the residuals so far.

    The sum is logits of classes and labels, by Newton steps of the cross entropy, or values of a
    regression, by square error. LightGBM grows the trees where it is installed, each for a random
    combination of the outputs; else scikit-learn does, which takes longer.

    Arguments:
        X: Inputs, as in `fit_tree`, like `targets`, `max_depth`, `task` and `sample_weight`.
        trees: The number of trees. Default: 100.
        max_leaf_nodes: The largest number of leaves of a tree. Default: 16.
        min_samples_leaf: The smallest number of rows in a leaf. Default: 5.
        learning_rate: The fraction of each Newton step. Default: 0.3.
        seed: Chooses the combinations of outputs; for scikit-learn, the rows that a tree is fitted
            to, if there are more than 20,000. Default: 0.
        progress: Whether to show a bar. Default: False.
    """
    size = dict(
        max_leaf_nodes=max_leaf_nodes, max_depth=max_depth, min_samples_leaf=min_samples_leaf
    )
    inputs, outputs, weight, shift, scale = _check_data(X, targets, task, sample_weight)
    w = np.ones((len(inputs), 1)) if weight is None else weight[:, None]
    base = np.zeros(outputs.shape[1])  # the logits of the mean probabilities
    if task != "regression":
        mean = (w * outputs).mean(0).clip(SURE, 1 - SURE)
        base = np.log(mean) - (np.log1p(-mean) if task == "multilabel" else 0.0)
    z = np.tile(base, (len(outputs), 1))  # (n, K): the sum of the trees so far
    grower, steps = tree_grower()(inputs, size, seed), list[np.ndarray]()
    for _ in tracked(range(trees), "boosting trees", progress):
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

    library = "LightGBM"

    def __init__(self, inputs: np.ndarray, size: Size, seed: int) -> None:
        import lightgbm

        self.inputs, self.random = inputs, np.random.default_rng(seed)
        self.leaves = min(size["max_leaf_nodes"] or len(inputs), max(2, len(inputs)), 2**17)
        options = {
            "objective": "none", "num_leaves": self.leaves, "max_depth": size["max_depth"] or -1,
            "min_data_in_leaf": size["min_samples_leaf"], "lambda_l2": 1.0, "learning_rate": 1.0,
            # with a smaller least curvature LightGBM may choose an empty leaf, and fails
            "min_sum_hessian_in_leaf": 1e-3, "min_data_in_bin": 1, "feature_pre_filter": False,
            "seed": seed, "num_threads": torch.get_num_threads(), "deterministic": True,
            "force_row_wise": True, "verbosity": -1,
        }  # fmt: skip
        data = lightgbm.Dataset(inputs, np.zeros(len(inputs)), params=options)
        self.model = lightgbm.Booster(options, data)

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

    library = "scikit-learn"

    def __init__(self, inputs: np.ndarray, size: Size, seed: int) -> None:
        self.inputs, self.size, self.random = inputs, size, np.random.default_rng(seed)
        self.fits: list[Any] = []

    def grow(
        self, residuals: np.ndarray, curvature: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, int]:
        rows = self.random.permutation(len(self.inputs))[:ROWS]
        seed, weight = int(self.random.integers(2**31)), w[rows, 0]
        fitted = _fit(self.inputs[rows], residuals[rows], seed, self.size, weight)
        self.fits.append(fitted.tree_)
        return fitted.apply(self.inputs), fitted.tree_.node_count

    def trees(self, steps: list[np.ndarray]) -> list[TreeArrays]:
        pairs = zip(self.fits, steps, strict=True)
        return [of_tree(tree, False)._replace(value=step) for tree, step in pairs]


def tree_grower() -> type[LightGBMGrower | SklearnGrower]:
    r"""What grows boosted trees: LightGBM, or scikit-learn where it cannot be imported."""
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError):  # a library that it needs may be missing
        return SklearnGrower
    return LightGBMGrower


def _check_data(X: Numbers, targets: Numbers, task: str, sample_weight: Any) -> tuple[Any, ...]:
    r"""Inputs (n, D), targets (n, K), weights, and mean and deviation that scale values."""
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
    weight = as_weights(sample_weight, len(inputs))
    if task == "regression":
        values = outputs.numpy()
        shift = np.average(values, 0, weight)
        spread = np.sqrt(np.average((values - shift) ** 2, 0, weight))
        scale = np.where(spread > 0, spread, 1.0)
        return inputs.numpy(), (values - shift) / scale, weight, shift, scale
    classes = task == "classification"  # whose rows sum to one; labels are independent
    check_probabilities(outputs if classes else outputs.reshape(-1, 1), "targets")
    if classes and outputs.shape[1] == 1:  # the second of two classes
        outputs = columns(1 - outputs, outputs)
    return inputs.numpy(), outputs.numpy(), weight, np.zeros(1), np.ones(1)


def _as_tensor(argument: str, values: Numbers) -> torch.Tensor:
    try:
        tensor = values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        expected = "an array or a tensor of numbers"
        raise ArgumentError(argument, f"a {type(values).__name__}", expected) from None
    return tensor.detach().cpu()


def _fit(
    inputs: np.ndarray, outputs: np.ndarray, seed: int, size: Size, weight: np.ndarray | None
) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    model = DecisionTreeRegressor(random_state=seed, **size)
    return model.fit(inputs, outputs, weight)


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
