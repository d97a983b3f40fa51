r"""Weights of rows: a weight of 2 is a row twice, a weight of 0 is none, for every student."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

import limbeck as lb
from limbeck.compression import training
from limbeck.compression.estimators import DistilledClassifier, DistilledRegressor
from limbeck.compression.generators import drawn, prepared
from limbeck.compression.rows import read_rows
from limbeck.models import tree_fit
from limbeck.models.tree_fit import fit_boosted, fit_tree
from tests.refusals import refused

PLAIN = {"inputs": "data", "progress": False, "device": "cpu"}


def curved(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, rng.integers(0, 4, n)


def bent(X):  # no line, so that the best line depends on the weights
    return np.exp(np.asarray(X)[:, 0]) + np.asarray(X)[:, 1] ** 2


def least_squares(X, y, w):
    model = LinearRegression().fit(X, y, sample_weight=w)
    return np.append(model.coef_, model.intercept_)


def line_of(result):
    outputs = result.predict(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    return np.append(outputs[1:] - outputs[0], outputs[0])


def test_a_linear_student_solves_weighted_least_squares():
    X, counts = curved()
    settings = PLAIN | {"steps": 1500, "batch_size": 100, "task": "regression"}
    weighted = lb.compress(bent, X, "linear", sample_weight=3.0 * counts, **settings)
    repeated = lb.compress(bent, np.repeat(X, counts, axis=0), "linear", **settings)
    plain = lb.compress(bent, X, "linear", **settings)
    known = least_squares(X, bent(X), counts)
    np.testing.assert_allclose(line_of(weighted), known, atol=0.05)
    np.testing.assert_allclose(line_of(weighted), line_of(repeated), atol=0.07)
    assert np.abs(line_of(plain) - known).max() > 0.2


def test_a_weight_of_zero_is_no_row_at_all():
    X, counts = curved()
    asked = []

    def teacher(rows):
        asked.append(np.asarray(rows))
        return bent(rows)

    settings = PLAIN | {"inputs": "munge", "pool": 500, "steps": 100, "task": "regression"}
    used = counts > 0
    zero = lb.compress(teacher, X, (8,), sample_weight=used.astype(float), **settings)
    first = len(asked)
    absent = lb.compress(teacher, X[used], (8,), **settings)
    np.testing.assert_allclose(zero.predict(X), absent.predict(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(
        np.concatenate(asked[first - 2 : first]), np.concatenate(asked[-2:])
    )


def test_a_weight_of_zero_with_rows_held_out_and_labels(monkeypatch):
    monkeypatch.setattr(training, "default_steps", lambda *_: 300)
    X, _ = curved(900)  # of more than 500 rows, one part is held out, and not five in turn
    y = bent(X)
    w = np.ones(900)
    w[::3] = 0
    labels = np.where(w > 0, y, 1e6)  # of rows that are not there
    settings = {"steps": 200, "progress": False, "device": "cpu", "task": "regression"}
    small = lb.compress(bent, X, (8,), sample_weight=w, labels=labels, **settings)
    assert small.problem.held_out is not None
    report = small.report(X[w > 0], y[w > 0], time=False)
    for model in ("baseline", "trees"):
        assert report.measures[model]["r2"].value > 0.5


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
@pytest.mark.parametrize("fit", [fit_tree, fit_boosted])
def test_trees_take_a_weight_of_two_for_a_row_twice(fit, task, monkeypatch):
    X, counts = curved()
    y = bent(X)[:, None]
    if task != "regression":
        y = 1 / (1 + np.exp(2 - y))
        y = np.hstack([1 - y, y])
    options = {"max_leaf_nodes": 4, "task": task}
    monkeypatch.setattr(tree_fit, "LEAF_ROWS", 1)
    one = fit(X, y, sample_weight=counts / counts.mean(), **options)
    two = fit(*(np.repeat(part, counts, axis=0) for part in (X, y)), **options)
    x = torch.as_tensor(X, dtype=torch.float32)
    if fit is fit_boosted:
        # weights have mean 1 and repeated rows more in sum, beside the 1 that keeps steps small
        similar = (one(x) - two(x)).abs().mean() / two(x).abs().mean()
        assert similar < (0.1 if task == "regression" else 0.2)
    else:
        scale = 2 if task == "regression" else 1
        torch.testing.assert_close(one(x), two(x), rtol=1e-4 * scale, atol=1e-4)


@pytest.mark.parametrize(
    "student",
    [DecisionTreeRegressor(max_leaf_nodes=4), RandomForestRegressor(5, max_leaf_nodes=4), "tree"],
)
def test_students_of_scikit_learn_get_the_weights(student):
    X, _ = curved(300)
    w = np.where(X[:, 0] > 0, 1.0, 1e-4)
    small = lb.compress(bent, X, student, sample_weight=w, task="regression", **PLAIN)
    plain = lb.compress(bent, X, student, task="regression", **PLAIN)
    errors = [((r.predict(X) - bent(X)) ** 2)[X[:, 0] > 0].mean() for r in (small, plain)]
    assert errors[0] < errors[1]


def test_a_classifier_of_scikit_learn_gets_the_weights():
    X, _ = curved(300)
    teacher = LogisticRegression().fit(X, X[:, 0] > 0)
    w = np.where(X[:, 0] > 0, 1.0, 1e-3)
    small = lb.compress(teacher, X, DecisionTreeClassifier(max_depth=1), sample_weight=w, **PLAIN)
    assert small.predict(X).mean() > 0.6  # of which half are true


def test_a_torch_teacher_is_followed_by_weight():
    X, counts = curved()

    class Bent(nn.Module):
        def forward(self, x):
            return (x[:, :1].exp() + x[:, 1:] ** 2).float()

    settings = PLAIN | {"steps": 3000, "batch_size": 100, "task": "regression"}
    x = X.astype("f")
    small = lb.compress(Bent(), x, "linear", sample_weight=counts, **settings)
    np.testing.assert_allclose(line_of(small), least_squares(X, bent(X), counts), atol=0.05)
    mixed = lb.compress(
        Bent(), x, "linear", sample_weight=counts, **settings | {"inputs": "munge", "steps": 50}
    )
    assert np.isfinite(line_of(mixed)).all()


@pytest.mark.parametrize("name", ["munge", "noise", "columns", "mixture"])
def test_generated_rows_have_the_weight_of_their_row_or_the_mean(name):
    X, _ = curved(100)
    X[:, 0] = np.arange(100) * 1000.0  # rows are far apart, so that it tells where a row is from
    data, weight = read_rows(X), np.linspace(0.02, 1.98, 100)
    source = prepared(name, data.format, data.x, 0, weight=weight)
    x, weights = drawn(source, 200, len(X))
    if name in ("columns", "mixture"):
        np.testing.assert_array_equal(weights, np.ones(200))
    else:
        assert weights.mean() == pytest.approx(1.0)
        assert np.corrcoef(weights, x[:, 0])[0, 1] > (0.95 if name == "munge" else 0.5)


def test_a_table_is_munged_with_weights():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300), "town": rng.choice(["x", "y"], 300)})
    small = lb.compress(
        lambda f: f["a"].to_numpy(), frame, "linear", sample_weight=rng.uniform(size=300),
        task="regression", **PLAIN | {"inputs": "munge", "pool": 600, "steps": 20},
    )  # fmt: skip
    pool = small.problem.pool("munge", 600, 0)
    assert pool.weight.shape == (600,)
    assert len(np.unique(pool.weight)) > 100


@pytest.mark.parametrize(
    ("weights", "received"),
    [
        ([1.0] * 199, r"\(199,\)"), ([-1.0] + [1.0] * 199, "-1 in row 0"), ([0] * 200, "zeros"),
        ([1.0] * 199 + [np.nan], "nan in row 199"), (["a"] * 200, "U1"), ("w", "w"),
    ],
)  # fmt: skip
def test_bad_weights_are_refused(weights, received):
    X, _ = curved()
    with refused("sample_weight", received):
        lb.compress(bent, X, sample_weight=weights, task="regression", **PLAIN)
    with refused("sample_weight", received):
        DistilledRegressor(bent).fit(X, sample_weight=weights)


def test_estimators_pass_weights_to_a_teacher_that_they_fit():
    X, _ = curved(300)
    y = np.arange(300) % 2  # which nothing tells
    w = np.where(y == 1, 1.0, 0.01)
    pipeline = make_pipeline(StandardScaler(), GaussianNB())
    for teacher in (
        RandomForestClassifier(20, max_depth=2, random_state=0),
        pipeline,
        [GaussianNB()],
    ):
        made = DistilledClassifier(teacher, "linear", inputs="data", steps=200)
        assert made.fit(X, y, sample_weight=w).predict(X).mean() > 0.95
        assert 0.1 < made.fit(X, y).predict(X).mean() < 0.9
    with refused("sample_weight", "KNeighborsClassifier, whose fit takes none"):
        DistilledClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=w)
    fitted = KNeighborsClassifier().fit(X, y)
    DistilledClassifier(fitted, "linear", steps=5).fit(X, sample_weight=w)


def test_the_report_weights_its_rows():
    X, _ = curved(200)
    small = lb.compress(bent, X, "linear", task="regression", steps=20, **PLAIN)
    w = (X[:, 0] > 0).astype(float)
    weighted = small.report(X, bent(X), sample_weight=w, time=False)
    part = small.report(X[w > 0], bent(X)[w > 0], time=False)
    for name in ("r2", "rmse", "absolute_error", "teacher_r2"):
        known = part.measures["student"][name].value
        assert weighted.measures["student"][name].value == pytest.approx(known)
