r"""Trees fitted to labels alone: no larger than the student, stopped early, of either library."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

import limbeck as lb
from limbeck.compression import baseline
from limbeck.report.records import to_record

QUICK = {"inputs": "data", "steps": 20, "progress": False, "device": "cpu"}
pytestmark = pytest.mark.usefixtures("quick_baselines")


@pytest.fixture(params=["LightGBM", "HistGradientBoosting"])
def library(request, monkeypatch):
    if request.param == "LightGBM":
        pytest.importorskip("lightgbm")
    else:
        monkeypatch.setattr(baseline, "lightgbm", lambda: None)
    return request.param


def trees_of(result, labels):
    return result._trained_on(labels)[1]


def test_a_table_with_categories_and_gaps(library):
    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame(
        {"age": rng.normal(size=n), "town": rng.choice(["Bath", "Ely", "York"], n)}
    )
    frame.loc[::7, "age"] = np.nan
    y = np.where((frame.town == "Ely") ^ (frame.age > 0), "yes", "no")
    small = lb.compress(lambda X: np.full((len(X), 2), 0.5), frame, (8,), classes=["no", "yes"],
                        table=lb.Table(frame), **QUICK)  # fmt: skip
    report = small.report(frame, y, labels=y, time=False)
    assert report.names["trees"] == f"{library} on labels"
    assert report.measures["trees"]["accuracy"].value > 0.9
    assert 0 < report.costs["trees"].bytes <= report.costs["student"].bytes
    assert "Did you need the teacher? No: " in str(report)
    content, _ = to_record(small, verb="compress", report=report)
    assert content["summary"].endswith(report.need())
    assert [model["role"] for model in content["models"]][-1] == "trees on labels"


def test_several_classes_of_which_one_is_rare(library):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    y[:2] = 3
    teacher = RandomForestClassifier(5, random_state=0).fit(X, y)
    small = lb.compress(teacher, X, (20, 20), **QUICK)
    trees = trees_of(small, y)
    p = trees(small.row_format.encode(X))
    assert p.shape == (900, 4)
    np.testing.assert_allclose(p.sum(1), 1)
    assert (p.argmax(1) == y).mean() > 0.9


@pytest.mark.parametrize("targets", [1, 2])
def test_values_and_weights(library, targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    y = X[:, :targets] ** 2 + 0.1 * rng.normal(size=(800, targets))
    wrong = np.arange(800) % 4 == 0
    labels = np.where(wrong[:, None], 10.0, y)
    weight = np.where(wrong, 1e-6, 1.0)
    teacher = LinearRegression().fit(X, y)
    small = lb.compress(teacher, X, (20, 20), sample_weight=weight, **QUICK)
    p = trees_of(small, labels)(small.row_format.encode(X))
    assert r2_score(y[~wrong], p[~wrong]) > 0.5


def test_noise_is_not_learnt(library):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(500, 5)), rng.integers(0, 2, 500)
    teacher = RandomForestClassifier(5, random_state=0).fit(X, y)
    small = lb.compress(teacher, X, (400, 200), **QUICK)  # room for 500 rounds
    p = trees_of(small, y)(small.row_format.encode(rng.normal(size=(500, 5))))
    assert np.abs(p - 0.5).mean() < 0.15


def test_no_trees_of_few_rows_or_one_class():
    X = np.random.default_rng(0).normal(size=(60, 2))
    teacher = RandomForestClassifier(5, random_state=0).fit(X, X[:, 0] > 0)
    small = lb.compress(teacher, X, (8,), **QUICK)
    y = X[:, 0] > 0
    assert trees_of(small, y) is not None
    assert trees_of(small, np.zeros(60, bool)) is None
    few = [value if row < 30 else None for row, value in enumerate(y.tolist())]
    assert trees_of(small, few) is None
