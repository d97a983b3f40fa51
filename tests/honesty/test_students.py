r"""Students that seemed near to their teachers: rows that were equal, outputs that were averaged.

A predictor that changed beside a cache gave the answers of the one before.
"""

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from torch import nn

import limbeck as lb
from limbeck.compression.compress import _split
from limbeck.compression.dispatch import as_row_teacher
from limbeck.compression.rows import read_rows
from limbeck.normalization.bridge import _solve
from limbeck.teachers.fingerprints import of_module

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4))
FITTED = X, X[:, 0]


class Wrapper(RegressorMixin, BaseEstimator):
    r"""Predicts by code of its own, which a pickle does not show."""

    def fit(self, rows, y):
        self.fitted_ = True
        return self

    def predict(self, rows):
        return np.asarray(rows)[:, 0]


class Derived(LinearRegression):
    def _decision_function(self, rows):
        return 2 * super()._decision_function(rows)


def twice(y):
    return 2 * y


def thrice(y):
    return 3 * y


TEACHERS = (
    Wrapper().fit(*FITTED),
    [Wrapper().fit(*FITTED), Wrapper().fit(*FITTED)],
    Derived().fit(*FITTED),
    TransformedTargetRegressor(
        LinearRegression(), func=twice, inverse_func=twice, check_inverse=False
    ).fit(*FITTED),
)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_model_with_code_of_its_own_has_no_fingerprint(teacher):
    assert as_row_teacher(teacher, X, task="regression").fingerprint() is None
    known = as_row_teacher(LinearRegression().fit(*FITTED), X, task="regression")
    assert known.fingerprint() is not None


def test_code_of_a_module_is_part_of_its_fingerprint(monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)
            nn.init.ones_(self.layer.weight)

        def forward(self, x):
            return self.layer(x)

    def scaled(self, x):
        return -2 * self.layer(x)

    before = of_module(Net())
    assert before == of_module(Net()) is not None

    def by_function(self, x):
        return twice(self.layer(x))

    Net.forward = scaled
    assert of_module(Net()) != before
    Net.forward = by_function
    with_function = of_module(Net())
    assert with_function == of_module(Net())
    monkeypatch.setitem(globals(), "twice", thrice)
    assert of_module(Net()) != with_function


def test_equal_rows_are_all_held_out_or_all_learned_from():
    few = np.repeat(RNG.normal(size=(25, 3)), 8, axis=0)
    learn, held_out = _split(read_rows(few), 0.3, 0, None)
    assert len(held_out) >= 60
    assert len(learn) + len(held_out) == 200
    assert not set(learn // 8) & set(held_out // 8)


def test_rows_that_are_equal_are_not_held_out_from_themselves():
    few = np.repeat(RNG.normal(size=(40, 5)), 8, axis=0)

    def teacher(rows):  # which nothing but its own rows can tell
        return np.sin(40 * np.asarray(rows)[:, :1])

    result = lb.compress(teacher, few, task="regression", steps=400, seed=0, progress=False)
    assert any(note.startswith("Doubtful") for note in result.notes), result.notes


def test_rows_that_are_equal_by_chance_are_held_out_as_new_ones_come():
    def teacher(x):
        return x.sum(1)

    few = RNG.integers(0, 4, size=(2000, 3))  # 64 different rows
    options = {"inputs": "auto", "steps": 5, "task": "regression", "progress": False}
    problem = lb.compress(teacher, few, (2,), **options).problem
    assert len(problem.held_out) == 200
    held_out, learned = (set(map(tuple, few[k])) for k in (problem.held_out, problem.index))
    assert held_out <= learned
    bits = np.repeat(RNG.integers(0, 2, size=(50, 60)), 20, axis=0)  # so many are equal as copies
    problem = lb.compress(teacher, bits, (2,), **options).problem
    held_out, learned = (set(map(tuple, bits[k])) for k in (problem.held_out, problem.index))
    assert not held_out & learned


def test_an_output_that_is_lost_among_others_is_told():
    weights = RNG.normal(size=(4, 30))

    def teacher(rows):
        rows = np.asarray(rows, dtype=float)
        return np.hstack([rows @ weights, np.sign(np.sin(9 * rows[:, :1] * rows[:, 1:2]))])

    result = lb.compress(teacher, X, (20,), task="regression", steps=600, seed=0, progress=False)
    assert any("to output 30 of its teacher" in note for note in result.notes), result.notes


def test_ratios_without_any_overlap_have_no_root():
    target = torch.full((10,), 5.0, dtype=torch.float64)
    nowhere = torch.full((10,), -torch.inf, dtype=torch.float64)
    assert _solve(target, nowhere, 0.5)[0] == torch.inf
    nan = torch.tensor([torch.nan, 1.0])
    assert _solve(nan, nan, 0.5)[0] == torch.inf
