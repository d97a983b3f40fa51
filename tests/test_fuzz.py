r"""Short runs of `tools/fuzz.py`: calls with wrong arguments end in limbeck's own errors."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tools"))


@pytest.mark.parametrize(
    ("calls", "start"), [(400, 2), pytest.param(2000, 1, marks=pytest.mark.slow)]
)
def test_no_exception_is_foreign(calls, start):
    from fuzz import fuzz

    table, bad = fuzz(calls, workers=1, start=start)
    assert [entry for entry in bad if entry[0] in ("foreign", "nan")] == []
    assert sum(table.values(), Counter()).total() >= calls
