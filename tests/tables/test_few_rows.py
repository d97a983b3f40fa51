r"""A few rows of a frame, read at once: the same tensors and refusals as column by column."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.tables.columns import Number
from limbeck.tables.table import Table
from tests.tables.frames import frame

pd = pytest.importorskip("pandas")


def data(n=60, seed=0):
    df = frame(n, seed)
    g = np.random.default_rng(seed)
    df["moment"] = pd.Series(pd.Timestamp("2024-02-29 12:00:00.25") + pd.to_timedelta(
        g.integers(0, 10**9, n), unit="ns")).mask(g.random(n) < 0.2)  # fmt: skip
    df["zoned"] = df["day"].dt.tz_localize("Europe/Berlin")
    df["whole"] = pd.array(np.where(g.random(n) < 0.3, None, g.integers(0, 9, n)), dtype="Int64")
    df["kind"] = pd.Categorical(g.choice(["a", "b"], n), categories=["a", "b", "c"])
    df["long"] = g.integers(2**40, 2**40 + 1000, n)
    return df


TABLE = Table(data(), categories=["code", "share", "street"])
VALUES = st.sampled_from(
    [0, 1, 20, 99, -3, 0.1, 0.25, 1e30, 1e38, 3e39, np.inf, np.nan, None, pd.NA, pd.NaT, True, "x",
     "Köln", "", "3. Straße", pd.Timestamp("2024-03-01"), pd.Timestamp("2024-03-01", tz="UTC"),
     [1], (1,), 1j, b"x", np.float32(0.1), np.int8(20), 2**60, pd.Timedelta(1, "s")]
)  # fmt: skip
DTYPES = st.sampled_from(
    [None, "object", "float32", "float64", "Float64", "int8", "Int64", "bool", "boolean", "str",
     "string", "category", "datetime64[s]", "datetime64[ns]", "datetime64[ns, UTC]", "complex128"]
)  # fmt: skip


def at_once(df):
    r"""The tensors of a few rows that are read at once; None where columns have to be read."""
    if (matrices := TABLE.few_rows(df)) is None:
        return None
    numbers, codes, parts = iter(matrices.numbers.T), iter(matrices.codes.T), {}
    missing = dict(zip((c.key for c in TABLE.numbers), matrices.missing.T, strict=True))
    for column in TABLE.varying:
        values = next(numbers if isinstance(column, Number) else codes)
        arrays = zip(column.keys, (values, missing.get(column.key)), strict=False)
        parts |= {key: torch.from_numpy(np.array(array)) for key, array in arrays}
    return parts


def same(df):
    r"""Rows read at once have the tensors of rows read by columns, which are not refused."""
    if (fast := at_once(df)) is None:
        return
    slow = TABLE.encode_exactly(df)
    assert list(fast) == list(slow)
    for key, part in slow.items():
        assert fast[key].dtype == part.dtype, key
        assert torch.equal(fast[key], part), key


@pytest.mark.parametrize("n", [1, 2, 32, 33])
def test_rows_of_every_kind_of_column(n):
    df = data(n, seed=3)
    df.loc[0, "street"] = "elsewhere"
    for rows in (df, df.iloc[::-1], df[df.columns[::-1]], df.assign(more="x"), df.convert_dtypes()):
        same(rows)
    assert (TABLE.few_rows(df) is None) == (n > 32)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.sampled_from([c.name for c in TABLE.varying]), st.lists(VALUES, min_size=1, max_size=3),
       DTYPES)  # fmt: skip
def test_values_and_types_of_all_kinds(name, values, dtype):
    df = data(len(values), seed=1)
    series = pd.Series(np.empty(len(values), object))
    for k, value in enumerate(values):
        series[k] = value
    try:
        df[name] = series.infer_objects() if dtype is None else series.astype(dtype)
    except (TypeError, ValueError, OverflowError, Warning):
        return  # pandas has no such series
    same(df)


def test_columns_that_are_absent_or_come_twice():
    df = data(2)
    same(df.drop(columns="age"))
    same(pd.concat([df, df[["age"]]], axis=1))
    same(pd.concat([df.assign(more=1), df.assign(more=1)[["more"]]], axis=1))
    same(df.iloc[:0])


def test_codes_beyond_what_floats_can_distinguish():
    df = pd.DataFrame({"id": [2**53, 2**53 + 1] * 4, "x": np.arange(8.0)})
    table = Table(df, categories=["id"])
    assert table.encode(df.iloc[:2])["id"].tolist() == [0, 1]
    assert table.encode(df.iloc[1:2])["id"].tolist() == [1]
