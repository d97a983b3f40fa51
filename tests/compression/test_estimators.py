r"""Estimators: scikit-learn's own checks, and what they promise beyond them."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_iris, make_friedman1, make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import limbeck as lb
from limbeck.compression import dispatch
from limbeck.compression.estimators import DistilledClassifier, DistilledRegressor
from tests.refusals import raises_about, refused

# as for scikit-learn's own forests: what is drawn depends on the number of rows
RANDOM = {
    f"check_sample_weight_equivalence_on_{kind}_data": "equal up to chance"
    for kind in ("dense", "sparse")
}


@pytest.mark.slow
@parametrize_with_checks(
    [DistilledClassifier(), DistilledRegressor()], expected_failed_checks=lambda estimator: RANDOM
)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks make some of their own
        check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], names[y[order]]


@pytest.fixture(scope="module")
def forest(iris):
    return RandomForestClassifier(20, random_state=0).fit(iris[0][:100], iris[1][:100])


@pytest.fixture(scope="module")
def small(iris, forest):
    return DistilledClassifier(forest, (8,)).fit(iris[0][:100])


def test_it_learns_from_a_fitted_teacher_without_labels(iris, forest, small):
    X, y = iris[0][100:], iris[1][100:]
    assert small.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert small.score(X, y) > 0.85
    assert small.score(X) == (small.predict(X) == forest.predict(X)).mean() > 0.9
    np.testing.assert_allclose(small.predict_proba(X).sum(1), 1)
    assert small.teacher_ is forest
    assert is_classifier(small)


def test_labels_beside_a_fitted_teacher_count_only_if_asked(iris, forest, small):
    X, y = iris[0][:100], iris[1][:100]
    swapped = np.where(y == "setosa", "virginica", np.where(y == "virginica", "setosa", y))
    same = DistilledClassifier(forest, (8,)).fit(X, swapped)
    np.testing.assert_array_equal(same.predict_proba(X), small.predict_proba(X))
    led = DistilledClassifier(forest, (8,), inputs="data", label_weight=1.0).fit(X, swapped)
    assert led.score(X, swapped) > 0.9 > led.score(X)


def test_without_labels_only_a_fitted_teacher_will_do(iris):
    for teacher in (None, LogisticRegression(), [LogisticRegression(), RandomForestClassifier()]):
        with refused("y", "None"):
            DistilledClassifier(teacher).fit(iris[0])


def test_a_teacher_that_is_not_fitted_is_fitted_as_a_clone(iris):
    teacher = KNeighborsClassifier(3)
    made = DistilledClassifier(teacher, (8,)).fit(*iris)
    with pytest.raises(NotFittedError):
        teacher.predict(iris[0])
    np.testing.assert_array_equal(
        made.teacher_.predict(iris[0]), KNeighborsClassifier(3).fit(*iris).predict(iris[0])
    )
    assert made.score(iris[0]) > 0.9


def test_some_of_a_list_of_teachers_may_be_fitted(iris, forest):
    made = DistilledClassifier([forest, LogisticRegression(max_iter=500)], (8,)).fit(*iris)
    assert made.teacher_[0] is forest
    assert made.score(*iris) > 0.9


def test_a_fitted_teacher_stays_fitted_when_cloned(iris, forest):
    copied = clone(DistilledClassifier(forest, (8,), steps=20))
    assert copied.teacher is forest
    assert copied.get_params()["steps"] == 20
    assert not hasattr(copied.fit(iris[0]).teacher_, "steps")

    unfitted = DistilledClassifier(LogisticRegression(C=3))
    assert clone(unfitted).teacher is not unfitted.teacher
    assert clone(unfitted).teacher.C == 3
    both = clone(DistilledClassifier([forest, LogisticRegression(C=2)])).teacher
    assert both[0] is forest
    assert both[1].C == 2

    fitted = DistilledClassifier(forest, (8,), steps=20).fit(iris[0])
    assert not hasattr(clone(fitted), "result_")
    pipeline = clone(make_pipeline(StandardScaler(), DistilledClassifier(forest)))
    assert pipeline[-1].teacher is forest


def test_a_module_of_the_users_own_is_copied(iris, forest):
    module = nn.Linear(4, 3)
    before = module.weight.detach().clone()
    options = {"student_output": "logits"}
    made = clone(DistilledClassifier(forest, module, steps=20, options=options)).fit(iris[0])
    assert torch.equal(module.weight, before)
    assert not torch.equal(made.result_.student.weight, before)
    assert made.predict_proba(iris[0]).shape == (150, 3)


def test_settings_of_a_fitted_teacher_cannot_be_searched(forest):
    with refused("teacher__max_depth", "a setting of a fitted"):
        DistilledClassifier(forest).set_params(teacher__max_depth=2)
    made = DistilledClassifier(forest).set_params(
        teacher=RandomForestClassifier(), teacher__max_depth=2
    )
    assert made.teacher.max_depth == 2


def test_it_is_searched_and_validated(iris, forest):
    X, y = iris
    grid = {"steps": [1, 200]}
    by_agreement = GridSearchCV(DistilledClassifier(forest, (8,)), grid, cv=2).fit(X)
    assert by_agreement.best_params_["steps"] == 200
    assert by_agreement.best_estimator_.teacher is forest
    own = {"teacher__max_depth": [1, None]}
    teacher = RandomForestClassifier(10, random_state=0)
    by_accuracy = GridSearchCV(DistilledClassifier(teacher, (8,), steps=60), own, cv=2).fit(X, y)
    assert by_accuracy.best_estimator_.teacher_.max_depth in (1, None)
    assert cross_val_score(DistilledClassifier(student=(8,)), X, y, cv=2).mean() > 0.85


def test_it_works_behind_a_scaler(iris):
    X, y = iris
    teacher = LogisticRegression().fit(StandardScaler().fit_transform(X), y)
    pipeline = make_pipeline(StandardScaler(), DistilledClassifier(teacher, (8,))).fit(X)
    assert pipeline.score(X, y) > 0.9
    assert pipeline.score(X) > 0.9


def test_values():
    X, y = make_friedman1(300, random_state=0)
    forest = RandomForestRegressor(20, random_state=0).fit(X[:200], y[:200])
    made = DistilledRegressor(forest).fit(X[:200])
    assert is_regressor(made)
    assert made.score(X[200:]) > 0.75  # R² to the teacher
    assert made.score(X[200:], y[200:]) > 0.6
    assert made.predict(X[:3]).shape == (3,)
    assert not hasattr(made, "predict_proba")


def test_several_labels_at_once():
    X, y = make_multilabel_classification(150, random_state=0)
    made = DistilledClassifier(student=(16,)).fit(X, y)
    assert made.predict(X).shape == y.shape
    assert (made.predict(X) == y).mean() > 0.8
    with refused("y", "several columns of classes"):
        DistilledClassifier().fit(X, y + np.arange(150)[:, None] % 3)


def test_a_column_of_labels_is_taken_with_a_warning(iris, forest):
    with pytest.warns(DataConversionWarning):
        DistilledClassifier(forest, (4,), steps=5).fit(iris[0], iris[1][:, None])


def test_torch_teachers(iris):
    torch.manual_seed(0)
    X = iris[0].astype(np.float32)
    options = {"classes": ["a", "b", "c"]}
    made = DistilledClassifier(nn.Linear(4, 3), (16,), options=options, steps=300).fit(X)
    assert made.classes_.tolist() == ["a", "b", "c"]
    assert made.score(X) > 0.85
    values = DistilledRegressor(nn.Linear(4, 1), (16,), steps=300).fit(X)
    assert values.score(X) > 0.9


def test_functions_as_teachers(iris):
    def sure(x):
        return 1 / (1 + np.exp(-(x[:, 0] - 5.8)))

    made = DistilledClassifier(sure, (8,)).fit(iris[0])
    assert made.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(made.predict_proba(iris[0])[:, 1], sure(iris[0]), atol=0.1)


def test_a_teacher_for_the_other_task_is_refused(iris, forest):
    X, y = make_friedman1(50, random_state=0)
    with refused("teacher", "RandomForestRegressor, which gives values"):
        DistilledClassifier(RandomForestRegressor(5).fit(X, y)).fit(X)
    with refused("task", "'regression' for RandomForestClassifier"):
        DistilledRegressor(forest).fit(iris[0])


@pytest.mark.parametrize("name", ["cross_entropy", "object"])
def test_a_derivative_loss_with_a_forest_is_refused_with_the_way_out(iris, forest, name):
    loss = lb.losses.derivative_error()
    loss = loss if name == "object" else lb.losses.cross_entropy() + 1e-3 * loss
    with raises_about(lb.NotDifferentiableError, "noise", "surrogate"):
        DistilledClassifier(forest, loss=loss).fit(iris[0])


def test_trees_as_students(iris, forest):
    made = DistilledClassifier(forest, "tree").fit(iris[0])
    assert made.score(iris[0]) > 0.9
    assert made.predict_proba(iris[0]).dtype == np.float64


def test_a_student_that_grows_until_it_keeps_enough():
    X = np.random.default_rng(0).normal(size=(240, 3))
    options = {"engine": "eager"}
    made = DistilledRegressor(lambda x: x[:, 0] * 2, "auto", keep=0.5, options=options).fit(X)
    assert made.result_.tried[-1]["retention"] > 0.5
    assert made.result_.recipe.student == made.result_.tried[-1]["student"]
    assert made.score(X) > 0.5


@pytest.fixture
def frame(iris):
    frame = pd.DataFrame(iris[0][:, :2], columns=["length", "width"])
    frame["color"] = np.where(iris[0][:, 2] > 4, "red", "blue")
    return frame


def test_frames_with_words(iris, frame):
    made = DistilledClassifier(student=(8,)).fit(frame, iris[1])
    assert made.feature_names_in_.tolist() == ["length", "width", "color"]
    assert made.n_features_in_ == 3
    assert made.score(frame, iris[1]) > 0.7
    assert made.score(frame) > 0.8
    new = frame[:4].assign(color="green")
    assert made.predict_proba(new).shape == (4, 3)
    with refused("X", "feature names should match"):
        made.predict(frame[["width", "length", "color"]])
    with pytest.warns(UserWarning, match="valid feature names"):
        found = made.predict(frame.to_numpy())
    np.testing.assert_array_equal(found, made.predict(frame))


def test_an_array_where_there_was_a_frame_of_numbers(iris):
    X = pd.DataFrame(iris[0], columns=list("abcd"))
    made = DistilledClassifier(student=(4,), steps=20).fit(X, iris[1])
    assert made.feature_names_in_.tolist() == list("abcd")
    with pytest.warns(UserWarning, match="valid feature names"):
        found = made.predict(iris[0])
    np.testing.assert_array_equal(found, made.predict(X))


def test_rows_with_gaps(iris):
    X = iris[0].copy()
    X[::7, 1] = np.nan
    made = DistilledClassifier(student=(8,)).fit(X, iris[1])
    assert made.score(X, iris[1]) > 0.8
    with refused("X", "infinity"):
        made.predict(np.full((1, 4), np.inf))


def test_its_student_is_read_back_without_pickle(iris, small, tmp_path):
    small.result_.save(tmp_path / "classes")
    again = lb.load(tmp_path / "classes")
    expected = small.predict_proba(iris[0])
    np.testing.assert_allclose(again.predict_proba(iris[0]), expected, atol=1e-5)


@pytest.mark.usefixtures("quick_baselines")
def test_a_pickle_has_no_teacher_and_predicts_the_same(iris, forest):
    X, y = iris
    for teacher in (forest, None, RandomForestClassifier(30, random_state=0)):
        made = DistilledClassifier(teacher, (4,), steps=20).fit(X, y)
        text = pickle.dumps(made)
        assert b"sklearn.tree._tree" in pickle.dumps(made.teacher_)
        assert b"sklearn.tree._tree" not in text  # where fitted trees are
        again = pickle.loads(text)
        np.testing.assert_array_equal(again.predict_proba(X), made.predict_proba(X))
        np.testing.assert_array_equal(again.predict(X), made.predict(X))
        assert again.score(X, y) == made.score(X, y)
        with pytest.raises(AttributeError, match="teacher_: pickled estimators have no"):
            _ = again.teacher_
        with refused("report", "without its teacher"):
            again.report(X, y)
        with refused("y", expected="have no teacher"):
            again.score(X)
        assert made.report(X, y, time=False).measures["student"]  # the original has all
        if dispatch.is_fitted(teacher):
            assert "left out of the pickle" in repr(again.get_params()["teacher"])
            with refused("teacher", "RandomForestClassifier, left out", expected="set_params"):
                clone(again).fit(X, y)
            again.set_params(teacher=forest).fit(X, y)
        else:
            again.fit(X, y)
        assert again.teacher_ is not None


def test_copies_and_unfitted_estimators_keep_the_teacher(iris, forest):
    X, y = iris
    bare = pickle.loads(pickle.dumps(DistilledClassifier(forest, (4,), steps=5)))
    assert dispatch.is_fitted(bare.teacher)
    made = bare.fit(X, y)
    for copied in (copy.copy(made), copy.deepcopy(made)):
        assert copied.score(X) == made.score(X)
        assert dispatch.is_fitted(copied.teacher)


def test_seeds(iris, forest):
    def weights(random_state):
        made = DistilledClassifier(forest, (4,), steps=2, random_state=random_state).fit(iris[0])
        return made.result_.student.network.layers[0].weight

    assert torch.equal(weights(3), weights(3))
    assert torch.equal(weights(np.random.RandomState(3)), weights(np.random.RandomState(3)))
    state = np.random.RandomState(3)
    assert not torch.equal(weights(state), weights(state))
    assert not torch.equal(weights(None), weights(None))


def test_options_are_those_of_compress_and_distill(iris, forest, tmp_path):
    options = {"cache": tmp_path, "batch_size": 16, "optimizer": "sgd"}
    made = DistilledClassifier(forest, (4,), steps=5, options=options).fit(iris[0])
    assert made.result_.settings["batch_size"] == 16
    assert "SGD" in made.result_.settings["update"]
    assert any(tmp_path.iterdir())
    with refused("batchsize", expected="did you mean 'batch_size'"):
        DistilledClassifier(forest, options={"batchsize": 3}).fit(iris[0])
    with refused("options", expected="the estimator's own argument"):
        DistilledClassifier(forest, options={"steps": 3}).fit(iris[0])


def test_from_a_thousand_rows_on_inputs_are_chosen(monkeypatch):
    asked = {}

    def compress(predictor, X, **settings):
        asked.update(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr("limbeck.compression.estimators.compress", compress)
    for n, inputs, size in ((999, "munge", 10_000), (100, "munge", 2000), (1000, "auto", None)):
        X = np.random.default_rng(0).normal(size=(n, 2))
        with pytest.raises(KeyboardInterrupt):
            DistilledRegressor(lambda x: x.sum(1)).fit(X)
        assert (asked["inputs"], asked["pool"]) == (inputs, size)
