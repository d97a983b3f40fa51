r"""Out-of-fold labels come from clones that have not seen the row; true labels are mixed in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

import limbeck as lb
from limbeck.teachers.folds import mix_labels, out_of_fold
from tests.refusals import refused, warns_about

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3))
CLASSES = np.array(["a", "b", "c"])
Y = CLASSES[np.arange(60) % 3]


class Memory:
    r"""A teacher that knows what it was fitted to: a row's answer tells whether it was seen."""

    def __init__(self, task="classification", classes=CLASSES, outputs=3, seen=()):
        self.task, self.classes, self.outputs = task, classes, outputs
        self.seen = {tuple(row) for row in seen}
        self.fits = []

    def fingerprint(self):
        return None

    def __call__(self, X):
        rows = np.asarray(X.todense() if hasattr(X, "todense") else X)
        known = [tuple(row) in self.seen for row in rows.tolist()]
        return np.where(np.array(known)[:, None], -1.0, 1.0) * np.arange(1, self.outputs + 1)

    def refit(self, X, y):
        rows = np.asarray(X.todense() if hasattr(X, "todense") else X).tolist()
        self.fits.append((rows, y))
        classes = np.unique(y) if self.task == "classification" else self.classes
        outputs = len(classes) if self.task == "classification" else self.outputs
        return Memory(self.task, classes, outputs, rows)


class Logistic:
    task = "classification"

    def __init__(self, X, y):
        self.model = LogisticRegression().fit(X, y)
        self.classes, self.outputs = self.model.classes_, len(self.model.classes_)

    def __call__(self, X):
        return self.model.predict_proba(X)

    def refit(self, X, y):
        return Logistic(X, y)


def frame(X):
    return pytest.importorskip("pandas").DataFrame(X, index=np.arange(len(X))[::-1])


@pytest.mark.parametrize("kind", [np.asarray, frame, sparse.csr_matrix, np.ndarray.tolist])
@pytest.mark.parametrize("folds", [2, 5, 60])
@pytest.mark.filterwarnings("ignore:folds. 3 classes have fewer")
def test_no_row_is_labelled_by_a_clone_that_has_seen_it(kind, folds):
    teacher = Memory(seen=X)
    found = out_of_fold(teacher, kind(X), Y, folds)
    assert np.array_equal(found, np.tile([1.0, 2, 3], (60, 1)))
    assert len(teacher.fits) == folds


def test_clones_are_fitted_to_all_other_rows_with_their_labels():
    teacher = Memory()
    out_of_fold(teacher, X, Y, 4)
    labels = dict(zip(map(tuple, X.tolist()), Y, strict=True))
    for rows, y in teacher.fits:
        assert len(rows) == 45
        assert [labels[tuple(row)] for row in rows] == y.tolist()
        assert (np.unique(y, return_counts=True)[1] == 15).all()  # classes in equal shares


def test_it_is_what_cross_validation_predicts():
    teacher = Logistic(X, Y)
    splits = StratifiedKFold(5, shuffle=True, random_state=3)
    codes = np.arange(60) % 3
    expected = cross_val_predict(LogisticRegression(), X, codes, cv=splits, method="predict_proba")
    np.testing.assert_allclose(out_of_fold(teacher, X, Y, seed=3), expected, rtol=1e-9)
    assert not np.allclose(out_of_fold(teacher, X, Y, seed=4), expected)


def test_values_are_split_without_classes():
    y = X[:, 0]
    teacher = Memory("regression", None, 2)
    found = out_of_fold(teacher, X, y, folds=3, seed=1)
    assert np.array_equal(found, np.tile([1.0, 2], (60, 1)))
    first, _ = next(KFold(3, shuffle=True, random_state=1).split(X))
    assert np.array_equal(teacher.fits[0][1], y[first])
    several = Memory("multilabel", CLASSES, 3)
    out_of_fold(several, X, RNG.integers(0, 2, (60, 3)), folds=3)
    assert several.fits[0][1].shape == (40, 3)


def test_equal_rows_are_never_on_both_sides():
    teacher = Memory()
    rows = RNG.integers(0, 20, 60)
    found = out_of_fold(teacher, X[rows], Y, folds=4)
    assert (found > 0).all()


def test_a_class_that_a_clone_has_not_seen_gets_zero():
    y = Y.copy()
    y[Y == "b"] = "a"
    y[7] = "b"
    with warns_about("1 classes") as caught:
        found = out_of_fold(Memory(), X, y)
    assert len(caught) == 1
    with_b = np.setdiff1d(np.arange(60), np.flatnonzero((found == [1.0, 0.0, 2.0]).all(1)))
    assert 7 not in with_b  # its fold's clone knows a and c only
    assert len(with_b) == 48
    assert np.array_equal(found[with_b], np.tile([1.0, 2, 3], (48, 1)))


def test_classes_that_are_all_rare_are_split_at_random():
    y = np.array([f"class {k}" for k in range(6)])
    teacher = Memory(classes=y, outputs=6)
    with warns_about("6 classes"):
        found = out_of_fold(teacher, X[:6], y, folds=3)
    assert (found == 0).sum() == 6 * 2
    assert (np.diagonal(found) == 0).all()


def test_rows_without_a_label_are_left_to_the_teacher_itself():
    y = Y.astype(object)
    y[[3, 10]] = None
    teacher = Memory(seen=X)
    found = out_of_fold(teacher, X, y, folds=4)
    assert np.array_equal(found[[3, 10]], [[-1.0, -2, -3]] * 2)
    assert (np.delete(found, [3, 10], axis=0) > 0).all()
    assert all(None not in y for _, y in teacher.fits)


@pytest.mark.parametrize("missing", [None, np.nan, -1])
def test_clones_get_labels_in_the_teachers_own_type(missing):
    codes = np.arange(60) % 3
    y = np.array([*codes[:-1], missing], object if missing is None else None)
    teacher = Logistic(X, codes)
    found = out_of_fold(teacher, X, y, folds=3)
    np.testing.assert_allclose(found[-1], teacher(X[-1:])[0], rtol=1e-12)
    assert abs(found[:-1] - teacher(X[:-1])).max() > 0.01
    whole = Memory(classes=np.arange(3))
    out_of_fold(whole, X, y, folds=3)
    assert whole.fits[0][1].dtype == np.arange(3).dtype
    values = Memory("regression", None, 1)
    out_of_fold(values, X, [*X[:-1, 0], None], folds=3)
    assert values.fits[0][1].dtype == np.float64


def test_a_column_of_labels_is_as_good_as_a_row():
    assert np.array_equal(
        out_of_fold(Logistic(X, Y), X, Y[:, None]), out_of_fold(Logistic(X, Y), X, Y)
    )
    assert np.array_equal(
        mix_labels(T, [["a"], ["b"], ["c"], ["a"], ["b"]], 1.0, CLASSES)[3], [1, 0, 0]
    )


def test_labels_may_come_as_a_series_or_tensor():
    pandas = pytest.importorskip("pandas")
    expected = out_of_fold(Logistic(X, Y), X, Y)
    index = np.arange(60)[::-1]
    assert np.array_equal(out_of_fold(Logistic(X, Y), X, pandas.Series(Y, index=index)), expected)
    codes = np.arange(60) % 3
    numbers = out_of_fold(Logistic(X, codes), X, torch.tensor(codes))
    assert np.array_equal(numbers, expected)


class Fixed(Memory):
    def refit(self, X, y):
        raise lb.ArgumentError("teacher", "a callable", "an estimator that can be cloned")


@pytest.mark.parametrize(
    ("teacher", "y", "folds", "argument", "received", "expected"),
    [
        (Memory(), Y[:50], 5, "labels", "50 labels", "one for each of 60 rows"),
        (Memory(), "a", 5, "labels", "'a'", ""),
        (Memory(), Y, 1, "folds", "^1$", "a whole number from 2"),
        (Memory(), Y, 2.5, "folds", "^2.5$", ""),
        (Memory(), Y, 61, "teacher_folds", "61, for 60 distinct rows with labels", ""),
        (Memory(), np.full(60, None), 5, "teacher_folds", "5, for 0 distinct rows", ""),
        (Memory(), np.char.upper(Y), 5, "labels", "'A', 'B', 'C'", "'a', 'b', 'c'"),
        (Fixed(), Y, 5, "teacher", "a callable", ""),
    ],
)
def test_what_cannot_be_folded_is_refused(teacher, y, folds, argument, received, expected):
    with refused(argument, received, expected=expected):
        out_of_fold(teacher, X, y, folds)


T = RNG.dirichlet(np.ones(3), 5)


@given(st.floats(0, 1))
def test_labels_are_mixed_in_by_weight(weight):
    found = mix_labels(T, ["a", "c", "b", "b", "a"], weight, CLASSES)
    one_hot = np.eye(3)[[0, 2, 1, 1, 0]]
    np.testing.assert_allclose(found, (1 - weight) * T + weight * one_hot, rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1)


def test_all_or_nothing():
    y = ["a", "c", "b", "b", "a"]
    assert np.array_equal(mix_labels(T, y, 0, CLASSES), T)
    assert np.array_equal(mix_labels(T, y, 1, CLASSES), np.eye(3)[[0, 2, 1, 1, 0]])


NONE = {
    "None": (["a", None, "b", "c", None], CLASSES),
    "NaN among strings": (np.array(["a", np.nan, "b", "c", np.nan], object), CLASSES),
    "NaN among numbers": (np.array([0, np.nan, 1, 2, np.nan]), [0, 1, 2]),
    "minus one": (np.array([0, -1, 1, 2, -1]), [0, 1, 2]),
    "minus one among objects": (np.array([0, -1, 1, 2, -1.0], object), [0, 1, 2]),
    "minus one in a tensor": (torch.tensor([0, -1, 1, 2, -1]), np.arange(3)),
    "booleans": (np.array([False, None, True, 2, -1], object), np.arange(3)),
}


@pytest.mark.parametrize("case", NONE)
def test_where_there_is_no_label_the_teachers_word_stays(case):
    y, classes = NONE[case]
    found = mix_labels(T, y, 0.5, classes)
    assert np.array_equal(found[[1, 4]], T[[1, 4]])
    np.testing.assert_allclose(found[[0, 2, 3]], (T[[0, 2, 3]] + np.eye(3)) / 2)


def test_pandas_says_missing_in_its_own_way():
    pandas = pytest.importorskip("pandas")
    y = pandas.Series([0, pandas.NA, 1, 2, pandas.NA], dtype="Int64")
    assert np.array_equal(mix_labels(T, y, 1.0, [0, 1, 2])[[0, 1]], [[1, 0, 0], T[1]])


def test_minus_one_may_be_a_class():
    found = mix_labels(T[:, :2], [-1, 1, -1, 1, 1], 1.0, [-1, 1])
    assert np.array_equal(found, np.eye(2)[[0, 1, 0, 1, 1]])


def test_values_are_mixed_as_they_are():
    values = np.arange(5.0)[:, None]
    found = mix_labels(values, [10.0, np.nan, -1.0, None, 2], 0.25)
    np.testing.assert_allclose(found[:, 0], [2.5, 1.0, 1.25, 3.0, 3.5])
    pairs = mix_labels(T[:, :2], [[1, np.nan], [np.nan, np.nan], [0, 1], [-1, 2], [3, 4]], 1.0)
    assert pairs.tolist()[:2] == [[1.0, T[0, 1]], T[1, :2].tolist()]
    assert pairs.tolist()[3] == [-1.0, 2.0]


def test_several_labels_at_once_are_mixed_one_by_one():
    y = np.array([[1, 0, -1], [0, 0, 0], [1, 1, 1], [-1, -1, -1], [0, 1, 0]])
    found = mix_labels(T, y, 0.5, CLASSES)
    np.testing.assert_allclose(found, np.where(y < 0, T, (T + y) / 2))
    single = mix_labels(T[:, :1], [1, 0, -1, 1, 1], 1.0, ["urgent"])
    assert single[:, 0].tolist() == [1, 0, T[2, 0], 1, 1]


@pytest.mark.parametrize(
    ("y", "weight", "classes", "argument", "received"),
    [
        (["a"] * 4, 0.5, CLASSES, "labels", "^4 labels$"),
        (["a"] * 5, 1.5, CLASSES, "weight", "^1.5$"),
        (["a"] * 5, np.nan, CLASSES, "weight", "^nan$"),
        (["a", "b", "z", "y", "a"], 0.5, CLASSES, "labels", "'y', 'z'"),
        ([0, 1, 2, 0, 1], 0.5, CLASSES, "labels", "^0, 1, 2$"),
        ([1.0] * 5, 0.5, None, "labels", r"shape \(5,\)"),
        (np.full((5, 3), "x"), 0.5, None, "labels", "what is no number"),
        (np.full((5, 3), np.inf), 0.5, None, "labels", "infinite values"),
    ],
)
def test_what_cannot_be_mixed_is_refused(y, weight, classes, argument, received):
    with refused(argument, received):
        mix_labels(T, y, weight, classes)
