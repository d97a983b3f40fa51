r"""Columns of every kind, cut into groups that together are all rows."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from limbeck.compression.fidelity.comparison import SMALL, subgroups
from tests.refusals import refused


def sizes(values):
    return {name: len(rows) for name, rows in subgroups({"it": values}, len(values))["it"].items()}


def test_numbers_are_cut_into_quartiles():
    values = np.random.default_rng(0).permutation(100)
    found = subgroups({"it": values}, 100)["it"]
    assert list(found) == ["up to 24", "24 to 49", "49 to 74", "above 74"]
    assert [len(rows) for rows in found.values()] == [25] * 4
    assert values[found["24 to 49"]].min() == 25


def test_few_numbers_are_groups_of_their_own():
    assert sizes(np.repeat([2.5, 1, 3], 20)) == {"1": 20, "2.5": 20, "3": 20}
    assert sizes([True] * 12 + [False] * 15) == {"False": 15, "True": 12}


def test_quartiles_that_coincide_are_one():
    assert sizes(np.r_[np.zeros(80), np.arange(1, 21)]) == {"up to 0": 80, "above 0": 20}
    infinite = np.r_[np.full(40, np.inf), np.arange(20.0), np.full(20, -np.inf)]
    assert sum(sizes(infinite).values()) == 80


def test_missing_values_are_a_group_of_their_own():
    values = np.r_[np.full(15, np.nan), np.arange(40.0)]
    assert sizes(values)["missing"] == 15
    mixed = ["a"] * 20 + [None] * 11 + [float("nan")] * 2
    assert sizes(np.array(mixed, dtype=object)) == {"a": 20, "missing": 13}
    assert sizes(np.full(12, np.nan)) == {"missing": 12}


def test_small_groups_are_pooled_and_one_alone_keeps_its_name():
    values = ["a"] * 30 + ["b"] * 9 + ["c"] * 3
    assert sizes(values) == {"a": 30, "other (2 groups)": 12}
    assert sizes(values[:-3]) == {"a": 30, "b": 9}
    assert sizes([str(i) for i in range(50)]) == {"other (50 groups)": 50}


def test_columns_of_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "town": pandas.Categorical(["York", "Bath"] * 30),
            "day": pandas.date_range("2024-01-01", periods=60),
            "count": pandas.array([*range(59), None], dtype="Int64"),
            "name": pandas.array(["x", pandas.NA] * 30, dtype="string"),
        }
    )
    found = subgroups(frame, 60)
    assert {name: len(rows) for name, rows in found["town"].items()} == {"Bath": 30, "York": 30}
    assert next(iter(found["day"])) == "up to 2024-01-15"
    assert [len(rows) for rows in found["day"].values()] == [15] * 4
    assert len(found["count"]) == 5
    assert len(found["count"]["missing"]) == 1
    assert len(found["name"]["missing"]) == 30


def test_a_column_of_another_length_is_refused():
    with refused("groups['age']", r"shape \(3,\)"):
        subgroups({"age": [1, 2, 3]}, 4)


VALUES = st.one_of(
    st.lists(st.integers(-5, 5), min_size=1, max_size=60),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60),
    st.lists(st.sampled_from(["a", "b", "c", "missing", ""]), min_size=1, max_size=60),
    st.lists(st.one_of(st.none(), st.text(max_size=2)), min_size=1, max_size=60),
)


@settings(deadline=None)
@example([None, "", "\x00"])
@example([None, "\x00"])
@given(VALUES)
def test_every_row_is_in_one_group(values):
    found = subgroups({"it": np.array(values, dtype=None)}, len(values))["it"]
    rows = np.concatenate(list(found.values()))
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(values)))
    assert sum(len(part) < SMALL for part in found.values()) <= 1
