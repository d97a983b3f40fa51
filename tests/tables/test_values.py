r"""Numbers of series of every kind."""

import numpy as np
import pytest

from limbeck.tables import columns as values

pd = pytest.importorskip("pandas")

SERIES = {
    "strings": pd.Series(["b", None, "a", "b"]),
    "objects": pd.Series(["b", np.nan, "a", None], dtype=object),
    "flags": pd.Series([True, False, True, True]),
    "flags with gaps": pd.Series([True, None, False, True], dtype="boolean"),
    "categories": pd.Series(["x", "y", None, "x"], dtype="category"),
    "numbers": pd.Series([2, 1, 2, 3]),
    "numbers with gaps": pd.Series([2, None, 2, 3], dtype="Int64"),
    "floats": pd.Series([0.5, np.nan, 0.5, 1.5]),
}


@pytest.mark.parametrize("name", [name for name in SERIES if "number" in name or "fl" in name])
def test_numbers_of_all_kinds(name):
    series = SERIES[name]
    wanted = [np.nan if gone else float(v) for v, gone in zip(series, series.isna(), strict=True)]
    np.testing.assert_array_equal(values.measured(series, False, "x"), wanted)
