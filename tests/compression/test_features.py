r"""Students of raw rows, and knots of arrays."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import limbeck as lb

RANDOM = np.random.default_rng(0)
X = np.column_stack([RANDOM.normal(size=(600, 3)), np.full(600, 7.0), RANDOM.integers(0, 2, 600)])
Y = (np.abs(X[:, 0]) > 0.7).astype(int) + (X[:, 1] > 0.3)
FEW = dict(inputs="munge", pool=1500, steps=60, device="cpu", progress=False)


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(20, random_state=0).fit(X, Y)


def test_metrics_are_given_the_student_of_raw_rows(forest):
    shapes = []

    def metric(student):
        shapes.append(student(torch.as_tensor(X[:5], dtype=torch.float32)).shape)
        return 0.0

    lb.compress(forest, X, (6,), **FEW, metrics={"own": metric})
    assert set(shapes) == {(5, 3)}


def test_students_of_trees_bend_within_the_columns_of_an_array(forest):
    encoder = lb.compress(forest, X, (6,), **FEW).student.encoder
    assert encoder.place.tolist() == [0, 1, 2, 4]  # the other one is constant
    assert [len(knots) > 2 for knots in encoder.knots] == [True, True, True, False]


def test_knots_bring_a_student_nearer_to_trees():
    x = RANDOM.uniform(-3, 3, size=(1500, 4))
    teacher = RandomForestRegressor(30, random_state=0).fit(x, np.sign(np.sin(3 * x[:, 0])))
    new = RANDOM.uniform(-3, 3, size=(1000, 4))
    settings = FEW | {"steps": 600, "pool": 5000}
    bent = lb.compress(teacher, x, (8,), **settings)
    plain = lb.compress(teacher, x, lb.MLP(4, 8, 1, output_form="values"), **settings)
    errors = [
        np.square(s.predict(new).ravel() - teacher.predict(new)).mean() for s in (bent, plain)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_nets_have_no_knots_nor_have_linear_students_and_pixels(forest):
    net, single = torch.nn.Linear(5, 3), X.astype(np.float32)
    assert lb.compress(net, single, (6,), teacher_output="logits", **FEW).student.encoder is None
    assert lb.compress(forest, X, "linear", **FEW).student.encoder is None
    pixels = RANDOM.normal(size=(80, 300))
    wide = lb.compress(lambda x: x[:, 0], pixels, (4,), **FEW, task="regression")
    assert wide.student.encoder is None


def test_knots_are_saved_with_the_student(forest, tmp_path):
    made = lb.compress(forest, X, (6,), **FEW)
    made.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        lb.load(tmp_path / "saved").predict_proba(X), made.predict_proba(X)
    )
    few = np.vstack([made.predict_proba(X[k : k + 1]) for k in range(9)])
    np.testing.assert_allclose(few, made.predict_proba(X)[:9], atol=1e-6)


def test_a_student_of_trees_is_constant_beyond_the_rows_as_they_are(forest):
    made = lb.compress(forest, X, (6,), **FEW)
    far, end = X[:40].copy(), X[:40].copy()
    far[::2, 0], end[::2, 0] = 1e6, X[:, 0].max()
    far[1::2, 2], end[1::2, 2] = -1e6, X[:, 2].min()
    expected = made.predict_proba(end)
    np.testing.assert_allclose(made.predict_proba(far), expected, atol=1e-5)
    few = np.vstack([made.predict_proba(far[k : k + 1]) for k in range(9)])
    np.testing.assert_allclose(few, expected[:9], atol=1e-5)


@pytest.mark.parametrize("kind", [LogisticRegression, KNeighborsClassifier])
def test_a_student_of_others_goes_on_beyond_the_rows(kind):
    made = lb.compress(kind().fit(X, Y), X, (6,), **FEW)
    assert made.student.encoder.low.isinf().all()


@pytest.mark.parametrize("error", [ValueError, ConnectionError])
def test_a_teacher_that_refuses_numbers_beyond_the_rows_has_a_student(forest, error):
    def bounded(rows):
        if (np.abs(rows[:, :3]) > np.abs(X[:, :3]).max() + 1e-6).any():
            raise error("out of range")
        return forest.predict_proba(rows)

    made = lb.compress(bounded, X, (6,), **FEW)
    assert made.student.encoder.low.isinf().all()
    assert not [note for note in made.notes if "failed" in note]


def test_gaps_and_dates_of_a_table_are_no_hindrance():
    import pandas as pd

    frame = pd.DataFrame(X[:, :3], columns=["a", "b", "c"])
    frame["day"] = pd.date_range("2262-04-01", periods=len(X), freq="h")  # near the last one
    frame.loc[::5, "b"] = np.nan

    def steps(rows):
        return (rows["b"].fillna(0.3) > 0.3) + (rows["a"] > 0.5) * 2.0

    made = lb.compress(steps, frame, (6,), **FEW, task="regression")
    assert made.predict(frame).shape == (len(X),)
    made = lb.compress(steps, frame[["a", "b", "c"]], (6,), **FEW, task="regression")
    assert made.student.encoder.high.isfinite().all()
