r"""The whole of the command line: help, options that are not there, how it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import limbeck as lb
from limbeck import cli
from limbeck.cli.command import FAULT

SOURCE = str(Path(lb.__file__).parents[1])
COMMANDS = (
    "compress", "condense", "normalize", "logz", "report", "export", "info",
)  # fmt: skip


def test_help_names_the_commands(limbeck):
    found = limbeck("--help")
    assert found.code == 0
    assert "cumbersome model" in found.out
    for command in COMMANDS:
        assert f" {command} " in found.out


def test_without_a_command_there_is_help_and_nothing_else(limbeck):
    found = limbeck()
    assert found.code == 2
    assert "Usage: limbeck" in found.out
    assert not found.err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(limbeck, command):
    found = limbeck(command, "--help")
    assert found.code == 0
    assert f"Usage: limbeck {command}" in found.out
    assert "--debug" in found.out
    assert ("--require" in found.out) == ("recall[fraud]=0.9" in found.out)  # not taken as markup


def test_the_version_is_limbecks(limbeck):
    assert limbeck("--version").out == f"limbeck {lb.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inof",), "Did you mean 'info'? (see limbeck --help)"),
        (("normalize", "--stesp", "3"), "No such option: --stesp (Possible options: "),
        (("compress", "a:b", "c.csv", "--lable", "y"), "(Possible options: --classes, --label)"),
        (("info", "--qqqq"), "No such option: --qqqq (see limbeck info --help)"),
        (("normalize", "x.npz", "--steps", "x"), "'--steps'"),
        (("compress", "a:b"), "Missing argument 'data'"),
        (("logz", "rbm.npz", "--samples", "0"), "'--samples'"),
    ],
)
def test_what_is_not_understood_is_one_line(refused, words, said):
    assert said in refused(*words)


def test_a_fault_of_limbecks_own_is_exit_code_one(limbeck, monkeypatch):
    def broken(**options):
        raise ZeroDivisionError("divided by zero")

    monkeypatch.setattr(cli, "app", broken)
    found = limbeck()
    assert found.code == FAULT
    assert "unexpected ZeroDivisionError: divided by zero" in found.err
    assert "Traceback" not in found.err


def test_a_pipe_that_is_closed_ends_it_quietly():
    command = [sys.executable, "-m", "limbeck.cli", "compress", "--help"]
    environment = os.environ | {"PYTHONPATH": SOURCE}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_traceback_is_shown_if_asked_for(limbeck, here):
    words = ("compress", "models:failing", "train.csv", "--label", "y", "--task", "regression")
    plain, full = limbeck(*words), limbeck(*words, "--debug")
    assert plain.code == full.code == 2
    assert "Traceback" not in plain.err
    assert "Traceback" in full.err
    assert full.err.endswith(plain.err)
    assert "no such luck" in plain.err


def test_a_full_pipe_ends_quietly(here):
    shell = f"{sys.executable} -m limbeck.cli compress --help | head -n 1"
    environment = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run(shell, shell=True, env=environment, capture_output=True, text=True)
    assert not done.stderr


def test_a_warning_is_a_line(monkeypatch, capsys):
    import warnings

    def app(**_):
        warnings.simplefilter("always")
        warnings.warn("the chains\nare few", stacklevel=1)

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "limbeck: note: the chains are few\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['limbeck', '--help']\n"
        "from limbeck.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(' '.join(sys.modules), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found = set(done.stderr.split())
    assert "typer" in found
    assert not found & {"torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib"}
