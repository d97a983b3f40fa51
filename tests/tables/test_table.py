r"""A table: frames become tensors and frames again."""

import json
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import limbeck as lb
from limbeck.tables.columns import Category, Number
from limbeck.tables.table import Table
from tests.refusals import raises_about, refused

pd = pytest.importorskip("pandas")
N = 40


def frame(n=N, seed=0):
    r"""Every kind of column that a table knows."""
    g = np.random.default_rng(seed)
    start = pd.Timestamp("2020-01-01 10:00")
    hours = start + pd.to_timedelta(g.integers(0, 9000, n), unit="h")
    towns = g.choice(["Köln", "東京", "", "São Paulo"], n)
    return pd.DataFrame(
        {
            "age": g.integers(18, 90, n),
            "pay": np.where(g.random(n) < 0.2, np.nan, g.normal(3e4, 1e4, n)),
            "single": g.normal(size=n).astype(np.float32),
            "town": pd.Series(towns).mask(g.random(n) < 0.2),
            "object": pd.Series(np.where(g.random(n) < 0.2, None, towns), dtype=object),
            "string": pd.Series(towns, dtype="string").mask(g.random(n) < 0.2),
            "python": pd.Series(towns, dtype=pd.StringDtype("python")),
            "grade": pd.Categorical(
                g.choice(["low", "high", None], n), ["low", "never", "high"], ordered=True
            ),
            "digit": pd.Categorical(g.choice([3, 1, 2], n), [3, 1, 2]),
            "flag": g.random(n) < 0.5,
            "maybe": pd.array(g.choice([True, False, None], n), dtype="boolean"),
            "answer": pd.Series(g.choice([True, False, None], n), dtype=object),
            "count": pd.array(np.where(g.random(n) < 0.3, None, g.integers(0, 9, n)), "Int64"),
            "part": pd.array(np.where(g.random(n) < 0.3, None, g.random(n)), "Float64"),
            "whole object": pd.Series([None, *g.integers(0, 9, n - 1).tolist()], dtype=object),
            "byte": g.integers(0, 256, n).astype(np.uint8),
            "day": hours.normalize(),
            "hour": hours.tz_localize("UTC").tz_convert("Europe/Berlin"),
            "second": pd.Series(hours).astype("datetime64[ns]").mask(g.random(n) < 0.2),
            "stamp": 1_700_000_000 + g.integers(0, 10**6, n),
            "sparse": pd.arrays.SparseArray(g.integers(0, 2, n)),
            "one": "x",
            "never": np.nan,
            "no date": pd.Series([None] * n, dtype="datetime64[ns]"),
            "no category": pd.Categorical([None] * n, ["a"]),
            "one of two": pd.Categorical(["b"] * n, ["a", "b"]),
            "tenth": 0.1,
            "moment": pd.Timestamp("2020-02-03 04:05:06.789012"),
            7: g.normal(size=n),
        }
    )


def same(found, df):
    r"""Frames are equal up to float32, with the same dtypes."""
    pd.testing.assert_frame_equal(found, df.reset_index(drop=True), rtol=3e-7, atol=1e-30)


def test_a_frame_goes_through_tensors_and_back():
    df = frame()
    table = Table(df)
    same(table.to_frame(table.encode(df)), df)


def test_arrays_as_an_opaque_teacher_gets_them_will_do():
    df = frame()
    table = Table(df)
    same(table.to_frame({k: v.numpy() for k, v in table.encode(df).items()}), df)


def test_a_spec_is_json_and_gives_the_same_table():
    df = frame()
    table = Table(df, categories=["byte"])
    again = Table.from_spec(json.loads(json.dumps(table.spec())))
    assert again.spec() == table.spec()
    batch = again.encode(df)
    assert all(torch.equal(batch[key], part) for key, part in table.encode(df).items())
    same(again.to_frame(batch), df)
    assert repr(again) == repr(table)


def texts(n):
    few = st.lists(st.text(max_size=4), min_size=1, max_size=5)
    return few.flatmap(
        lambda some: st.lists(st.sampled_from([*some, None]), min_size=n, max_size=n)
    )


def reals(n, width):
    limit = 1e30 if width == 64 else 2.0**100
    real = st.floats(-limit, limit, allow_subnormal=False, width=width)
    return st.lists(st.one_of(real, st.just(float("nan"))), min_size=n, max_size=n)


def column(n):
    whole = st.one_of(st.integers(-(2**24), 2**24), st.none())
    moments = st.one_of(st.integers(0, 10**5), st.none())
    lists = lambda values: st.lists(values, min_size=n, max_size=n)  # noqa: E731
    days = np.datetime64("1999-12-31", "s")
    return st.one_of(
        reals(n, 32).map(lambda v: pd.Series(v, dtype="float32")),
        lists(whole).map(lambda v: pd.Series(v, dtype="Int64")),
        texts(n).map(lambda v: pd.Series(v, dtype="str")),
        texts(n).map(lambda v: pd.Series(v, dtype="category")),
        texts(n).map(lambda v: pd.Series(v, dtype=object)),
        lists(st.sampled_from([True, False, None])).map(lambda v: pd.Series(v, dtype="boolean")),
        lists(st.booleans()).map(lambda v: pd.Series(v, dtype=bool)),
        lists(moments).map(
            lambda v: pd.Series([None if x is None else days + x * 3600 for x in v]).astype(
                "datetime64[us]"
            )
        ),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exact_columns_come_back_exactly(data):
    n = data.draw(st.integers(2, 12))
    columns = data.draw(st.lists(column(n), min_size=1, max_size=4))
    df = pd.DataFrame({f"c{k}": series for k, series in enumerate(columns)} | {"row": range(n)})
    table = Table(df)
    batch = table.encode(df)
    pd.testing.assert_frame_equal(table.to_frame(batch), df, check_exact=True)
    features = table.encoder()(batch)
    assert features.shape == (n, table.encoder().width)
    assert features.isfinite().all()


def test_large_whole_numbers_of_float32_come_back_exactly():
    df = pd.DataFrame({"x": np.array([1, 2**25 + 4], np.float32)})
    table = Table(df)
    pd.testing.assert_frame_equal(table.to_frame(table.encode(df)), df, check_exact=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12).flatmap(lambda n: reals(n, 64)))
@example([0.0, 2.596312536836658e-40])
def test_numbers_come_back_up_to_float32(values):
    df = pd.DataFrame({"x": values, "row": range(len(values))})
    table = Table(df)
    found = table.to_frame(table.encode(df))["x"].to_numpy()
    x = df["x"].to_numpy()
    assert (np.isnan(found) == np.isnan(x)).all()
    size = np.nanmax(np.abs(x), initial=0)
    # near zero, float32 numbers are 2^-149 apart
    np.testing.assert_allclose(found, x, rtol=2**-23, atol=2**-23 * size + 2**-149)


def test_what_is_far_from_zero_keeps_its_digits():
    x = 51.5 + 1e-3 * np.random.default_rng(0).random(30)
    df = pd.DataFrame({"latitude": x, "nanoseconds": 1.7e9 * 1e6 + np.arange(30)})
    table = Table(df)
    found = table.to_frame(table.encode(df))
    np.testing.assert_allclose(found["latitude"], x, rtol=0, atol=1e-3 * 2**-24)
    assert (found["nanoseconds"] == df["nanoseconds"]).all()


def test_large_whole_numbers_come_back_to_the_last_digit():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"stamp": 1_700_000_000 + rng.integers(0, 10**6, 50)})
    df["below"] = -df["stamp"]
    df["some"] = pd.array(df["stamp"].where(rng.random(50) < 0.8), dtype="Int64")
    table = Table(df)
    pd.testing.assert_frame_equal(table.to_frame(table.encode(df)), df)


def test_generated_whole_numbers_stay_within_what_their_dtype_holds():
    df = pd.DataFrame({"n": np.array([2_000_000_000, 2_000_001_001, 2_000_000_500], np.int32)})
    table = Table(df)
    back = table.to_frame({"n": torch.tensor([1e9, -5e9, 3.0])})["n"]
    assert back.dtype == np.int32
    assert back.tolist() == [2**31 - 1, -(2**31), int(table.columns[0].origin) + 3]


def test_an_outlier_does_not_become_a_huge_feature():
    x = np.r_[np.random.default_rng(0).normal(size=9999), 1e6]
    (column,) = Table(pd.DataFrame({"x": x})).columns
    scaled = (x - column.origin - column.mean) / column.scale
    assert scaled.max() == pytest.approx(20)
    plain = Table(pd.DataFrame({"x": x[:-1]})).columns[0]
    assert plain.scale == pytest.approx(x[:-1].std(), rel=1e-6)


def test_tensors_are_of_few_kinds_and_masks_are_there_where_something_is_missing():
    df = frame()
    table = Table(df)
    batch = table.encode(df)
    assert set(batch) == set(table.groups())
    assert all(part.shape == (N,) for part in batch.values())
    for column in table.varying:
        if isinstance(column, Number):
            assert batch[column.key].dtype == torch.float32
            assert (column.mask is not None) == bool(df[column.name].isna().any())
            if column.mask:
                assert batch[column.mask].dtype == torch.bool
                gone = df[column.name].isna().to_numpy()
                assert (batch[column.mask].numpy() == gone).all()
                assert (batch[column.key].numpy()[gone] == np.float32(column.fill)).all()
        else:
            assert isinstance(column, Category)
            assert batch[column.key].dtype == torch.int64
    constants = {column.name for column in table.columns if column.constant}
    assert constants == {
        "one", "never", "no date", "no category", "one of two", "tenth", "moment",
    }  # fmt: skip
    assert table.groups()["pay__missing"] == "pay"


def test_the_median_fills_gaps():
    df = pd.DataFrame({"x": [1.0, 2.0, np.nan, 9.0]})
    assert Table(df).encode(df)["x"].tolist() == [1, 2, 2, 9]


def test_codes_for_unknown_and_missing():
    table = Table(pd.DataFrame({"a": ["x", "y", "x", None], "b": ["u", "v", "u", "u"]}))
    batch = table.encode(pd.DataFrame({"a": ["y", "new", None], "b": ["v", "new", "new"]}))
    assert batch["a"].tolist() == [1, 2, 3]
    assert batch["b"].tolist() == [1, 2, 2]
    with refused("df['b']", "1 missing values"):
        table.encode(pd.DataFrame({"a": ["y", "x"], "b": ["v", None]}))
    back = table.to_frame(batch)
    assert back["a"].fillna("gone").tolist() == ["y", "x", "gone"]  # the most frequent one
    assert back["b"].tolist() == ["v", "u", "u"]
    late = pd.DataFrame({"c": ["a", "z", "z"], "d": pd.Categorical(["a", "b", "b"])})
    table = Table(late)  # where the most frequent one is not the first
    batch = table.encode(pd.DataFrame({"c": ["new", "a"], "d": pd.Categorical(["new", "a"])}))
    assert table.to_frame(batch).astype(str).values.tolist() == [["z", "b"], ["a", "a"]]


def test_generated_numbers_that_are_missing_are_filled():
    df = pd.DataFrame({"x": [1.5, 2.0, np.nan, 9.0], "n": pd.array([1, None, 5, 9], "Int64")})
    table = Table(df)
    gone = torch.tensor([True, False])
    batch = {"x": torch.tensor([7.5, 7.5]), "x__missing": gone}
    batch |= {"n": torch.tensor([7.4, 7.4]), "n__missing": gone}
    rounded = table.rounded(batch)
    assert rounded["x"].tolist() == [2.0, 7.5]
    assert rounded["n"].tolist() == [5.0, 7.0]
    back = table.encode(table.to_frame(batch))  # the same by way of a frame
    assert all(torch.equal(rounded[key], back[key]) for key in batch)


def test_generated_numbers_are_rounded_to_what_the_column_holds():
    df = pd.DataFrame(
        {
            "byte": np.array([0, 255, 3], np.uint8),
            "int": [1, 2, 3],
            "day": pd.to_datetime(["2020-01-01", "2020-03-01", "2021-01-01"]),
        }
    )
    table = Table(df)
    origin = next(c.origin for c in table.columns if c.name == "day")
    day = 86400.0
    batch = {
        "byte": torch.tensor([-3.2, 300.0, 7.4]),
        "int": torch.tensor([-3.2, 1e30, 2.6]),
        "day": torch.tensor([0.4 * day, 0.6 * day, -9.9 * day]),
    }
    back = table.to_frame(batch)
    assert back["byte"].tolist() == [0, 255, 7]
    assert back["int"].tolist() == [-3, 2**62, 3]
    assert (back["day"] == pd.to_datetime(origin + day * np.array([0, 1, -10]), unit="s")).all()
    rounded = table.rounded(batch)
    same(table.to_frame(rounded), back)
    again = table.encode(back)
    assert all(torch.equal(rounded[key], again[key]) for key in batch)


def test_numbers_may_be_categories():
    df = pd.DataFrame({"code": [10, 20, 10, 30], "share": [0.1, np.nan, 0.2, 0.1]})
    table = Table(df, categories=["code", "share"])
    batch = table.encode(df)
    assert batch["code"].tolist() == [0, 1, 0, 2]
    assert batch["share"].tolist() == [0, 3, 1, 0]
    pd.testing.assert_frame_equal(table.to_frame(batch), df, check_exact=True)


def test_the_index_and_further_columns_are_ignored():
    df = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"]})
    table = Table(df)
    index = pd.MultiIndex.from_product([["u"], [5, 6, 7]])
    found = table.encode(df.set_index(index).assign(more=1)[["more", "b", "a"]])
    assert all(torch.equal(found[key], part) for key, part in table.encode(df).items())
    assert list(found) == ["a", "b"]
    twice = pd.concat([df, df[["a"]]], axis=1)
    with refused("df", "'a' more than once"):
        table.encode(twice)


def test_no_rows_are_a_frame_too():
    df = frame()
    table = Table(df)
    empty = table.to_frame(table.encode(df[:0]))
    pd.testing.assert_frame_equal(empty, df[:0])


def test_names_of_masks_do_not_collide():
    df = pd.DataFrame({"a": [1.0, np.nan, 2.0], "a__missing": [1.0, 2.0, np.nan]})
    table = Table(df)
    assert len(table.encode(df)) == 4
    same(table.to_frame(table.encode(df)), df)


def test_anything_with_to_pandas_is_taken():
    class Polars:
        def __init__(self, df):
            self.df = df

        def to_pandas(self):
            return self.df

    df = pd.DataFrame({"a": [1.0, 2.0]})
    assert Table(Polars(df)).encode(Polars(df))["a"].tolist() == [1, 2]


def test_without_pandas_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_about(lb.LimbeckError, "limbeck[tables]"):
        Table(None)


def test_it_prints_its_columns():
    text = repr(Table(frame()))
    assert "29 columns of 40 rows" in text
    for word in ("datetime64[us, Europe/Berlin]", "whole number", "flag", "nothing, constant"):
        assert word in text
    wide = pd.DataFrame(np.arange(80).reshape(2, 40))
    assert "and 10 more" in repr(Table(wide))


def test_encoding_what_the_table_was_made_of_warns_of_nothing():
    df = frame()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Table(df).encode(df)
