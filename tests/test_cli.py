r"""The command line: what it prints, and how it fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import limbeck as lb
from limbeck import cli

SOURCE = str(Path(lb.__file__).parents[1])


def run(*arguments):
    return CliRunner().invoke(cli.app, arguments)


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["limbeck", *arguments])
    cli.main()


@pytest.mark.parametrize(
    "arguments", [("--help",), ("demo", "--help"), ("info", "--help"), ("reproduce", "--help")]
)
def test_help_is_there(arguments):
    result = run(*arguments)
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_help_names_the_commands():
    output = run("--help").output
    assert "cumbersome model" in output
    for command in ("demo", "info", "reproduce"):
        assert command in output


def test_info_shows_versions_and_devices():
    result = run("info")
    assert result.exit_code == 0
    shown = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert shown["limbeck"] == lb.__version__
    assert shown["torch"] == torch.__version__
    assert int(shown["threads"]) == torch.get_num_threads()
    assert (shown["gpu"] == "none") == (not torch.cuda.is_available())


@pytest.fixture(scope="module")
def demo():
    return run("demo", "--steps", "30", "--members", "2", "--json", "--quiet")


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


def test_an_unknown_part_of_the_demo_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        main(monkeypatch, "demo", "normalise")
    assert caught.value.code == 2
    assert "did you mean 'normalize'?" in capsys.readouterr().err


def test_reproduction_says_what_it_lacks(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("LIMBECK_DATA", raising=False)
    for arguments, said in (
        (("reproduce", "chapter-9"), "'chapter-4'"),
        (("reproduce", "chapter-4"), "LIMBECK_DATA"),
        (("reproduce", "chapter-4", "--data", str(tmp_path)), "rbm_cd25_500.npz"),
        (("reproduce", "chapter-2"), "LIMBECK_DATA"),
        (("reproduce", "chapter-2", "--data", str(tmp_path)), "train-images-idx3-ubyte"),
        (("reproduce", "chapter-2", "--hidden", "5"), "chapter-2, which takes seeds, cells"),
        (("reproduce", "chapter-4", "--cells", "mnist-*"), "cells: got ['mnist-*']"),
        (("reproduce", "chapter-2", "--cells", "mnist-a"), "did you mean 'mnist-all-ce'?"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(monkeypatch, *arguments, "--out", str(tmp_path / "out"))
        assert caught.value.code == 2
        assert said in capsys.readouterr().err


def test_the_table_of_the_demo_ends_with_one_sentence(capsys):
    from rich.console import Console

    from limbeck.demo.compression import Row, show

    def row(model, images, agreement, parameters=100):
        return Row(model, images, 0.9, -0.1, agreement, parameters, 1.0)

    rows = [row("teacher", 1000, 1.0, 2500)]
    rows += [row(f"student {i}", 1000, 0.96) for i in range(4)]
    rows += [row(f"student {i}", 100, share) for i, share in enumerate((0.8, 0.9, 0.85, 0.7))]
    show(rows, Console(width=300))
    *table, sentence = capsys.readouterr().out.strip().splitlines()
    assert sum("student" in line for line in table) == 8
    assert sentence == (
        "From 100 images without labels, a net 25 times smaller than its teacher agrees with it "
        "on 85.0% of the test images if it matches predictions and derivatives, and on 80.0% if it "
        "matches predictions alone; trained on the labels of those images, on 70.0%."
    )


def test_a_users_error_is_one_line_and_exit_code_two(monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        main(monkeypatch, "demo", "--members", "0", "--quiet")
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("limbeck: members: got 0; accepted:")


def test_any_other_error_is_not_hidden(monkeypatch):
    def broken():
        raise ZeroDivisionError("a fault of limbeck's own")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(ZeroDivisionError):
        main(monkeypatch)


@pytest.mark.parametrize(
    "arguments", [("dmeo",), ("demo", "--stesp", "3"), ("demo", "--steps", "x")]
)
def test_what_is_not_understood_is_exit_code_two(monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(monkeypatch, *arguments)
    assert caught.value.code == 2
    assert "Usage:" in capsys.readouterr().err


def imports(code):
    r"""The modules that some code imports in an interpreter of its own."""
    code += "; import sys; print('\\n'.join(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_file_of_the_command_line_needs_no_torch():
    found = imports(f"import runpy; runpy.run_path({cli.__file__!r})")
    assert typer.__name__ in found
    assert "torch" not in found


def test_importing_the_command_line_does_not_import_torch():
    found = imports("import limbeck.cli")
    assert "limbeck.cli" in found
    assert "torch" not in found
