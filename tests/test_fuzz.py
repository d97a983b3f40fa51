r"""A short run of `tools/fuzz.py`: calls with wrong arguments end in limbeck's own errors."""

import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tools"))


def test_no_exception_is_foreign():
    from fuzz import fuzz

    table, bad = fuzz(2000, workers=1, start=1)
    assert [entry for entry in bad if entry[0] in ("foreign", "nan")] == []
    assert sum(table.values(), Counter()).total() >= 2000
