r"""Users' arrays as tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from limbeck.arrays import as_part, as_parts, cast
from limbeck.errors import ArgumentError
from tests.refusals import refused

CPU = torch.device("cpu")


class Table:
    r"""As much of a pandas data frame as is looked at."""

    def __init__(self, columns, dtypes):
        self._columns, self.columns = columns, list(columns)
        self.dtypes = [np.dtype(dtype) for dtype in dtypes]

    def to_numpy(self, dtype=None, na_value=None):
        one = len({d.kind for d in self.dtypes}) == 1 and self.dtypes[0].kind != "O"
        dtype = dtype or (self.dtypes[0] if one else object)
        return np.stack([np.asarray(c).astype(dtype) for c in self._columns.values()], axis=1)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(6, dtype=">f8").reshape(2, 3), torch.float64),
        (np.arange(6.0).reshape(2, 3)[:, ::-1], torch.float64),
        (np.arange(6.0, dtype=np.longdouble), torch.float64),
        (np.asfortranarray(np.ones((4, 2), np.float32)), torch.float32),
        (np.array([1, 2], np.uint8), torch.uint8),
        (np.array([1, 2], np.uint16), torch.int32),
        (np.array([1, 2], np.uint32), torch.int64),
        (np.array([1, 2], np.uint64), torch.int64),
        (np.array([True, False]), torch.bool),
        ([[1.0, 2.0], [3.0, 4.0]], torch.float64),
        ([torch.zeros(2), torch.ones(2)], torch.float32),
        (range(4), torch.int64),
        (Table({"a": [1.0, 2.0], "b": [3.0, 4.0]}, ["f8", "f8"]), torch.float64),
        (Table({"a": [1.0, 2.0], "b": [True, False]}, ["f8", "?"]), torch.float64),
    ],
)
def test_arrays_of_all_kinds_become_tensors(array, dtype):
    part = as_part(array, "X")
    assert part.values.dtype == dtype
    expected = array.to_numpy(float) if isinstance(array, Table) else np.asarray(array, float)
    np.testing.assert_array_equal(part.values.double().numpy(), expected)


def test_read_only_memory_is_copied():
    array = np.ones(3)
    array.flags.writeable = False
    as_part(array, "X").values[0] = 5  # torch would warn, and write into the user's memory
    assert array[0] == 1


@pytest.mark.parametrize(
    ("value", "received", "expected"),
    [
        (np.array([["a", "b"]]), "^strings$", ""),
        (np.array([1, None]), "values of dtype object", ""),
        (np.array(["2020-01-01"], dtype="M8[D]"), "values of dtype datetime64", ""),
        (np.array([1 + 2j]), "complex numbers", ""),
        (torch.zeros(2, dtype=torch.complex64), "complex numbers", ""),
        (torch.zeros(0, 3), r"no data \(shape \(0, 3\)\)", ""),
        (np.zeros((3, 0)), r"no data \(shape \(3, 0\)\)", ""),
        ([], "^no data", ""),
        (3.0, "a single number", ""),
        (torch.tensor(3.0), "a single number", ""),
        ("data.csv", "^a str$", ""),
        (None, "a NoneType", ""),
        ([[1.0], [1.0, 2.0]], "a list that is no array", ""),
        ([torch.zeros(2), torch.zeros(3)], "tensors of different shapes", ""),
        (torch.eye(3).to_sparse(), "a tensor of layout", ""),
        (sparse.eye(3), "^a sparse", r"a dense array: call \.toarray\(\)"),
        (
            np.ma.masked_array([1.0, 2.0], [True, False]),
            "an array with masked values",
            "",
        ),
        (np.array([2**64 - 1], np.uint64), r"integers above 2\*\*63 - 1", ""),
        (Table({"a": [1.0], "town": ["x"]}, ["f8", "O"]), "not numbers: 'town'", ""),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(value, received, expected):
    with refused("X", received, expected=expected):
        as_part(value, "X")


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.data())
def test_values_that_are_not_finite_are_counted_and_located(rows, columns, data):
    cells = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
    bad = data.draw(st.sets(cells, min_size=1))
    array = np.zeros((rows, columns))
    for cell in bad:
        array[cell] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    received = f", got {len(bad)} NaN or infinite values, the first in row {min(bad)[0]}"
    for value in (array, torch.from_numpy(array)):
        with pytest.raises(ArgumentError) as caught:
            as_part(value, "X")
        assert str(caught.value).startswith("X: expected ")
        assert str(caught.value).endswith(received)


def test_parts_of_a_dict_are_named_in_errors():
    with refused("X['age']", "1 NaN or infinite"):
        as_parts({"age": [1.0, np.nan]}, "X")
    with refused("X['b']", "3 rows"):
        as_parts({"a": [1, 2], "b": [1, 2, 3]}, "X")
    for keys in ({}, {1: [1.0]}, {"": [1.0]}):
        with refused("X", "an? .*dict"):
            as_parts(keys, "X")


def test_only_arrays_are_converted():
    array, tensor = as_part(np.ones(2), "X"), as_part(torch.ones(2, dtype=torch.float64), "X")
    assert cast(array, CPU, torch.float32, "X").dtype == torch.float32
    assert cast(tensor, CPU, torch.float64, "X").dtype == torch.float64
    assert cast(as_part(torch.arange(3), "X"), CPU, torch.float32, "X").dtype == torch.int64
    with refused("X", r"a tensor of torch\.float64"):
        cast(tensor, CPU, torch.float32, "X")


def test_values_beyond_the_floating_type_are_refused():
    with refused("X", r"values of up to 1e\+06"):
        cast(as_part(np.array([1.0, -1e6]), "X"), CPU, torch.float16, "X")
