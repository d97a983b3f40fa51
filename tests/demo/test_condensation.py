r"""The demo's posterior: its rows, its picture, its sentence."""

import io
import json

import pytest
from rich.console import Console

from limbeck import demo
from limbeck.demo.condensation import show


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    told = pytest.MonkeyPatch()
    out = io.StringIO()
    told.setattr("sys.stdout", out)
    demo.run("condense", members=1, steps=300, seed=0, as_json=True, progress=False, folder=folder)
    told.undo()
    return json.loads(out.getvalue())["condense"], folder


@pytest.mark.slow
def test_students_are_nearer_to_all_draws_than_untrained_ones_and_ep(found):
    rows = {row["way"]: row for row in found[0]["rows"]}
    assert list(rows) == ["all draws", "ten draws", "batch", "online", "EP"]
    assert rows["all draws"]["mean_error"] == 0
    assert rows["all draws"]["bytes"] == 10_000 * 2 * 4
    for name in ("batch", "online"):
        assert rows[name]["mean_error"] < 0.5 * rows["ten draws"]["mean_error"]
        assert rows[name]["max_error"] > rows[name]["mean_error"]
        assert (rows[name]["draws"], rows[name]["bytes"]) == (10, 128)
    assert rows["batch"]["mean_error"] < rows["EP"]["mean_error"]
    assert all(row["milliseconds"] > 0 for row in rows.values())


def test_the_picture_says_what_it_shows(found):
    PIL = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    content, folder = found
    assert content["picture"] == str(folder / "condense.png")
    with PIL.open(content["picture"]) as image:
        assert "all draws; batch, mean error 0.0" in image.info["Description"]


@pytest.mark.slow
def test_without_matplotlib_there_is_no_picture_and_no_page(monkeypatch, tmp_path, capsys):
    from limbeck.demo import condensation

    monkeypatch.setattr(condensation.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(condensation, "POOL", 50)
    monkeypatch.setattr(condensation, "TURNS", 1)
    demo.run("condense", members=1, steps=3, seed=0, as_json=True, progress=False, folder=tmp_path)
    said = capsys.readouterr()
    assert json.loads(said.out)["condense"]["picture"] is None
    assert "A report needs jinja2 and matplotlib" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["condense"]  # the result folder


def test_the_table_ends_with_one_sentence(tmp_path):
    names = ("way", "draws", "mean_error", "max_error", "bytes", "milliseconds", "seconds")
    cells = [
        ("all draws", 10_000, 0.0, 0.0, 80_000, 30.0, 2.0),
        ("ten draws", 10, 0.05, 0.2, 80, 0.02, 0.0),
        ("batch", 10, 0.008, 0.04, 80, 0.02, 5.0),
        ("online", 10, 0.01, 0.05, 80, 0.02, 9.0),
        ("EP", 0, 0.025, 0.07, 48, 0.5, 0.1),
    ]
    rows = [dict(zip(names, row, strict=True)) for row in cells]
    console = Console(width=300, file=io.StringIO())
    tour = demo.Tour(tmp_path, 1, 1, 0, console, progress=False, tables=True)
    show(tour, rows, tmp_path / "a.png")
    *table, sentence = console.file.getvalue().strip().splitlines()
    assert sum("│" in line for line in table) == 5
    assert sentence == (
        "10 trained draws predict like all 10,000 within 0.0080 on average (0.0500 if they are not "
        "trained, and 0.0250 by EP), in 80 bytes where all draws take 80,000, and 1,500 times "
        f"faster, both as plain matrix products. The picture is in {tmp_path / 'a.png'}."
    )
