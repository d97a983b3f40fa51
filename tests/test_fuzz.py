r"""A short run of `tools/fuzz.py`: calls with wrong arguments end in limbeck's own errors."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parent.parent / "tools" / "fuzz.py"


def test_no_exception_is_foreign(monkeypatch):
    spec = importlib.util.spec_from_file_location("fuzz", PATH)
    fuzzer = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "fuzz", fuzzer)
    spec.loader.exec_module(fuzzer)
    table, bad = fuzzer.fuzz(2000, workers=1, start=1)
    assert [entry for entry in bad if entry[0] in ("foreign", "nan")] == []
    assert sum(table.values(), __import__("collections").Counter()).total() >= 2000
