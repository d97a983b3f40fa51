r"""Schemas of tables and formats of rows of saved results: every other value is refused."""

import json

import numpy as np
import pandas as pd
import pytest

from limbeck.compression.rows import ArrayFormat, TableFormat, format_from_spec
from limbeck.errors import ArgumentError
from limbeck.tables.table import Table
from tests.refusals import refused

FRAME = pd.DataFrame({
    "number": [1.5, np.nan, 3.0], "count": [1, 2, 5], "flag": [True, False, True],
    "day": pd.to_datetime(["2020-01-01", "2020-01-02", "2021-01-01"]),
    "town": ["a", None, "b"], "grade": pd.Categorical(["x", "y", "x"], ordered=True),
    "same": [1, 1, 1],
})  # fmt: skip
TABLE = TableFormat(Table(FRAME), "float64").spec()


def test_a_format_comes_back():
    for kind in (ArrayFormat((3, 4), ">f8", True), ArrayFormat((), "bool")):
        assert format_from_spec(json.loads(json.dumps(kind.spec()))).spec() == kind.spec()
    again = format_from_spec(json.loads(json.dumps(TABLE)))
    assert again.spec() == TABLE
    batch = again.table.encode(FRAME)
    pd.testing.assert_frame_equal(again.table.to_frame(batch), FRAME, check_dtype=True)


@pytest.mark.parametrize("value", [None, True, -1, 1.5, float("nan"), "x", [], {}, [[[]]], 10**30])
def test_every_other_value_is_refused_or_makes_a_table_that_works(value):
    columns = TABLE["table"]["columns"]
    for number, column in enumerate(columns):
        for name in column:
            spec = json.loads(json.dumps(TABLE))
            spec["table"]["columns"][number][name] = value
            try:
                table = format_from_spec(spec).table
                frame = table.to_frame(table.encode(FRAME.rename(columns={column["name"]: value})
                                                    if name == "name" else FRAME))  # fmt: skip
            except ArgumentError:
                continue
            assert len(frame) == 3


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"kind": "sound"}, "format.kind"),
        ({"kind": None}, "format.kind"),
        ({"shape": [-1]}, "format.shape"),
        ({"shape": [2.0]}, r"format.shape[0]"),
        ({"shape": 3}, "format.shape"),
        ({"dtype": "object"}, "format.dtype"),
        ({"dtype": "f8,f8"}, "format.dtype"),
        ({"dtype": "nonsense"}, "format.dtype"),
        ({"sparse": 1}, "format.sparse"),
        ({"more": 1}, "format"),
    ],
)
def test_formats_of_arrays(change, argument):
    with refused(argument):
        format_from_spec(ArrayFormat((3,)).spec() | change)
    with refused("format.sparse", "nothing"):
        format_from_spec({"kind": "array", "shape": [3], "dtype": "float32"})
    with refused("format"):
        format_from_spec([])


def test_tables_without_columns_or_with_two_of_one_name_are_refused():
    spec = TABLE["table"]
    for columns in ([], spec["columns"] * 2, [spec["columns"][-1]]):
        with refused("spec.columns"):
            Table.from_spec(spec | {"columns": columns})
    with refused("spec.rows"):
        Table.from_spec(spec | {"rows": "3"})
    with refused("format.array"):
        format_from_spec(TABLE | {"array": "object"})
