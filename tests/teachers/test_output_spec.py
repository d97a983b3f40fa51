r"""Raw outputs: what they are taken for, what is asked back, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limbeck.teachers.base import as_outputs
from limbeck.teachers.row_teacher import (
    OutputKind,
    OutputSpec,
    check_outputs,
    to_targets,
)
from tests.refusals import refused

ONE = np.array([0.2, 0.9])
WIDE = np.array([-3.0, 7.0])
PAIRS = np.array([[0.2, 0.8], [0.5, 0.5]])
SHARES = np.array([[0.2, 0.9], [0.5, 0.6]])
SCORES = np.array([[-1.0, 2.0], [0.5, 0.0]])


@pytest.mark.parametrize(
    ("raw", "spec", "network", "reading"),
    [
        (PAIRS, {}, False, ("classification", "probabilities")),
        (np.log(PAIRS), {}, False, ("classification", "log_probabilities")),
        (PAIRS, {"task": "multilabel"}, False, ("multilabel", "probabilities")),
        (PAIRS, {"task": "regression"}, True, ("regression", "values")),
        (WIDE, {}, False, ("regression", "values")),
        (WIDE[:, None], {}, False, ("regression", "values")),
        (ONE, {"task": "classification"}, False, ("classification", "probabilities")),
        (SHARES, {"task": "multilabel"}, True, ("multilabel", "probabilities")),
        (SCORES, {"task": "multilabel"}, True, ("multilabel", "logits")),
        (SCORES, {"task": "classification"}, True, ("classification", "logits")),
        (SCORES, {"output": "logits"}, False, ("classification", "logits")),
        (SCORES, {"output": "values"}, True, ("regression", "values")),
        (WIDE, {"task": "classification"}, True, ("classification", "logits")),
        (np.array([1, 2]), {"task": "regression"}, False, ("regression", "values")),
        (np.eye(2, dtype=int), {}, False, ("classification", "probabilities")),
    ],
)
def test_what_outputs_are_taken_for(raw, spec, network, reading) -> None:
    found = OutputSpec(**spec).infer(raw, network=network)
    assert found == OutputKind(*reading)


@pytest.mark.parametrize(
    ("raw", "task", "network", "argument", "received", "expected"),
    [
        (
            ONE,
            "auto",
            False,
            "task",
            "'auto', which cannot tell what",
            'task="regression", or task="classification"',
        ),
        (
            ONE,
            "auto",
            True,
            "task",
            "'auto', which cannot tell what",
            'task="regression", or task="classification"',
        ),
        (
            ONE,
            "classification",
            True,
            "teacher_output",
            "outputs whose form is not clear",
            'teacher_output="logits", "probabilities"',
        ),
        (
            WIDE,
            "auto",
            True,
            "task",
            "'auto', which cannot tell what",
            '"regression", or teacher_output="logits"',
        ),
        (WIDE, "classification", False, "teacher_output", "outputs whose form is not clear", ""),
        (
            SHARES,
            "auto",
            False,
            "task",
            "'auto', which cannot tell what",
            '"multilabel", or teacher_output="logits"',
        ),
        (SHARES, "classification", True, "teacher_output", "outputs whose form is not clear", ""),
        (SCORES, "auto", True, "task", "between -1 and 2", ""),
        (SCORES, "multilabel", False, "teacher_output", "outputs whose form is not clear", ""),
    ],
)
def test_what_cannot_be_told_is_asked_by_the_argument_that_settles_it(
    raw, task, network, argument, received, expected
) -> None:
    with refused(argument, received, expected=expected):
        OutputSpec(task).infer(raw, network=network)


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.array(["a", "b"]), np.array([True])])
def test_labels_are_refused_unless_their_classes_are_known(labels) -> None:
    for task in ("auto", "classification", "multilabel"):
        with refused("teacher", "labels"):
            OutputSpec(task).infer(labels)
    assert OutputSpec("classification", classes=[0, 1]).infer(labels).form == "labels"


def test_labels_are_certainties() -> None:
    reading = OutputKind("classification", "labels")
    found = to_targets(np.array(["b", "a"]), reading, ["a", "b", "c"])
    assert found.tolist() == [[0, 1, 0], [1, 0, 0]]
    with refused("teacher", "'d'", expected="the teacher's classes: 'a', 'b'"):
        to_targets(np.array(["d"]), reading, ["a", "b"])


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=5), st.floats(-50, 50))
def test_readings_agree_with_torch(row, score) -> None:
    y = np.array([row])
    log = torch.log_softmax(torch.tensor(y), 1).numpy()
    p = torch.softmax(torch.tensor(y), 1).numpy()
    np.testing.assert_allclose(to_targets(y, OutputKind("classification", "logits")), p)
    np.testing.assert_allclose(
        to_targets(log, OutputKind("classification", "log_probabilities")), p
    )
    one = 1 / (1 + np.exp(-score))
    found = to_targets(np.array([score]), OutputKind("classification", "logits"))
    np.testing.assert_allclose(found, [[1 - one, one]], atol=1e-12)
    labels = to_targets(y, OutputKind("multilabel", "logits"))
    np.testing.assert_allclose(labels, 1 / (1 + np.exp(-y)))
    np.testing.assert_array_equal(to_targets(y, OutputKind("regression", "values")), y)


def test_answers_come_as_arrays_of_the_right_length() -> None:
    assert as_outputs(torch.ones(2, 3, requires_grad=True), 2).shape == (2, 3)
    assert as_outputs(torch.ones(2, dtype=torch.bfloat16), 2).tolist() == [1.0, 1.0]
    assert as_outputs([[1], [2]], 2).shape == (2, 1)
    for wrong, received in [
        (np.ones((3, 2)), r"shape \(3, 2\) for 2 rows"),
        (np.ones((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.ones((2, 0)), r"shape \(2, 0\)"),
        (1.0, r"shape \(\)"),
        (None, "type NoneType"),
        ([[1], [2, 3]], "different lengths"),
    ]:
        with refused("teacher", received):
            as_outputs(wrong, 2)
    with refused("teacher", "outputs of type"):
        to_targets(np.array([["a", "b"]]), OutputKind("regression", "values"))


def test_answers_must_be_finite_and_probabilities_must_be_such() -> None:
    with refused("teacher", "2 NaN or infinite outputs, the first in row 1"):
        check_outputs(np.array([[0.0, 1.0], [np.nan, np.inf]]), "regression")
    with refused("teacher", r"sums to 0\.9"):
        check_outputs(np.array([[0.5, 0.4]]), "classification")
    with refused("teacher", r"between -0\.5 and 1\.5"):
        check_outputs(np.array([[1.5, -0.5]]), "classification")
    with refused("teacher", "between 0 and 2"):
        check_outputs(np.array([[0.0, 2.0]]), "multilabel")
    check_outputs(np.array([[0.9, 0.9]]), "multilabel")
    with refused("teacher", "NaN"):
        OutputSpec().infer(np.array([np.nan, 0.5]))


def test_what_is_said_must_exist_and_not_contradict_itself() -> None:
    with refused("task", expected="did you mean 'regression'"):
        OutputSpec("regresion").checked()
    with refused("teacher_output", "'log_density'"):
        OutputSpec(output="log_density").checked()
    for task, output in [("regression", "logits"), ("classification", "values")]:
        with refused("teacher_output", f"'{output}' with task='{task}'"):
            OutputSpec(task, output).checked()
