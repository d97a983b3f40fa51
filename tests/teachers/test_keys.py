r"""Keys of rows: equal rows, equal keys, whatever holds them; other rows, other keys."""

import datetime
import decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from limbeck.teachers.keys import as_given, as_rows, count, distinct, row_keys, select
from tests.refusals import refused

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 4))

CELLS = (
    st.none()
    | st.floats(width=64)
    | st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.text(max_size=3)
    | st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 0.0, -0.0, float("nan")])
    | st.datetimes()
)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12)


def keys(X):
    return [tuple(key) for key in row_keys(X).tolist()]


def column(values, dtype=object):
    return pandas.DataFrame({"x": pandas.Series(values, dtype=dtype)})


def same_cell(a, b):
    if type(a).__name__ == type(b).__name__ == "float" and a != a and b != b:
        return True
    return bool(a == b) and isinstance(a, str) == isinstance(b, str)


def frame(rows):
    result = pandas.DataFrame(index=range(len(rows)), columns=["one", "two"], dtype=object)
    for number, row in enumerate(rows):
        result.iat[number, 0], result.iat[number, 1] = row
    return result


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_rows_of_a_frame_have_equal_keys_just_where_they_are_equal(rows):
    found = keys(frame(rows))
    for a, one in zip(found, rows, strict=True):
        for b, other in zip(found, rows, strict=True):
            assert (a == b) == all(map(same_cell, one, other))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=1, max_size=8))
def test_rows_of_numbers_have_equal_keys_just_where_they_are_equal(rows):
    found = keys(np.array(rows))
    for a, one in zip(found, rows, strict=True):
        for b, other in zip(found, rows, strict=True):
            assert (a == b) == all(map(same_cell, one, other))


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(0, 10**6))
def test_a_key_depends_on_its_row_alone(rows, seed):
    order = np.random.default_rng(seed).permutation(len(rows))
    found = keys(frame(rows))
    assert keys(frame([rows[k] for k in order])) == [found[k] for k in order]
    assert keys(frame(rows[:1])) == found[:1]


@pytest.mark.parametrize("rows", [1, 2, 700, 40_000])
def test_blocks_make_no_difference(rows):
    wide = RNG.standard_normal((rows, 3))
    each = np.concatenate([row_keys(wide[k : k + 1]) for k in range(0, rows, 997)])
    assert np.array_equal(row_keys(wide)[::997], each)


def test_many_near_rows_are_all_different():
    grid = np.stack(np.meshgrid(*[np.arange(-5.0, 5)] * 4), -1).reshape(-1, 4)
    found = row_keys(grid)
    for half in (0, 1):  # either half tells 10,000 rows apart, as 64 random bits would
        assert len(np.unique(found[:, half])) == len(grid)


def test_all_bits_of_keys_are_used():
    found = row_keys(np.arange(4096.0).reshape(-1, 1))
    bits = np.unpackbits(found.view(np.uint8), axis=1).mean(0)
    assert abs(bits - 0.5).max() < 5 * 0.5 / 64  # five standard errors
    one = np.eye(64)[:, :2]  # rows that differ in one column, or not at all
    assert len(set(keys(one))) == 3


DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint16", "uint64", "longdouble", ">f8"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_of_equal_numbers_does_not_matter(dtype):
    whole = np.array([[0, 1, 2], [3, 4, 100]])
    expected = keys(whole)
    assert keys(whole.astype(dtype)) == expected
    assert keys(np.asfortranarray(whole.astype(dtype))) == expected
    assert keys(whole.astype(object)) == expected
    assert keys(whole.tolist()) == expected


def test_booleans_are_zero_and_one():
    assert keys(np.array([[True, False]])) == keys([[1.0, 0.0]])


def test_tensors_have_the_keys_of_arrays():
    assert keys(torch.tensor(X)) == keys(X)
    single = torch.tensor(X, dtype=torch.float32, requires_grad=True)
    assert keys(single) == keys(X.astype(np.float32))
    assert keys(single.bfloat16()) == keys(single.bfloat16().float())
    assert keys(single) != keys(X)  # other numbers


def test_large_integers_are_told_apart_and_keep_their_keys_in_any_dtype():
    large = [2**53, 2**53 + 1, 2**53 + 2, 2**60, 2**62 + 1]
    found = keys(np.array(large)[:, None])
    assert len(set(found)) == 5
    assert keys(np.array(large, np.uint64)[:, None]) == found
    assert keys(np.array(large, object)[:, None]) == found
    assert keys(np.array([[2.0**60]])) == found[3:4]
    assert keys(column([np.int64(2**62 + 1)]))[0] == keys(column([2**62 + 1]))[0]
    assert keys(column([np.int64(2**62 + 1)]))[0] != keys(column([2**62]))[0]
    signs = keys(np.array([[-(2**53) - 1]])) + keys(np.array([[2**64 - 2**53 - 1]], np.uint64))
    assert len(set(signs)) == 2


def test_zeros_are_equal_and_all_nan_are_equal():
    patterns = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    found = keys(np.array([[0.0], [-0.0], [patterns[0]], [patterns[1]], [np.inf]]))
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert len(set(found)) == 3


def test_missing_values_of_four_kinds_are_four_things():
    found = keys(column([None, np.nan, pandas.NA, pandas.NaT, "None", "nan"]))
    assert len(set(found)) == 6
    assert keys(column([1.0, np.nan], float)) == keys(column([1, np.nan]))
    assert keys(column([1, pandas.NA], "Int64")) == keys(column([1, pandas.NA]))
    assert keys(column(["u", None], "str")) == keys(column(["u", np.nan]))
    assert keys(column(["u", np.nan], "category")) == keys(column(["u", np.nan]))


def test_strings_are_not_numbers_nor_bytes():
    assert len(set(keys(column(["1", 1, b"1", "1.0"])))) == 4
    assert keys(column(["u", "v"], "category")) == keys(column(["u", "v"]))
    assert keys(column([3, 5], "category")) == keys(column([3, 5], int))
    assert keys(["some text", "another"]) == keys(np.array(["some text", "another"], object))


def test_equal_numbers_of_any_class_are_equal():
    decimals = [decimal.Decimal("0.5"), decimal.Decimal("0.1"), decimal.Decimal("0.10")]
    found = keys(column([*decimals, 0.5, 0.1, np.float32(0.5), 2**100, float(2**100)]))
    assert found[0] == found[3] == found[5]
    assert found[1] == found[2] != found[4]
    assert found[6] == found[7]


def test_dates_are_told_apart_by_the_instant():
    day = datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC)
    moved = day.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
    found = keys(column([day, moved, day.replace(tzinfo=None), day.date(), day.timetz()]))
    assert found[0] == found[1]
    assert len(set(found)) == 4
    stamps = pandas.Series(
        [pandas.Timestamp("2020-01-02"), pandas.Timestamp(2020, 1, 2, nanosecond=1)]
    )
    assert len(set(keys(stamps.to_frame()))) == 2
    assert keys(stamps.to_frame("x"))[0] == keys(column([datetime.datetime(2020, 1, 2)]))[0]
    assert keys(column([day])) == keys(column([moved]))
    spans = [datetime.timedelta(1), pandas.Timedelta(1, "D"), datetime.timedelta(2)]
    found = keys(column([*spans, pandas.Timedelta(1, "D") + pandas.Timedelta(1, "ns")]))
    assert len(set(found)) == 3
    assert keys(column(spans[1:2])) == found[:1]
    intervals = pandas.cut(pandas.Series([1.0, 5.0, 1.5]), [0, 2, 6])
    assert len(set(keys(intervals.to_frame()))) == 2


def test_names_order_and_shape_count_and_the_index_does_not():
    table = pandas.DataFrame(X, columns=list("abcd"))
    assert keys(table.set_index(np.arange(50) + 7)) == keys(table)
    others = [
        X,
        X.reshape(50, 2, 2),
        table.rename(columns={"a": "z"}),
        table[list("bacd")],
        {"a": X},
        {"a": X[:, :2], "b": X[:, 2:]},
        {"b": X[:, 2:], "a": X[:, :2]},
    ]
    found = [keys(table), *map(keys, others)]
    assert len({k for some in found for k in some}) == 50 * len(found)


def test_columns_of_the_same_name_are_kept_apart():
    twice = pandas.DataFrame([[1, 2], [2, 1]], columns=["a", "a"])
    assert len(set(keys(twice))) == 2


def test_values_that_change_places_change_the_key():
    assert len(set(keys([[1.0, 2.0], [2.0, 1.0], [3.0, 0.0], [-1.0, -2.0], [1.0, -2.0]]))) == 5


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_matrix, sparse.csc_array])
def test_sparse_rows_have_the_keys_of_dense_ones(kind):
    dense = X * (abs(X) > 1)
    dense[7] = 0
    assert keys(kind(dense)) == keys(dense)
    assert keys(kind(dense > 0)) == keys(dense > 0)


def test_sparse_entries_count_by_their_sum_and_stored_zeros_not_at_all():
    twice = sparse.csr_matrix(([1.0, 2.0, 0.0], [1, 1, 0], [0, 3]), shape=(1, 3))
    assert keys(twice) == keys([[0.0, 3.0, 0.0]])
    assert twice.nnz == 3  # it was left as it came


def test_keys_stay_what_they_are():
    # files on disk hold such keys: another value here makes every cache worthless
    assert row_keys([[1.0, 2.0]]).tolist() == [[6713038023829198012, 17321233947044680286]]
    assert row_keys(np.array([["a", 1.5, None]], dtype=object)).tolist() == [
        [6201521564532272780, 14950664932849089983]
    ]


@given(st.lists(st.integers(0, 5), max_size=30))
def test_distinct_finds_first_places_in_order_and_the_way_back(values):
    given = np.array([[v, 7 * v] for v in values], np.uint64).reshape(-1, 2)
    first, inverse = distinct(given)
    assert first.tolist() == sorted({values.index(v) for v in values})
    assert np.array_equal(given[first][inverse], given)


def test_distinct_looks_at_both_halves():
    first, inverse = distinct(np.array([[1, 1], [1, 2]], np.uint64))
    assert first.tolist() == inverse.tolist() == [0, 1]


def test_rows_are_selected_from_anything():
    rows = np.array([3, 0, 3])
    table = pandas.DataFrame(X, index=np.arange(50)[::-1])
    assert np.array_equal(select(table, rows), X[rows])
    assert np.array_equal(select(sparse.csr_matrix(X), rows).toarray(), X[rows])
    assert torch.equal(select({"x": torch.tensor(X)}, rows)["x"], torch.tensor(X[rows]))
    assert np.array_equal(select(as_rows(X.tolist()), rows), X[rows])
    assert [count(x) for x in (table, sparse.coo_matrix(X), {"x": X[:3]}, [[1], [2]])] == [
        50,
        50,
        3,
        2,
    ]


BAD = {
    "a single value": (3.0, "without rows"),
    "nothing": (None, "without rows"),
    "no columns": (np.zeros((3, 0)), "rows without columns"),
    "an empty dict": ({}, "an empty dict"),
    "complex": (np.ones((2, 1), complex), "complex128"),
    "structured": (np.zeros(2, [("a", float)]), "dtype"),
    "masked": (np.ma.masked_array([[1.0], [2.0]], [[True], [False]]), "masked values"),
    "ragged": ([[1, 2], [3]], "no array"),
    "lists in cells": (column([[1], [2]]), "unhashable type: 'list'"),
    "objects in cells": (column([object()]), "a cell that holds a object"),
    "complex in cells": (column([1j]), "complex"),
    "parts of different lengths": ({"a": X, "b": X[:3]}, "3 rows"),
    "complex sparse": (sparse.csr_matrix(np.ones((2, 2), complex)), "complex128"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_has_no_content_is_refused(case):
    value, received = BAD[case]
    with refused("X['b']" if "different lengths" in case else "X", received):
        count(value) if "without rows" in received else row_keys(value)


@pytest.mark.parametrize("X", [torch.zeros(2, 3, device="meta"), torch.zeros(2, 3).to_sparse()])
def test_tensors_without_an_array_are_refused(X):
    with refused("X", "no array"):
        as_given(X)
