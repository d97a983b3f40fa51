r"""Rows of a data set."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils import data

from limbeck.inputs import Dataset
from tests.refusals import refused

CPU = torch.device("cpu")


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**32))
def test_rows_labels_weights_and_numbers_stay_together(rows, size, count, seed):
    x = {"a": torch.arange(rows) * 2.0, "b": torch.arange(rows)[:, None].repeat(1, 3)}
    source = Dataset(x, y=np.arange(rows) + 7, weight=np.arange(rows) / 4, seed=seed)
    seen = []
    for _ in range(count):
        batch = source(min(size, rows))
        seen.append(batch.index)
        assert torch.equal(batch.x["a"], batch.index * 2.0)
        assert torch.equal(batch.x["b"][:, 2], batch.index)
        assert torch.equal(batch.y, batch.index + 7)
        assert torch.equal(batch.weight, batch.index / 4)
    for epoch in torch.cat(seen).split(rows):
        assert len(epoch.unique()) == len(epoch)


def test_draws_with_replacement_are_uniform_and_independent():
    source = Dataset(torch.arange(10.0), replace=True, seed=0)
    drawn = source(20_000).index
    assert stats.chisquare(drawn.bincount(minlength=10).numpy()).pvalue > 1e-3
    pairs = (drawn[::2] * 10 + drawn[1::2]).bincount(minlength=100)
    assert stats.chisquare(pairs.numpy()).pvalue > 1e-3


def test_batches_larger_than_the_data_need_replacement():
    with refused("batch_size", "4"):
        Dataset(torch.zeros(3, 1))(4)
    assert Dataset(torch.zeros(3, 1), replace=True)(4).x.shape == (4, 1)


def test_arrays_become_the_students_type_and_tensors_must_be_it():
    source = Dataset({"a": np.ones((3, 2)), "b": [1, 2, 3]}, y=[0.5, 1.0, 2.0], weight=[1, 0, 2])
    assert source(3).x["a"].dtype == torch.float64
    for dtype in (torch.float16, torch.float64, torch.float32):
        source.to(CPU, dtype, 0)
        batch = source(3)
        assert batch.x["a"].dtype == batch.y.dtype == batch.weight.dtype == dtype
        assert batch.x["b"].dtype == torch.int64
    for name, source in {
        "X": Dataset(torch.zeros(3, 2, dtype=torch.float64)),
        "X['a']": Dataset({"a": torch.zeros(3, dtype=torch.float64)}),
        "y": Dataset(np.zeros(3), y=torch.zeros(3, dtype=torch.float64)),
    }.items():
        with refused(name, r"a tensor of torch\.float64", expected="float32"):
            source.to(CPU, torch.float32, 0)


def test_precision_is_not_lost_by_a_detour():
    source = Dataset(np.array([1 / 3]))
    source.to(CPU, torch.float16, 0)
    source.to(CPU, torch.float64, 0)
    assert source(1).x.item() == 1 / 3


def test_length_and_contents_can_be_seen():
    source = Dataset([[1.0], [2.0]], y=[1, 0])
    assert len(source) == 2
    assert source.x.tolist() == [[1.0], [2.0]]
    assert source.y.tolist() == [1, 0]


def test_torch_datasets_are_read():
    x, y = torch.randn(6, 2), torch.arange(6)
    batch = Dataset(data.TensorDataset(x, y))(6)
    assert torch.equal(batch.x, x[batch.index])
    assert torch.equal(batch.y, batch.index)
    assert Dataset(data.TensorDataset(x), y=y)(6).y is not None
    with refused("y", "labels beside those of X"):
        Dataset(data.TensorDataset(x, y), y=y)


@pytest.mark.parametrize(
    ("arguments", "argument", "received", "expected"),
    [
        ({"X": []}, "X", "^no data", ""),
        ({"X": [["a"], ["b"]]}, "X", "^strings$", ""),
        ({"X": [1.0, float("nan"), float("inf")]}, "X", "2 NaN or infinite.* row 1", ""),
        ({"X": [1.0, 2.0], "y": [1]}, "y", "^1 rows$", "as many rows as X: 2"),
        (
            {"X": [1.0, 2.0], "y": ["cat", "dog"]},
            "y",
            "^strings$",
            "",
        ),
        ({"X": [1.0, 2.0], "y": [0.0, np.nan]}, "y", "^1 NaN", ""),
        ({"X": [1.0, 2.0], "weight": [1]}, "weight", "^1 rows$", ""),
        (
            {"X": [1.0, 2.0], "weight": [1, -1]},
            "weight",
            "a negative number in row 1",
            "",
        ),
        ({"X": [1.0, 2.0], "weight": [1, np.inf]}, "weight", "1 NaN or infinite", ""),
        (
            {"X": [1.0, 2.0], "weight": [[1], [1]]},
            "weight",
            r"shape \(2, 1\)",
            r"\(2,\)",
        ),
        ({"X": {"a": [1.0], "b": [1.0, 2.0]}}, "X['b']", "^2 rows$", ""),
    ],
)
def test_bad_data_are_refused_where_they_are_given(arguments, argument, received, expected):
    with refused(argument, received, expected=expected):
        Dataset(**arguments)
