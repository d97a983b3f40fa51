r"""Trees as a module: equal to scikit-learn's, readable, saved, exported."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import ensemble, linear_model, tree

import limbeck as lb
from limbeck.errors import ArgumentError, NotDifferentiableError
from limbeck.export import export
from limbeck.models import Trees, tree_fit
from limbeck.models.tree import TreeArrays
from limbeck.models.tree_fit import fit_boosted, fit_tree
from limbeck.training.result import History, Result
from tests.refusals import raises_about, refused

RNG = np.random.default_rng(0)
N, D = 300, 5
X = RNG.normal(size=(N, D))
X[:, 3] = X[:, 3].round(1)  # ties
Y = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * RNG.normal(size=N)
THREE, TWO = (Y > -0.5).astype(int) + (Y > 1), np.where(Y > 0, "yes", "no")
BOTH = np.stack([Y, 100 - X[:, 1]], 1)
LABELS = 1 / (1 + np.exp(-2 * BOTH + [[0, 200]]))
NEW = np.concatenate([X, RNG.normal(size=(200, D)), 1e6 * RNG.normal(size=(20, D))])


def soft(x: np.ndarray) -> np.ndarray:
    z = np.stack([x[:, 0], x[:, 1] * x[:, 2], 1 - x[:, 3]], 1)
    return np.exp(z) / np.exp(z).sum(1, keepdims=True)


def gaps(x: np.ndarray) -> np.ndarray:
    r"""Some numbers missing, and one column mostly."""
    x = x.copy()
    rng = np.random.default_rng(1)
    x[rng.random(x.shape) < 0.15] = np.nan
    x[rng.random(len(x)) < 0.7, 4] = np.nan
    return x


def agrees(estimator, x=X, y=THREE, new=NEW) -> Trees:
    estimator.fit(x, y)
    trees = Trees.from_sklearn(estimator)
    found = trees(torch.tensor(new))
    assert found.dtype == torch.float32
    if hasattr(estimator, "classes_"):
        assert trees.output_form == "probabilities"
        expected = estimator.predict_proba(new)
    else:
        assert trees.output_form == "values"
        expected = estimator.predict(new).reshape(len(new), -1)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    return trees


# scikit-learn's own


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (tree.DecisionTreeClassifier(random_state=0), THREE),
        (tree.DecisionTreeClassifier(random_state=0, max_leaf_nodes=9), TWO),
        (tree.DecisionTreeRegressor(random_state=0, max_depth=4), Y),
        (tree.DecisionTreeRegressor(random_state=0), BOTH),
        (tree.ExtraTreeRegressor(random_state=0), Y),
        (ensemble.RandomForestClassifier(10, random_state=0), THREE),
        (ensemble.RandomForestRegressor(10, random_state=0), BOTH),
        (ensemble.ExtraTreesClassifier(10, random_state=0), TWO),
    ],
    ids=lambda value: str(value)[:60] if hasattr(value, "fit") else "",
)
def test_predictions_are_those_of_scikit_learn(estimator, y) -> None:
    agrees(estimator, y=y)


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (tree.DecisionTreeClassifier(random_state=0), THREE),
        (tree.DecisionTreeRegressor(random_state=0, max_leaf_nodes=30), Y),
        (ensemble.RandomForestClassifier(10, random_state=0), TWO),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else "",
)
def test_missing_values_go_where_scikit_learn_sends_them(estimator, y) -> None:
    agrees(estimator, gaps(X), y, gaps(NEW))


@pytest.mark.parametrize("kind", [tree.DecisionTreeRegressor, tree.ExtraTreeRegressor])
def test_missing_values_after_training_without_any(kind) -> None:
    agrees(kind(random_state=0), y=Y, new=gaps(NEW))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=12, unique=True))
def test_rows_right_at_a_threshold_take_the_same_side(numbers) -> None:
    r"""scikit-learn compares 32-bit numbers with 64-bit midpoints between neighbours."""
    x = np.array(numbers)[:, None]
    estimator = tree.DecisionTreeRegressor(random_state=0).fit(x, np.arange(len(x)))
    inner = estimator.tree_.feature >= 0
    near = estimator.tree_.threshold[inner].astype(np.float32)
    around = [np.nextafter(near, np.float32(to)) for to in (-np.inf, np.inf)]
    probes = np.concatenate([near, *around, estimator.tree_.threshold[inner]])[:, None]
    found = Trees.from_sklearn(estimator)(torch.tensor(probes))[:, 0]
    np.testing.assert_allclose(found, estimator.predict(probes), atol=1e-6)


def test_neighbours_in_32_bits_are_told_apart() -> None:
    one = np.float32(100)
    x = np.array([[one], [np.nextafter(one, np.float32(200))]])
    estimator = tree.DecisionTreeRegressor().fit(x, [0.0, 1.0])
    # between them, where there is no 32-bit number
    assert estimator.tree_.threshold[0] not in x.astype(float)
    assert Trees.from_sklearn(estimator)(torch.tensor(x))[:, 0].tolist() == [0.0, 1.0]


def test_other_precisions_and_shapes() -> None:
    estimator = ensemble.RandomForestRegressor(5, random_state=0).fit(X, Y)
    trees = Trees.from_sklearn(estimator, dtype=torch.float64)
    np.testing.assert_allclose(trees(torch.tensor(NEW))[:, 0], estimator.predict(NEW), rtol=1e-13)
    assert torch.equal(trees(torch.tensor(X).reshape(N, D, 1)), trees(torch.tensor(X)))
    assert trees(torch.zeros(0, D)).shape == (0, 1)
    whole = torch.randint(-2, 3, (7, D))
    assert torch.equal(trees(whole), trees(whole.float()))


def test_a_tree_of_one_leaf_is_a_constant() -> None:
    estimator = tree.DecisionTreeClassifier().fit(X, np.zeros(N))
    trees = Trees.from_sklearn(estimator)
    assert (trees.depth, trees.leaves) == (0, 1)
    assert torch.equal(trees(torch.tensor(X)), torch.ones(N, 1))
    assert trees.text() == "value 1.00  (100.0% of rows)"


def test_numbers_of_leaves_and_levels() -> None:
    estimator = ensemble.RandomForestClassifier(6, max_leaf_nodes=12, random_state=0).fit(X, THREE)
    trees = Trees.from_sklearn(estimator)
    assert len(trees) == 6
    assert trees.leaves == sum(member.get_n_leaves() for member in estimator.estimators_)
    assert trees.depth == max(member.get_depth() for member in estimator.estimators_)
    assert f"6 trees, {trees.leaves} leaves" in repr(trees)


@pytest.mark.parametrize(
    ("estimator", "argument", "received"),
    [
        (
            linear_model.LinearRegression().fit(X, Y),
            "estimator",
            "a LinearRegression",
        ),
        (
            ensemble.IsolationForest(n_estimators=2).fit(X),
            "estimator",
            "a IsolationForest",
        ),
        (
            tree.DecisionTreeRegressor(),
            "estimator",
            "a DecisionTreeRegressor that is not fitted",
        ),
        (
            tree.DecisionTreeClassifier().fit(X, BOTH > 0),
            "estimator",
            "several outputs",
        ),
        (
            ensemble.HistGradientBoostingRegressor(max_iter=2).fit(X, Y),
            "estimator",
            "a HistGradientBoostingRegressor",
        ),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else "",
)
def test_what_cannot_be_read_is_refused(estimator, argument, received) -> None:
    with refused(argument, received):
        Trees.from_sklearn(estimator)


# rules


FLOWERS = """\
if width <= 0.8:
    round 1.00  (50.0% of rows)
else:
    if length <= 4.5:
        long 0.75, round 0.25  (25.0% of rows)
    else:
        long 1.00  (25.0% of rows)"""


def test_rules_in_words(monkeypatch) -> None:
    x = np.array([[0.0, 0.0], [0.6, 9.0], [1.0, 4.0], [1.0, 5.0]])
    p = np.array([[0.0, 1.0], [0.0, 1.0], [0.75, 0.25], [0.999, 0.001]])
    found = fit_tree(x, p)
    assert found.text(["width", "length"], ["long", "round"]) == FLOWERS
    assert "x[1] <= 4.5" in found.text()
    monkeypatch.setattr(tree_fit, "LEAF_ROWS", 1)
    logits = fit_boosted(x, p, trees=1)
    z = logits(torch.tensor([[0.0, 0.0]])).softmax(1)[0].tolist()
    assert f"1 {z[1]:.2f}, 0 {z[0]:.2f}" in logits.text()


def test_rules_of_values_labels_and_missing_numbers() -> None:
    x = np.array([[0.0], [np.nan], [1.0], [2.0]])
    found = fit_tree(x, np.array([1.0, 1.0, 1234.5678, 1234.5678]), task="regression")
    assert found.text(["age"]).splitlines() == [
        "if age <= 0.5 or missing:",
        "    value 1  (50.0% of rows)",
        "else:",
        "    value 1235  (50.0% of rows)",
    ]
    labels = fit_tree(x, np.array([[0.9, 0.6]] * 2 + [[0.0, 0.001]] * 2), task="multilabel")
    lines = labels.text(class_names=["red", "tall"]).splitlines()
    assert lines[1] == "    red 0.90, tall 0.60  (50.0% of rows)"
    assert lines[3] == "    tall 0.00  (50.0% of rows)"


def test_rules_are_for_one_tree_and_names_must_fit() -> None:
    with refused("trees", "2 trees"):
        fit_boosted(X, soft(X), trees=2).text()
    found = fit_tree(X, soft(X), max_leaf_nodes=3)
    with refused("feature_names", "1 names"):
        found.text(["age"])
    with refused("class_names", "1 names"):
        found.text(class_names=["yes"])


def test_rules_lead_where_the_module_leads() -> None:
    found = fit_tree(gaps(X), soft(X), max_leaf_nodes=12)
    lines = [line.replace(" or missing", " or nan(x[{}])") for line in found.text().splitlines()]
    shares: dict[str, int] = {}
    for row in gaps(X).astype(np.float32):
        at, level = 0, 0
        while lines[at].strip().startswith(("if", "else")):
            words = lines[at].split()
            if words[0] == "else:":
                at, level = at + 1, level + 1
                continue
            value = row[int(words[1][2:-1])]
            left = value <= np.float64(words[3].rstrip(":")) or (np.isnan(value) and "or" in words)
            if left:
                at += 1
            else:
                pad = len(lines[at]) - len(lines[at].lstrip())
                at = next(k for k in range(at, len(lines)) if lines[k] == " " * pad + "else:") + 1
        shares[lines[at]] = shares.get(lines[at], 0) + 1
    assert len(shares) == 12
    for line, count in shares.items():
        assert f"({count / N:.1%} of rows)" in line


# as a module


def made() -> Trees:
    return fit_boosted(gaps(X), soft(X), trees=5)


MADE = {
    "boosted": made,
    "tree": lambda: fit_tree(X, soft(X)),
    "labels": lambda: fit_tree(X, LABELS, task="multilabel"),
    "constant": lambda: fit_tree(X[:1], soft(X)[:1]),
}


@pytest.mark.parametrize("name", MADE)
def test_saved_trees_are_read_back_without_pickle(tmp_path, name) -> None:
    trees, x = MADE[name](), torch.tensor(gaps(NEW))
    Result(trees, History(), 0, "fitted", 0.0).save(tmp_path / "student")
    back = lb.load(tmp_path / "student").student
    assert type(back) is Trees
    assert back.spec() == json.loads(json.dumps(trees.spec())) == trees.spec()
    assert torch.equal(back(x), trees(x))
    if len(trees) == 1:
        assert back.text() == trees.text()


@pytest.mark.parametrize("change", [{"type": "MLP"}, {"colour": "red"}, {"kind": "word"}])
def test_bad_specs(change) -> None:
    with raises_about(ArgumentError, *change):
        Trees.from_spec({**made().spec(), **change})


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="needs the extra limbeck[onnx]",
)
@pytest.mark.parametrize("name", ["boosted", "labels"])
def test_the_onnx_file_agrees(tmp_path, name) -> None:
    import onnxruntime

    trees = MADE[name]()
    path = export(trees, tmp_path / "trees.onnx", input_shape=D, card=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for x in (gaps(NEW), NEW[:1]):
        x = x.astype(np.float32)
        found = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(found, trees(torch.tensor(x)), rtol=1e-5, atol=1e-5)


def test_it_compiles_whole_and_exports_with_any_number_of_rows() -> None:
    trees, x = made(), torch.tensor(gaps(NEW)).float()
    torch.compiler.reset()
    compiled = torch.compile(trees, backend="eager", fullgraph=True)
    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(trees, (x[:5],), dynamic_shapes=rows).module()
    for n in (3, 8):
        torch.testing.assert_close(compiled(x[:n]), trees(x[:n]))
        torch.testing.assert_close(program(x[:n]), trees(x[:n]))


def test_trees_teach_values_but_no_derivatives() -> None:
    trees, x = fit_tree(X, soft(X)), torch.tensor(X).float()
    student = lb.MLP(D, 3, generator=torch.Generator().manual_seed(0))
    quick = dict(steps=30, batch_size=20, device="cpu", engine="eager", progress=False, lr=0.05)
    result = lb.distill(trees, student, x, **quick)
    assert result.history["loss"][-1] < result.history["loss"][0]
    with raises_about(NotDifferentiableError, "noise"):
        lb.distill(trees, student, x, lb.losses.derivative_error(), **quick)


def test_everything_is_a_tensor_that_moves_along() -> None:
    trees = made().to("meta")
    assert all(t.device.type == "meta" for t in trees.state_dict().values())
    assert not any(p.requires_grad for p in trees.parameters())


def test_inputs_and_trees_that_do_not_fit_are_refused() -> None:
    with refused("x", r"shape \(2, 4\)"):
        made()(torch.zeros(2, 4))
    with refused("x", "a list"):
        made()([[0.0] * D])
    with refused("trees", "no trees"):
        Trees([], 2, "values")
    leaf = np.array([-1])
    one = TreeArrays(leaf, leaf, leaf, np.zeros(1), leaf, np.ones((1, 1)), np.ones(1))
    with refused("kind", "'value'"):
        Trees([one], 2, "value")
