r"""Two runs never mix in one folder, and a killed one leaves no lock behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import limbeck as lb
from limbeck.cli.folder import folder_lock
from limbeck.errors import LimbeckError
from limbeck.storage.files import read_tensors
from tests.refusals import refused

SOURCE = str(Path(lb.__file__).parents[1])
WORDS = ("normalize", "rbm.npz", "--chains", "50", "--burn-in", "20", "--engine", "eager")
WORDS = (*WORDS, "--no-verdicts", "--steps", "300", "--checkpoint-seconds")
LOCK, CHECKPOINT = ".run.lock", Path("out/checkpoint/loop/manifest.json")


def started(*words):
    r"""A real process at work, once it has written its first checkpoint."""
    command = [sys.executable, "-m", "limbeck.cli", *words]
    threads = str(torch.get_num_threads())  # the bits of sums are those of as many threads
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": threads}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not CHECKPOINT.exists() and process.poll() is None:
        time.sleep(0.01)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--seed", "3", "--overwrite")], ids=len)
def test_the_second_of_two_processes_is_refused(here, refused, more):
    process = started(*WORDS, "0.05", "--out", "out")
    try:
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)  # it holds its lock for as long as this takes
        before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
        line = refused(*WORDS, "0.05", "--out", "out", *more)
        assert line == (
            "--out: another run is using out; wait for it, stop it, or choose another folder "
            "with --out"
        )
        assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_a_killed_run_is_gone_on_with(here, limbeck):
    process = started(*WORDS, "0.05", "--out", "out")
    process.kill()
    process.communicate()
    assert Path("out", LOCK).exists()
    resumed = limbeck(*WORDS, "9", "--out", "out")
    assert resumed.code == 0, resumed.err
    assert "continuing after step" in resumed.err
    assert not Path("out", LOCK).exists()
    assert limbeck(*WORDS, "9", "--out", "whole").code == 0
    one, two = (read_tensors(Path(name, "student.safetensors"))[0] for name in ("out", "whole"))
    assert all((one[name] == two[name]).all() for name in two)


def test_only_one_is_within_and_nothing_is_left(here):
    with folder_lock(Path("out")):
        with (
            pytest.raises(LimbeckError, match="another run is using out"),
            folder_lock(Path("out")),
        ):
            raise AssertionError
        with folder_lock(Path("other")):
            assert Path("other", LOCK).exists()
    assert not Path("out").exists()
    assert not Path("other").exists()
    with folder_lock(Path("out")):
        Path("out/mine").write_text("")
    assert [path.name for path in Path("out").iterdir()] == ["mine"]


def test_an_error_within_unlocks(here):
    with pytest.raises(ZeroDivisionError), folder_lock(Path("out")):
        raise ZeroDivisionError
    with folder_lock(Path("out")):
        pass


def test_a_file_is_no_folder(here):
    with refused("--out", "x.npy, which cannot be written to"), folder_lock(Path("x.npy")):
        raise AssertionError
    assert Path("x.npy").is_file()
