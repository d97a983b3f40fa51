r"""What serves as a teacher, callables above all, and what every predictor promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier

from limbeck.compression.dispatch import as_row_teacher
from limbeck.teachers.row_teacher import RowTeacher
from tests.refusals import refused

X = np.random.default_rng(0).normal(size=(40, 3))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_probabilities_of_a_callable() -> None:
    teacher = as_row_teacher(softmax, X)
    assert isinstance(teacher, RowTeacher)
    assert (teacher.task, teacher.form, teacher.outputs) == ("classification", "probabilities", 3)
    assert (teacher.module, teacher.name) == (None, "softmax")
    assert teacher.classes.tolist() == [0, 1, 2]
    found = teacher(X)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, softmax(X))
    np.testing.assert_array_equal(teacher.predict(X), X.argmax(1))
    named = as_row_teacher(softmax, X, classes=["a", "b", "c"])
    assert named.predict(X[:5]).tolist() == [["a", "b", "c"][k] for k in X[:5].argmax(1)]


def test_values_of_a_callable() -> None:
    one = as_row_teacher(lambda x: x[:, 0] * 9, X)
    assert (one.task, one.form, one.outputs, one.classes) == ("regression", "values", 1, None)
    np.testing.assert_array_equal(one(X), X[:, :1] * 9)
    assert one.predict(X).shape == (40,)
    two = as_row_teacher(lambda x: x[:, :2], X, task="regression")
    assert two.outputs == 2
    np.testing.assert_array_equal(two.predict(X), X[:, :2])


def test_one_probability_is_that_of_class_1() -> None:
    teacher = as_row_teacher(lambda x: logistic(x[:, 0]), X, task="classification")
    p = logistic(X[:, 0])
    np.testing.assert_allclose(teacher(X), np.stack([1 - p, p], 1))
    np.testing.assert_array_equal(teacher.predict(X), (X[:, 0] > 0).astype(int))
    margins = as_row_teacher(lambda x: x[:, 0], X, teacher_output="logits")
    np.testing.assert_allclose(margins(X), teacher(X))


def test_labels_each_on_its_own() -> None:
    teacher = as_row_teacher(logistic, X, task="multilabel", classes=["red", "green", "blue"])
    assert (teacher.task, teacher.form, teacher.outputs) == ("multilabel", "probabilities", 3)
    np.testing.assert_array_equal(teacher(X), logistic(X))
    np.testing.assert_array_equal(teacher.predict(X), (X > 0).astype(int))


def test_labels_alone_need_their_classes() -> None:
    def teacher(x: np.ndarray) -> np.ndarray:
        return np.array(["no", "yes"])[(x[:, 0] > 0).astype(int)]

    with refused("teacher", "labels without probabilities"):
        as_row_teacher(teacher, X)
    sure = as_row_teacher(teacher, X, task="classification", classes=["yes", "no", "perhaps"])
    np.testing.assert_array_equal(sure.predict(X), teacher(X))
    assert sure(X).sum(0)[2] == 0
    assert set(sure(X).ravel()) == {0.0, 1.0}


def test_rows_of_every_kind_reach_a_callable() -> None:
    pandas = pytest.importorskip("pandas")
    seen = []

    def teacher(x) -> np.ndarray:
        seen.append(type(x).__name__)
        return np.zeros(x.shape[0]) + 5

    for rows in (X, torch.as_tensor(X), X.tolist(), pandas.DataFrame(X), sparse.coo_array(X)):
        np.testing.assert_array_equal(as_row_teacher(teacher, rows)(rows), np.full((40, 1), 5.0))
    assert sorted(set(seen)) == ["DataFrame", "csr_array", "ndarray"]
    columns = {"a": X[:, 0], "b": torch.as_tensor(X[:, 1])}
    both = as_row_teacher(lambda x: x["a"] + 10 * x["b"], columns)
    np.testing.assert_allclose(both(columns)[:, 0], X[:, 0] + 10 * X[:, 1])


def test_a_callable_is_asked_at_a_few_rows_before_all_of_them() -> None:
    sizes = []

    def teacher(x: np.ndarray) -> np.ndarray:
        sizes.append(len(x))
        return softmax(x)

    as_row_teacher(teacher, X)(X)
    assert sizes == [16, 40]


def test_no_rows_get_no_answers_and_do_not_reach_the_teacher() -> None:
    def teacher(x: np.ndarray) -> np.ndarray:
        assert len(x)
        return softmax(x)

    predictor = as_row_teacher(teacher, X)
    assert predictor(X[:0]).shape == (0, 3)
    assert predictor.predict(X[:0]).shape == (0,)
    with refused("X", "no rows"):
        as_row_teacher(teacher, X[:0])
    with refused("X", "None"):
        as_row_teacher(teacher)


@pytest.mark.parametrize(
    ("later", "received", "expected"),
    [
        (lambda x: softmax(x)[1:], r"outputs of shape \(39, 3\) for 40 rows", ""),
        (
            lambda x: softmax(x[:, :2]),
            r"outputs of shape \(40, 2\) for 40 rows",
            r"shape \(40, 3\)",
        ),
        (lambda x: np.where(x > 2, np.nan, softmax(x)), "NaN or infinite outputs", ""),
        (lambda x: softmax(x) * 2, "between", ""),
    ],
)
def test_answers_that_turn_wrong_are_refused(later, received, expected) -> None:
    teacher = as_row_teacher(lambda x: softmax(x) if len(x) < 20 else later(x), X)
    with refused("teacher", received, expected=expected):
        teacher(X)


def test_rounded_probabilities_pass_and_stay_inside() -> None:
    teacher = as_row_teacher(
        lambda x: np.tile([1.0002, -0.0002], (len(x), 1)), X, teacher_output="probabilities"
    )
    assert teacher(X[:2]).tolist() == [[1, 0], [1, 0]]


def test_an_error_of_the_teacher_is_the_teachers() -> None:
    def teacher(x: np.ndarray) -> np.ndarray:
        if len(x) > 20:
            raise ConnectionError("gone")
        return softmax(x)

    predictor = as_row_teacher(teacher, X)
    with pytest.raises(ConnectionError, match="gone"):
        predictor(X)


def test_a_callable_has_no_content() -> None:
    teacher = as_row_teacher(softmax, X)
    assert (teacher.fingerprint(), teacher.bytes()) == (None, None)
    with refused("teacher_folds", "softmax, which cannot be fitted"):
        teacher.refit(X, X[:, 0] > 0)


def test_anything_that_predicts_numbers_will_do() -> None:
    class Model:
        def predict(self, x: np.ndarray) -> np.ndarray:
            return x[:, 0] * 3

    teacher = as_row_teacher(Model(), X)
    assert (teacher.name, teacher.task) == ("Model", "regression")


def test_classes_must_fit() -> None:
    for classes, received in [
        (["a", "b"], r"\['a', 'b'\] for softmax, which has 3 classes without names"),
        (["a", "a", "b"], r"\['a', 'a', 'b'\]"),
        ("abc", "'abc'"),
        ([], r"^\[\]$"),
    ]:
        with refused("classes", received):
            as_row_teacher(softmax, X, classes=classes)
    with refused("classes", expected="None for regression"):
        as_row_teacher(lambda x: x[:, 0] * 9, X, classes=["a"])
    mixed = as_row_teacher(softmax, X, classes=["a", 1, None])
    assert mixed.classes.tolist() == ["a", 1, None]


def test_a_predictor_passes_through() -> None:
    teacher = as_row_teacher(softmax, X)
    assert as_row_teacher(teacher) is teacher
    assert as_row_teacher(teacher, classes=["a", "b", "c"]).classes.tolist() == ["a", "b", "c"]
    assert teacher.classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("teacher", [3, X, None, {"a": softmax}])
def test_what_cannot_teach_is_refused(teacher) -> None:
    name = type(teacher).__name__
    with refused("teacher", f"an object of type {name}"):
        as_row_teacher(teacher, X)


def test_slips_are_named() -> None:
    with refused("teacher", "the class RandomForestClassifier"):
        as_row_teacher(RandomForestClassifier, X)
    with refused("weights", "one for a single teacher"):
        as_row_teacher(softmax, X, weights=[1.0])
    with refused("stack", "one for a single teacher"):
        as_row_teacher(softmax, X, stack=softmax)
    with refused("X", "a"):
        as_row_teacher(softmax, 3.0)
    teacher = as_row_teacher(softmax, X)
    assert repr(teacher) == "the teacher (softmax)"
    assert (teacher.task, teacher.outputs) == ("classification", 3)


def test_a_teacher_that_changes_its_number_of_outputs_is_refused():
    def first_two_then_one(x):
        p = 1 / (1 + np.exp(-x[:, 0]))
        return np.stack([1 - p, p], 1) if len(x) <= 16 else 1 - p

    rows = np.random.default_rng(0).normal(size=(60, 2))
    teacher = as_row_teacher(first_two_then_one, rows)
    with refused("teacher", r"\(60,\) for 60 rows", expected=r"\(60, 2\), as at the first rows"):
        teacher(rows)
