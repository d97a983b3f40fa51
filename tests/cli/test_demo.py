r"""`limbeck demo`: what it prints, and what it refuses."""

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from limbeck import cli


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("demo"))
    arguments = ("demo", "--steps", "30", "--members", "2", "--json", "--quiet", "--out", out)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "posterior: R̂")  # of thirty steps, rightly
        return CliRunner().invoke(cli.app, arguments)


@pytest.mark.slow
def test_the_demo_prints_rows_of_json(demo):
    assert demo.exit_code == 0, demo.output
    rows = json.loads(demo.stdout)["compress"]
    models = [row["model"] for row in rows]
    assert models[0] == "teacher"
    assert models[1:5] == models[5:]
    assert len(set(models[1:5])) == 4
    assert [row["images"] for row in rows] == [1297] * 5 + [129] * 4


def test_the_numbers_of_the_demo_are_sane(demo):
    teacher, *students = json.loads(demo.stdout)["compress"]
    assert teacher["agreement"] == 1.0
    assert teacher["accuracy"] > 0.9
    assert teacher["parameters"] == 2 * sum(
        (i + 1) * o for i, o in [(64, 200), (200, 100), (100, 10)]
    )
    for row in students:
        assert row["parameters"] == 65 * 38 + 39 * 10
        assert 0.15 < row["accuracy"] <= 1  # above chance, after thirty steps
        assert 0.15 < row["agreement"] <= 1
        assert -3 < row["log_probability"] < 0
        assert row["seconds"] > 0


def test_the_demo_says_what_it_does_beside_the_json(demo):
    assert "Training a teacher: 2 nets 64-200-100-10" in demo.stderr
    assert "Distilling from 129 images" in demo.stderr
    assert "Training an RBM with 16 hidden units" in demo.stderr


def test_the_demo_finds_log_z(demo):
    found = json.loads(demo.stdout)["normalize"]
    exact, *estimates = found["estimates"]
    assert [z["method"] for z in found["estimates"]] == ["exact", "bridge", "importance", "ais"]
    assert exact["std_error"] == 0
    for z in estimates:  # after thirty steps they may be poor, but not confidently wrong
        assert abs(z["value"] - exact["value"]) < 5 * z["std_error"] or not z["trustworthy"]
    assert abs(estimates[0]["value"] - exact["value"]) < 0.2


def test_the_demo_writes_one_page_on_all_verbs(demo):
    where = demo.stderr.split("The report on all parts is ")[1].split(". Next")[0]
    page = Path("".join(where.split()))
    text = page.read_text(encoding="utf-8")
    for verb in ("compress", "condense", "normalize"):
        assert (page.parent / verb / "result.json").exists()
        assert f"limbeck demo {verb}" in text
    assert "lies inside its 95% interval" in text or "lies outside its 95% interval" in text
    assert "limbeck logz rbm.npz" in text


def test_an_unknown_part_of_the_demo_is_refused(refused):
    assert "did you mean 'normalize'?" in refused("demo", "normalise")


def test_a_bad_number_is_refused(limbeck):
    found = limbeck("demo", "compress", "--members", "0", "--quiet")
    assert found.code == 2
    (line,) = found.err.splitlines()
    assert line.startswith("limbeck: Invalid value for '--members': ")


def test_the_table_of_the_demo_ends_with_one_sentence(capsys):
    from rich.console import Console

    from limbeck.demo import Tour, show_compression

    def row(model, images, agreement, parameters=100):
        return {
            "model": model, "images": images, "accuracy": 0.9, "log_probability": -0.1,
            "agreement": agreement, "parameters": parameters, "seconds": 1.0,
        }  # fmt: skip

    rows = [row("teacher", 1000, 1.0, 2500)]
    rows += [row(f"student {i}", 1000, 0.96) for i in range(4)]
    rows += [row(f"student {i}", 100, share) for i, share in enumerate((0.8, 0.9, 0.85, 0.7))]
    console = Console(width=300)
    show_compression(Tour(Path(), 1, 1, 0, console, progress=False, tables=True), rows)
    *table, sentence = capsys.readouterr().out.strip().splitlines()
    assert sum("student" in line for line in table) == 8
    assert sentence == (
        "From 100 images without labels, a net 25 times smaller than its teacher agrees with it "
        "on 85.0% of the test images if it matches predictions and derivatives, and on 80.0% if it "
        "matches predictions alone; trained on the labels of those images, on 70.0%."
    )


@pytest.mark.parametrize("wrong", [("--steps", "0"), ("--members", "0"), ("--seed", "-1")], ids=str)
def test_numbers_that_make_no_sense_are_refused(limbeck, tmp_path, wrong):
    found = limbeck("demo", "condense", *wrong, "--out", tmp_path / "demo")
    assert found.code == 2
    assert f"Invalid value for '{wrong[0]}'" in found.err
    assert not (tmp_path / "demo").exists()
