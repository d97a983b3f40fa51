r"""scikit-learn's estimators as teachers: classes, labels, values, pipelines, refits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from limbeck.compression.dispatch import as_row_teacher
from tests.refusals import refused

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
KINDS = np.array(["ant", "bee", "cat"])[np.digitize(X[:, 0], [-0.5, 0.5])]
LABELS = (X > [0, 0.3, -0.3]).astype(int)


def forest(y=KINDS, seed: int = 0) -> RandomForestClassifier:
    return RandomForestClassifier(5, random_state=seed).fit(X, y)


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (forest(), "RandomForestClassifier"),
        (LogisticRegression().fit(X, KINDS), "LogisticRegression"),
        (
            make_pipeline(StandardScaler(), LogisticRegression()).fit(X, KINDS),
            "LogisticRegression in Pipeline",
        ),
        (
            GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2).fit(X, KINDS),
            "LogisticRegression in GridSearchCV",
        ),
    ],
)
def test_classifiers_say_all_by_themselves(estimator, name) -> None:
    teacher = as_row_teacher(estimator)
    assert (teacher.name, teacher.task, teacher.form) == (name, "classification", "probabilities")
    assert (teacher.classes.tolist(), teacher.outputs) == (["ant", "bee", "cat"], 3)
    assert teacher.module is None
    np.testing.assert_array_equal(teacher(X), estimator.predict_proba(X))
    np.testing.assert_array_equal(teacher.predict(X), estimator.predict(X))
    np.testing.assert_array_equal(teacher(X.tolist()), teacher(X))


def test_regressors_are_asked_how_many_values_they_give() -> None:
    one = RandomForestRegressor(5, random_state=0).fit(X, X[:, 0])
    teacher = as_row_teacher(one, X)
    assert (teacher.task, teacher.form, teacher.outputs) == ("regression", "values", 1)
    np.testing.assert_array_equal(teacher(X)[:, 0], one.predict(X))
    two = as_row_teacher(LinearRegression().fit(X, X[:, :2] * 2), X)
    np.testing.assert_allclose(two.predict(X), X[:, :2] * 2)
    with refused("X", "None"):
        as_row_teacher(one)


@pytest.mark.parametrize(
    "estimator",
    [
        forest(LABELS),
        MultiOutputClassifier(LogisticRegression()).fit(X, LABELS),
        KNeighborsClassifier().fit(X, LABELS),
        OneVsRestClassifier(LogisticRegression()).fit(X, LABELS),
        ClassifierChain(LogisticRegression(), random_state=0).fit(X, LABELS),
        make_pipeline(
            StandardScaler(), OneVsRestClassifier(LogisticRegression()).fit(X, LABELS)
        ).fit(X, LABELS),
        MLPClassifier(4, solver="lbfgs", max_iter=2000, alpha=1.0, random_state=0).fit(X, LABELS),
    ],
    ids=lambda e: type(e).__name__,
)
def test_several_labels(estimator) -> None:
    teacher = as_row_teacher(estimator)
    assert (teacher.task, teacher.form, teacher.outputs) == ("multilabel", "probabilities", 3)
    raw = estimator.predict_proba(X)
    p = np.stack([part[:, 1] for part in raw], 1) if isinstance(raw, list) else raw
    np.testing.assert_array_equal(teacher(X), p)
    clear = (np.abs(p - 0.5) > 1e-9).all(1)  # scikit-learn breaks ties in several ways
    np.testing.assert_array_equal(teacher.predict(X)[clear], estimator.predict(X)[clear])
    assert as_row_teacher(estimator, classes=list("abc")).classes.tolist() == ["a", "b", "c"]


def test_a_label_that_was_always_the_same_is_certain() -> None:
    always = np.column_stack([LABELS[:, 0], np.ones(60, int), np.zeros(60, int)])
    found = as_row_teacher(forest(always))(X)
    assert (found[:, 1] == 1).all()
    assert (found[:, 2] == 0).all()


def test_labels_of_many_classes_are_refused() -> None:
    y = np.column_stack([LABELS[:, 0], np.arange(60) % 3])
    with refused("teacher", r"a label with 3 classes, \[0, 1, 2\]"):
        as_row_teacher(forest(y))(X)


def test_a_classifier_without_probabilities_is_refused_with_the_way_out() -> None:
    for model in (LinearSVC(), SVC(), make_pipeline(LinearSVC())):
        with refused("teacher", "no predict_proba"):
            as_row_teacher(model.fit(X, KINDS), X)
    calibrated = CalibratedClassifierCV(LinearSVC(), cv=2).fit(X, KINDS)
    assert as_row_teacher(calibrated, X).outputs == 3


def test_what_is_not_fitted_or_not_a_teacher_is_refused() -> None:
    with refused("teacher", "a RandomForestClassifier that is not fitted"):
        as_row_teacher(RandomForestClassifier(), X)
    with refused("teacher", "labels without probabilities"):
        as_row_teacher(KMeans(2, n_init=1, random_state=0).fit(X), X)
    with refused("teacher", "a classifier of one class"):
        as_row_teacher(DummyClassifier().fit(X, np.ones(60)), X)


def test_what_the_user_says_must_agree_with_the_estimator() -> None:
    for task in ("regression",):
        with refused("task", f"'{task}' for RandomForestClassifier"):
            as_row_teacher(forest(), X, task=task)
    with refused("teacher_output", "'logits' for RandomForestClassifier"):
        as_row_teacher(forest(), X, teacher_output="logits")
    with refused("task", "'classification' for LinearRegression"):
        as_row_teacher(LinearRegression().fit(X, X[:, 0]), X, task="classification")
    assert (
        as_row_teacher(forest(), task="classification", teacher_output="probabilities").outputs == 3
    )


class Shares(ClassifierMixin, BaseEstimator):
    r"""An estimator that tells nothing of itself."""

    def fit(self, X, y=None) -> Shares:
        return self

    def predict_proba(self, X) -> np.ndarray:
        return 1 / (1 + np.exp(-X))

    def __sklearn_is_fitted__(self) -> bool:
        return True


def test_an_estimator_without_classes_is_looked_at() -> None:
    with refused("teacher", "a row of outputs that sums to"):
        as_row_teacher(Shares(), X)(X)
    teacher = as_row_teacher(Shares(), X, task="multilabel")
    np.testing.assert_array_equal(teacher(X), 1 / (1 + np.exp(-X)))


def test_classes_in_another_order_and_more_of_them() -> None:
    base = as_row_teacher(forest())
    wanted = ["cat", "dog", "ant", "bee"]
    teacher = as_row_teacher(forest(), classes=wanted)
    found = teacher(X)
    np.testing.assert_array_equal(found[:, [2, 3, 0]], base(X))
    assert (found[:, 1] == 0).all()
    np.testing.assert_array_equal(teacher.predict(X), base.predict(X))
    with refused("classes", r"whose classes are \['ant', 'bee', 'cat'\]"):
        as_row_teacher(forest(), classes=["ant", "bee"])
    numbers = as_row_teacher(forest(np.arange(60) % 3), classes=["x", "y", "z"])
    assert numbers.classes.tolist() == ["x", "y", "z"]
    with refused("classes", "which has 3 classes without names"):
        as_row_teacher(forest(np.arange(60) % 3), classes=["x", "y"])


def test_sparse_rows_stay_sparse() -> None:
    seen = []

    def keep(x):
        seen.append(sparse.issparse(x))
        return x

    model = make_pipeline(FunctionTransformer(keep, accept_sparse=True), LogisticRegression())
    model.fit(sparse.csr_array(X), KINDS)
    seen.clear()
    as_row_teacher(model)(sparse.coo_array(X))
    assert seen == [True]


def test_frames_stay_frames_and_arrays_take_the_columns_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    model = LogisticRegression().fit(frame, KINDS)
    teacher = as_row_teacher(model)
    for rows in (frame, X):  # and no warning
        np.testing.assert_allclose(teacher(rows), model.predict_proba(frame), rtol=1e-12)
    frame["kind"] = pandas.Series(KINDS, dtype="category")
    mixed = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["kind"]), ("passthrough", ["a"])),
        LinearRegression(),
    ).fit(frame, X[:, 0])
    found = as_row_teacher(mixed, frame)(frame)[:, 0]
    np.testing.assert_allclose(found, mixed.predict(frame), rtol=1e-12, atol=1e-14)


def test_content_and_size() -> None:
    one, same, other = (as_row_teacher(forest(seed=s)) for s in (0, 0, 1))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert (
        one.fingerprint() != as_row_teacher(forest(), classes=["cat", "bee", "ant"]).fingerprint()
    )
    assert one.bytes() > 1000
    opaque = make_pipeline(FunctionTransformer(lambda x: x), LogisticRegression()).fit(X, KINDS)
    assert as_row_teacher(opaque).fingerprint() is None


def test_a_refit_is_a_new_model_with_the_same_classes() -> None:
    model = forest()
    before = model.predict_proba(X)
    teacher = as_row_teacher(model)
    some = KINDS != "bee"
    again = teacher.refit(X[some], KINDS[some])
    expected = RandomForestClassifier(5, random_state=0).fit(X[some], KINDS[some])
    assert again.classes.tolist() == ["ant", "bee", "cat"]
    np.testing.assert_array_equal(again(X)[:, [0, 2]], expected.predict_proba(X))
    assert (again(X)[:, 1] == 0).all()
    np.testing.assert_array_equal(model.predict_proba(X), before)
    regressor = as_row_teacher(LinearRegression().fit(X, X[:, 0]), X).refit(X, X[:, 1])
    np.testing.assert_allclose(regressor.predict(X), X[:, 1], atol=1e-9)
    labels = as_row_teacher(forest(LABELS)).refit(X, 1 - LABELS)
    np.testing.assert_array_equal(labels(X), as_row_teacher(forest(1 - LABELS))(X))

    class Unknown:
        def predict_proba(self, x):
            return np.full((len(x), 2), 0.5)

    with refused("teacher_folds", "Unknown, which cannot be cloned"):
        as_row_teacher(Unknown(), X).refit(X, KINDS)
