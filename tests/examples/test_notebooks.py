r"""The notebooks run from top to bottom, and are kept without what they print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_there_is_one_a_verb():
    assert {"compress", "condense", "normalize"} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_run_one_after_the_other(path, tmp_path, monkeypatch, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            where = f"{path.name}, cell {number}"
            exec(compile("".join(cell["source"]), where, "exec"), names)
    import matplotlib.pyplot as plt

    drawn = [plt.figure(number) for number in plt.get_fignums()]
    try:
        assert drawn
        for number, figure in enumerate(drawn):
            figure.savefig(tmp_path / f"{number}.png")
    finally:
        plt.close("all")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs_and_begins_with_what_it_is(path):
    first, *rest = cells(path)
    assert first["cell_type"] == "markdown"
    assert re.match(r"# \w", first["source"][0])
    for cell in rest:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_have_names_of_their_own(path):
    names = [cell["id"] for cell in cells(path)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
