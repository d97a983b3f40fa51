r"""Ctrl-C keeps a checkpoint and says how to continue; the same command again continues."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck.cli.command import interrupt_after_step
from limbeck.cli.files import load_object
from limbeck.cli.folder import is_unfinished
from limbeck.storage import checkpoints
from limbeck.storage.files import read_tensors

SOURCE = str(Path(lb.__file__).parents[1])
STUDENT, LOOP = "student.safetensors", Path("out/checkpoint/loop")

INTERRUPTING = """
import signal
import torch
import limbeck as lb

calls = {"count": 0, "at": None}


class Net(torch.nn.Module):
    output_form = "logits"

    def __init__(self):
        super().__init__()
        self.net = lb.MLP(3, 8, 2, generator=torch.Generator().manual_seed(1))

    def forward(self, x):
        calls["count"] += 1
        if calls["count"] == calls["at"]:
            signal.raise_signal(signal.SIGINT)
        return self.net(x)


net = Net()
"""


@pytest.fixture(autouse=True)
def usual_signal():
    r"""Ctrl-C as a terminal has it, also where tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def student(folder):
    return read_tensors(Path(folder) / STUDENT)[0]


def assert_same(one, two):
    one, two = student(one), student(two)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def content(folder):
    return json.loads(Path(folder, "result.json").read_text())


@pytest.fixture
def calls(here):
    r"""When the teacher interrupts the run: at which of its calls."""
    Path("tricky.py").write_text(INTERRUPTING)
    return load_object("tricky:calls", "teacher")


@pytest.fixture
def words(here):
    return (
        "compress", "tricky:net", "train.csv", "--drop", "y", "--student", "8", "--inputs",
        "munge", "--batch-size", "60", "--steps", "100", "--engine", "eager", "--no-timing",
        "--no-verdicts",
    )  # fmt: skip


def test_within_a_step_it_waits_for_the_end_of_it(limbeck, calls, words):
    assert limbeck(*words, "--out", "whole").code == 0
    calls.update(count=0, at=70)
    stopped = limbeck(*words, "--out", "out")
    assert stopped.code == 130
    assert not stopped.out
    (line,) = stopped.err.splitlines()
    assert line.endswith(
        "run the same command again to continue, or: limbeck compress --config out/config.toml"
    )
    done = checkpoints.read(LOOP).about["done"]
    assert 0 < done < 100
    assert f"stopped after step {done:,}" in line
    assert {path.name for path in Path("out").iterdir()} == {
        "checkpoint", "config.toml", "digests.json", "manifest.json",
    }  # fmt: skip
    calls.update(at=None)
    resumed = limbeck("compress", "--config", "out/config.toml")
    assert resumed.code == 0, resumed.err
    assert f"continuing after step {done:,}" in resumed.err
    assert_same("out", "whole")
    assert not is_unfinished(Path("out"))
    assert not Path("out/checkpoint").exists()


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(
    "choice",
    [
        ("--student", "auto", "--inputs", "munge", "--keep", "1.0", "--max-bytes", "700"),
        ("--student", "8", "--inputs", "auto"),
    ],
    ids=["student", "inputs"],
)  # fmt: skip
def test_what_is_tried_is_gone_on_with_too(limbeck, calls, choice, fraction):
    np.save("many.npy", np.random.default_rng(1).normal(size=(300, 3)).astype("float32"))
    words = (
        "compress", "tricky:net", "many.npy", *choice,
        "--steps", "60", "--engine", "eager", "--no-timing", "--no-verdicts",
    )  # fmt: skip
    calls.update(count=0)
    assert limbeck(*words, "--out", "whole").code == 0
    every, before = calls["count"], content("whole")
    assert len(before["tried"]) > 1
    calls.update(count=0, at=round(fraction * every))
    stopped = limbeck(*words, "--out", "out")
    assert stopped.code == 130, stopped.err
    assert "run the same command again to continue" in stopped.err
    calls.update(count=0, at=None)
    resumed = limbeck(*words, "--out", "out")
    assert resumed.code == 0, resumed.err
    assert "continuing after step" in resumed.err
    assert calls["count"] < every - 60 * (fraction - 0.2)  # what was done is not done again
    assert_same("out", "whole")
    assert content("out")["tried"] == before["tried"]


def test_before_the_first_step_nothing_is_kept(limbeck, calls, words):
    calls.update(count=0, at=1)
    stopped = limbeck(*words, "--out", "out")
    assert stopped.code == 130
    assert "nothing was written" in stopped.err
    assert not Path("out").exists()


def test_an_unfinished_run_is_recognised(limbeck, refused, calls, words):
    calls.update(count=0, at=70)
    assert limbeck(*words, "--out", "out").code == 130
    assert "an unfinished result of limbeck compress" in limbeck("info", "out").out
    assert "whose run is unfinished" in refused("report", "out")
    assert "steps was 100 and is 300" in refused(*words, "--out", "out", "--steps", "300")
    with open("train.csv", "a") as file:
        file.write("1,2,3,up\n")
    assert "since which train.csv has changed" in refused(*words, "--out", "out")
    anew = limbeck(*words, "--out", "out", "--overwrite")
    assert anew.code == 0
    assert "continuing" not in anew.err


def test_without_a_folder_named_the_same_command_finds_its_own(limbeck, refused, calls, words):
    calls.update(count=0, at=70)
    assert limbeck(*words).code == 130
    assert is_unfinished(Path("limbeck-compress"))
    assert "seed was 0 and is 1" in refused(*words, "--seed", "1")
    resumed = limbeck(*words)
    assert resumed.code == 0
    assert "continuing after step" in resumed.err
    assert not is_unfinished(Path("limbeck-compress"))
    assert "seed was 0 and is 1" in refused(*words, "--seed", "1")


def test_repeating_keeps_the_old_result_until_the_new_one_is_whole(limbeck, calls, words):
    assert limbeck(*words, "--out", "out").code == 0
    before = Path("out/result.json").read_text()
    pytest.importorskip("jinja2")
    assert limbeck("report", "out").code == 0
    Path("out/notes.txt").write_text("mine")
    calls.update(count=0, at=70)
    assert limbeck(*words, "--out", "out").code == 130
    assert Path("out/result.json").read_text() == before
    assert Path("out/report.html").exists()
    assert limbeck(*words, "--out", "out").code == 0
    assert not Path("out.unfinished").exists()
    assert not Path("out/report.html").exists()
    assert Path("out/notes.txt").read_text() == "mine"


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_without_a_run_it_is_immediate(number):
    outside = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)  # it may be ignored here, as under nohup
    try:
        with pytest.raises(KeyboardInterrupt), interrupt_after_step():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, outside)


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interrupt_after_step():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_real_interruption_of_a_real_process(limbeck, here, number):
    words = ("normalize", "rbm.npz", "--chains", "50", "--burn-in", "20", "--engine", "eager")
    words = (*words, "--steps", "500")
    often = ("--checkpoint-seconds", "0.05", "--out", "out")
    command = [sys.executable, "-m", "limbeck.cli", *words, *often]
    threads = str(torch.get_num_threads())  # the bits of sums are those of as many threads
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": threads}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # nohup would ignore one
    )  # fmt: skip
    while not (LOOP / "manifest.json").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == 130, said
    assert "run the same command again to continue" in said
    assert is_unfinished(Path("out"))
    assert 0 < checkpoints.read(LOOP).about["done"] < 500
    assert limbeck(*words, "--out", "out").code == 0
    assert limbeck(*words, "--out", "whole").code == 0
    assert_same("out", "whole")
    one, two = content("out"), content("whole")
    assert np.array_equal(one["history"]["loss"], two["history"]["loss"])
