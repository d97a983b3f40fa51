r"""The user's rows as tensors, and back into what the teacher eats."""

import json
import sys

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.utils.data import TensorDataset

import limbeck as lb
from limbeck.compression.rows import ArrayFormat, TableFormat, format_from_spec, read_rows
from tests.refusals import raises_about, refused

X = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    "given", [X, X.astype(np.float32), X.tolist(), torch.tensor(X), X.astype(int)]
)
def test_arrays(given):
    rows = read_rows(given)
    assert isinstance(rows.format, ArrayFormat)
    single = getattr(given, "dtype", None) == np.float32
    assert rows.x.dtype == (torch.float32 if single else torch.float64)
    back = rows.format.decode(rows.x)
    np.testing.assert_array_equal(back, X)
    assert back.dtype.kind == np.asarray(given).dtype.kind


def test_the_teacher_gets_the_floating_type_that_came():
    assert read_rows(X).format.decode(torch.zeros(2, 3)).dtype == np.float64
    assert read_rows(X.astype(np.float32)).format.decode(torch.zeros(2, 3)).dtype == np.float32


def test_sparse_rows_are_sparse_again():
    rows = read_rows(sparse.csr_matrix(X))
    back = rows.format.decode(rows.x)
    assert sparse.issparse(back)
    np.testing.assert_array_equal(back.toarray(), X)


def test_rows_with_gaps_name_the_extra_that_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_about(lb.LimbeckError, "missing values", "limbeck[tables]"):
        read_rows([[1.0, np.nan], [2.0, 3.0]])


def test_a_huge_sparse_matrix_is_refused():
    with refused("X", expected="once dense"):
        read_rows(sparse.csr_matrix((10**5, 10**5)))


def test_a_torch_dataset_with_its_labels():
    rows = read_rows(TensorDataset(torch.tensor(X, dtype=torch.float32), torch.arange(4)))
    assert rows.x.shape == (4, 3)
    assert rows.labels.tolist() == [0, 1, 2, 3]


def test_numbers_with_gaps_are_a_table():
    pytest.importorskip("pandas")
    gaps = X.copy()
    gaps[1, 2] = np.nan
    rows = read_rows(gaps)
    assert isinstance(rows.format, TableFormat)
    np.testing.assert_array_equal(rows.format.decode(rows.x), gaps)
    np.testing.assert_array_equal(rows.format.decode(rows.format.encode(gaps[1:])), gaps[1:])


def test_kinds_are_read_back():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": list("uvuv")})
    for given in (X, frame):
        kind = read_rows(given).format
        again = format_from_spec(json.loads(json.dumps(kind.spec())))
        one, two = kind.encode(given), again.encode(given)
        if isinstance(one, dict):
            assert all(torch.equal(one[name], two[name]) for name in one)
        else:
            assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("given", "received"),
    [
        (X[0], r"shape \(3,\)"),
        (np.array([[1.0, np.inf]]), "infinite"),
        (X.astype(str), "^strings$"),
        (np.empty((0, 3)), "^no data"),
        (np.array([[1e300, 1.0]]), "float32"),
    ],
)
def test_what_are_no_rows(given, received):
    with refused("X", received):
        read_rows(given)


def test_rows_of_another_shape():
    with refused("X", r"\(2,\)"):
        read_rows(X).format.encode(X[:, :2])
    pytest.importorskip("pandas")
    with refused("X", expected="beside a table"):
        read_rows(X, table=object())
