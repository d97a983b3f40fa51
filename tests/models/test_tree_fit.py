r"""Trees fitted to soft targets: means of leaves, boosting, missing values, refused inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import tree
from torch import nn

from limbeck.models import Trees, tree_fit
from limbeck.models.tree_fit import fit_boosted, fit_tree
from tests.models.test_tree import BOTH, LABELS, NEW, RNG, THREE, N, X, Y, soft
from tests.refusals import refused


def test_leaves_of_a_tree_hold_the_mean_of_their_rows_probabilities() -> None:
    wanted = soft(X)
    trees = fit_tree(X, wanted, max_leaf_nodes=8)
    assert (len(trees), trees.leaves, trees.kind) == (1, 8, "probabilities")
    found = trees(torch.tensor(X)).numpy()
    leaves = np.unique(found, axis=0)
    assert len(leaves) == 8
    for leaf in leaves:
        rows = (found == leaf).all(1)
        np.testing.assert_allclose(leaf, wanted[rows].mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)


def test_a_tree_on_certain_targets_is_the_tree_on_classes() -> None:
    r"""Square error of one-hot rows and Gini's index of classes choose the same splits."""
    known = tree.DecisionTreeClassifier(max_leaf_nodes=20, random_state=0).fit(X, THREE)
    found = fit_tree(X, np.eye(3)[THREE], max_leaf_nodes=20, seed=0)
    np.testing.assert_allclose(found(torch.tensor(X)), known.predict_proba(X), atol=1e-6)


def test_targets_of_a_regression_count_by_their_own_deviation() -> None:
    small = np.stack([1e-3 * Y, 1e5 + 1e3 * Y], 1)
    found = fit_tree(X, small, max_leaf_nodes=8, task="regression")
    alone = fit_tree(X, Y, max_leaf_nodes=8, task="regression")
    y = alone(torch.tensor(X)).double().numpy()[:, 0]
    np.testing.assert_allclose(
        found(torch.tensor(X)), np.stack([1e-3 * y, 1e5 + 1e3 * y], 1), rtol=1e-5
    )


def error(trees: Trees, x: np.ndarray, wanted: np.ndarray) -> float:
    z = trees(torch.tensor(x)).double()
    t = torch.tensor(wanted)
    if trees.kind == "values":
        return ((z - t).square().mean() / t.var()).item()
    if trees.kind == "logits":
        return (torch.xlogy(t, t) - t * z.log_softmax(1)).sum(1).mean().item()
    return (
        (nn.functional.softplus(z) - t * z + torch.xlogy(t, t) + torch.xlogy(1 - t, 1 - t))
        .mean()
        .item()
    )


TARGETS = {"classification": soft(X), "multilabel": LABELS, "regression": BOTH}


@pytest.mark.parametrize("task", TARGETS)
def test_boosting_comes_as_near_as_there_are_trees(task, monkeypatch) -> None:
    monkeypatch.setattr(tree_fit, "LEAF_ROWS", 1)
    errors = []
    for count in (1, 10, 100):
        trees = fit_boosted(X, TARGETS[task], trees=count, task=task)
        assert len(trees) == count
        errors.append(error(trees, X, TARGETS[task]))
    assert errors[0] > 2 * errors[1] > 8 * errors[2]
    assert trees.output_form == ("logits" if task == "classification" else "values")


def test_boosting_two_classes_takes_newton_steps() -> None:
    r"""One leaf's step from even odds is (t̄ − ½) / ¼ of log odds, if many rows steady it."""
    x = np.repeat([[0.0], [1.0]], 5000, axis=0)
    t = np.repeat([[0.6, 0.4], [0.4, 0.6]], 5000, axis=0)
    trees = fit_boosted(x, t, trees=1, learning_rate=1.0)
    z = trees(torch.tensor([[0.0], [1.0]]))
    np.testing.assert_allclose(z[:, 1] - z[:, 0], [-0.4, 0.4], rtol=1e-2)


def test_boosting_starts_from_the_mean_probabilities() -> None:
    wanted = np.tile([[0.7, 0.2, 0.1]], (N, 1))
    found = fit_boosted(X, wanted, trees=2)(torch.tensor(X)).softmax(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_labels_that_do_not_exclude_each_other_come_as_logits() -> None:
    found = fit_tree(X, LABELS, max_leaf_nodes=6, task="multilabel")
    assert (found.kind, found.output_form) == ("labels", "values")
    z = found(torch.tensor(X))  # a leaf's rows have its very logits, but not the same sigmoids
    for leaf in z.unique(dim=0):
        rows = (z == leaf).all(1).numpy()
        np.testing.assert_allclose(leaf.sigmoid(), LABELS[rows].mean(0), rtol=1e-4)
    certain = fit_tree(X, np.eye(2)[(Y > 0).astype(int)] * [[1, 0]], task="multilabel")
    assert certain(torch.tensor(NEW)).isfinite().all()


def test_one_probability_stands_for_two_classes() -> None:
    p = soft(X)[:, :1]
    for fit in (fit_tree, fit_boosted):
        found, two = fit(X, p), fit(X, np.hstack([1 - p, p]))
        assert torch.equal(found(torch.tensor(X)), two(torch.tensor(X)))


def test_equal_seeds_give_equal_trees_and_the_global_state_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr("limbeck.models.tree_fit.ROWS", 100)
    state = np.random.get_state()[1].copy()
    one, two, other = (fit_boosted(X, soft(X), trees=3, seed=s) for s in (0, 0, 1))
    assert np.array_equal(state, np.random.get_state()[1])
    x = torch.tensor(X)
    assert torch.equal(one(x), two(x))
    assert not torch.equal(one(x), other(x))


def test_missing_values_are_learned_from() -> None:
    x = RNG.normal(size=(N, 2))
    x[::3, 1] = np.nan
    wanted = np.where(np.isnan(x[:, 1]), 5.0, -1.0)
    for fit in (fit_tree, fit_boosted):
        found = fit(x, wanted, task="regression")(torch.tensor(x))[:, 0]
        np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize("fit", [fit_tree, fit_boosted])
@pytest.mark.parametrize("x", [np.where(X > 2, np.inf, X), X * 1e300], ids=["infinite", "float64"])
def test_inputs_beyond_32_bits_are_refused(fit, x) -> None:
    with refused("X", "infinity, or numbers beyond float32"):
        fit(x, soft(X))
