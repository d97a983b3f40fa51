r"""What comes in as predictions and labels: taken, or refused by name."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from limbeck.compression.fidelity.comparison import align
from tests.refusals import refused

P = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
ONE_ZERO_ONE = [[0, 1], [1, 0], [0, 1]]


def both(task, p, y=None, classes=None):
    return align(task, {"teacher": p, "student": p, "baseline": None}, y, classes)


def test_labels_become_columns_in_the_order_of_the_classes():
    found = both("classification", P, ["no", "yes", "no"], np.array(["yes", "no"]))
    np.testing.assert_array_equal(found.y, ONE_ZERO_ONE)
    assert found.classes == ["yes", "no"]
    assert set(found.by_model) == {"teacher", "student"}


@pytest.mark.parametrize(
    "y", [[1, 0, 1], [True, False, True], np.array([[1.0], [0.0], [1.0]]), torch.tensor([1, 0, 1])]
)
def test_labels_of_any_type_that_equal_a_class_are_taken(y):
    np.testing.assert_array_equal(both("classification", P, y).y, ONE_ZERO_ONE)


def test_labels_of_data_frames_are_taken():
    pandas = pytest.importorskip("pandas")
    y = pandas.Series(["b", "a", "b"], dtype="category", index=[7, 8, 9])
    np.testing.assert_array_equal(both("classification", P, y, ["a", "b"]).y, ONE_ZERO_ONE)


def test_rounding_is_mended():
    p = np.array([[1.0001, -0.0001], [0.5002, 0.5002]], dtype=np.float32)
    found = both("classification", torch.from_numpy(p)).by_model["teacher"]
    np.testing.assert_allclose(found.sum(1), 1)
    assert found.min() >= 0
    assert found.max() <= 1
    independent = both("multilabel", np.array([[0.9, 0.9], [1.0001, 0.0]])).by_model["teacher"]
    np.testing.assert_array_equal(independent, [[0.9, 0.9], [1, 0]])


def test_values_and_labels_are_matrices():
    assert both("regression", np.arange(3.0), [1, 2, 3]).y.shape == (3, 1)
    found = both("multilabel", P, csr_array([[0, 1], [1, 1], [0, 0]]), ["x", "y"])
    np.testing.assert_array_equal(found.y, [[0, 1], [1, 1], [0, 0]])


def test_parts_stay_together():
    found = both("multilabel", P, [[0, 1], [1, 1], [0, 0]], ["x", "y"])
    rows = found.select(np.array([2, 0]))
    np.testing.assert_array_equal(rows.by_model["student"], P[[2, 0]])
    np.testing.assert_array_equal(rows.y, [[0, 0], [0, 1]])
    column = found.select(slice(None), slice(1, 2))
    np.testing.assert_array_equal(column.by_model["teacher"], P[:, 1:])
    np.testing.assert_array_equal(column.y, [[1], [1], [0]])
    assert column.classes == ["y"]


@pytest.mark.parametrize(
    ("task", "p", "y", "classes", "argument", "received", "expected"),
    [
        ("classification", P, [0, 1, 2], None, "y", "^2$", "the teacher's classes: 0, 1"),
        ("classification", P, ["0", "1", "0"], None, "y", "'0', '1'", ""),
        ("classification", P, [0, 1], None, "y", r"shape \(2,\)", ""),
        ("classification", P, [0, None, 1], None, "y", "^None$", ""),
        ("classification", P, None, ["a"], "classes", r"^\['a'\]$", "2 different names"),
        ("classification", P, None, ["a", "a"], "classes", r"\['a', 'a'\]", ""),
        (
            "classification",
            P * 2,
            None,
            None,
            "teacher",
            "outputs between 0.2 and 1.8",
            "",
        ),
        (
            "classification",
            P * 0.5,
            None,
            None,
            "teacher",
            "a row of outputs that sums to 0.5",
            "",
        ),
        (
            "classification",
            P * np.nan,
            None,
            None,
            "teacher",
            "6 NaN or infinite outputs, the first in row 0",
            "",
        ),
        ("classification", P[:0], None, None, "X", "no rows", ""),
        ("multilabel", P * 2, None, None, "teacher", "outputs between 0.2 and 1.8", ""),
        (
            "multilabel",
            P,
            [[0, 1], [1, 2], [0, 0]],
            None,
            "y",
            "numbers between 0 and 2",
            "",
        ),
        ("multilabel", P, [0, 1, 1], None, "y", r"shape \(3,\)", ""),
        ("regression", P, [1, 2, 3], None, "y", r"shape \(3,\)", r"numbers, \(3, 2\)"),
        (
            "regression",
            P[:, 0],
            [1, np.inf, 3],
            None,
            "y",
            "1 NaN or infinite values, the first in row 1",
            "",
        ),
        ("regression", P[:, 0], ["1", "2", "3"], None, "y", "shape .* of <U1", ""),
    ],
)
def test_what_does_not_line_up_is_refused(task, p, y, classes, argument, received, expected):
    with refused(argument, received, expected=expected):
        both(task, p, y, classes)
