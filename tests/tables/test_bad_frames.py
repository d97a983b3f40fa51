r"""Frames, columns, batches and specs that a table refuses, with the reason."""

import numpy as np
import pytest
import torch

from limbeck.tables.table import Table
from tests.refusals import refused, warns_about
from tests.tables.test_table import frame

pd = pytest.importorskip("pandas")


def test_a_number_missing_where_none_was_is_refused():
    table = Table(pd.DataFrame({"x": [1.0, 2.0, 9.0]}))
    with refused("df['x']", "1 missing values"):
        table.encode(pd.DataFrame({"x": [5.0, np.nan]}))


def test_ids_are_refused_unless_the_user_says_so():
    df = pd.DataFrame({"id": [f"user {k}" for k in range(30)], "x": range(30)})
    with refused(
        "df['id']",
        "30 different strings in 30 rows",
        expected=r"drop=\['id'\].*categories=\['id'\]",
    ):
        Table(df)
    assert [column.name for column in Table(df, drop="id").columns] == ["x"]
    assert len(Table(df, categories=["id"]).columns[0].categories) == 30
    Table(df.astype({"id": "category"}))  # the user said so, too
    Table(pd.DataFrame({"id": [f"user {k}" for k in range(20)]}))  # so few are no ids


def test_strings_that_are_dates_are_told_how_to_become_some():
    days = pd.date_range("2020-01-01", periods=40).strftime("%Y-%m-%d")
    with refused(
        "df['day']",
        "strings in 40 rows, like dates",
        expected=r"dates of pandas.to_datetime\(df\['day'\]",
    ):
        Table(pd.DataFrame({"day": days}))
    with refused("df['number']", "like ids"):
        Table(pd.DataFrame({"number": [f"2020{k:04}" for k in range(40)]}))


def test_dates_that_are_taken_as_categories_are_warned_of():
    days = pd.date_range("2020-01-01", periods=40).strftime("%Y-%m-%d")
    df = pd.DataFrame({"day": [*days, *days, *days], "x": range(120)})
    with warns_about("df['day']", "40 strings like dates", "pandas.to_datetime"):
        Table(df)
    assert len(Table(df, categories="day").columns[0].categories) == 40  # the user said so


BAD = {
    ("df", "columns that are all constant"): {"a": [1, 1], "b": [None, None]},
    ("df['x']", "infinity, the first in row 1"): {"x": [1.0, -np.inf]},
    ("df['x']", r"numbers of up to 1e\+300"): {"x": [1.0, 1e300]},
    ("df['x']", "values of kind mixed"): {"x": [[1], [2]]},
    ("df['x']", "values of kind mixed-integer"): {"x": [1, "a"]},
    ("df['x']", "values of kind complex"): {"x": [1j, 2]},
    ("df['x']", "values of kind timedelta64"): {"x": pd.to_timedelta([1, 2], unit="s")},
    ("df['x']", "categories of type Interval"): {"x": pd.cut([1, 2, 3], 2)},
    ("df['x']", "categories of type int, str"): {"x": pd.Categorical([1, "a"])},
    ("df['x']", "whole numbers of up to .*, like ids"): {"x": [2**60, 2**61]},
    ("df", r"the column name 0\.5"): {0.5: [1, 2]},
    ("df", "the column name ''"): {"": [1, 2]},
    ("df", "the column name '1' twice"): {1: [1, 2], "1": [3, 4]},
    ("df", "a frame of 0 rows and 1 columns"): {"x": []},
}


@pytest.mark.parametrize(("argument", "received"), BAD)
def test_bad_frames_are_refused(argument, received):
    with refused(argument, received):
        Table(pd.DataFrame(BAD[argument, received]))


def test_duplicate_names_levels_and_other_things_are_refused():
    df = pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])
    with refused("df", "the column name 'a' twice"):
        Table(df)
    df.columns = pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])
    with refused("df", "columns of 2 levels"):
        Table(df)
    for value in (np.zeros((2, 2)), {"a": [1]}, None):
        with refused("df", expected="a data frame of pandas or Polars"):
            Table(value)
    with refused("categories", "'agee'", expected="did you mean 'age'"):
        Table(frame(), categories=["agee"])
    with refused("df", "a frame of 2 rows and 0 columns"):
        Table(pd.DataFrame({"x": [1, 2]}), drop=["x"])


WRONG = {
    ("df", "no column 'b', 7"): {"a": [1.0]},
    ("df['a']", r"string values \(str\)"): {"a": ["1.0"]},
    ("df['a']", "infinity"): {"a": [np.inf]},
    ("df['b']", "the value 1"): {"b": [1]},
    ("df['b']", "values that are no scalars"): {"b": [["x"]]},
    ("df[7]", "the value 'x'"): {7: ["x"]},
    ("df['t']", "values of dtype str"): {"t": ["2020-01-01"]},
    ("df['t']", "dates of datetime64.*UTC"): {"t": pd.to_datetime(["2020-01-01"], utc=True)},
}


@pytest.mark.parametrize(("argument", "received"), WRONG)
def test_frames_that_do_not_fit_are_refused(argument, received):
    dates = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"])
    df = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"], 7: [1, 2, 1], "t": dates})
    table = Table(df, categories=[7])
    fitting = {} if argument == "df" else df[:1].to_dict("list")
    with refused(argument, received):
        table.encode(pd.DataFrame(fitting | WRONG[argument, received]))


def test_batches_that_do_not_fit_are_refused():
    df = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    table = Table(df)
    good = table.encode(df)
    for change, argument, received, expected in [
        ({"a": torch.tensor([1.0, np.nan])}, "batch['a']", "NaN or infinity", ""),
        ({"a": torch.zeros(2, 1)}, "batch['a']", r"an array of shape \(2, 1\)", ""),
        (
            {"b": torch.tensor([0, 4])},
            "batch['b']",
            "codes of int64",
            "from 0 to 3",
        ),
        ({"b": torch.tensor([0.0, 1.0])}, "batch['b']", "codes of float32", ""),
        (
            {"b": torch.tensor([0, 3])},
            "batch['b']",
            "3, the code of a missing value",
            "",
        ),
        ({"b": torch.tensor([0])}, "batch['b']", r"an array of shape \(1,\)", ""),
    ]:
        with refused(argument, received, expected=expected):
            table.to_frame(good | change)
    with refused("batch", "no part 'b'"):
        table.to_frame({"a": good["a"]})


@pytest.mark.parametrize("spec", [{}, {"type": "Table"}, {"type": "T", "rows": 1, "columns": []}])
def test_a_foreign_spec_is_refused(spec):
    with refused("spec.type" if spec.get("type") != "Table" else "spec.rows"):
        Table.from_spec(spec)
    whole = Table(pd.DataFrame({"a": [1.0, 2.0]})).spec()
    with refused("spec", expected=r"the result of Table\.spec\(\)"):
        Table.from_spec(whole | {"columns": [{"type": "Number", **spec}]})
