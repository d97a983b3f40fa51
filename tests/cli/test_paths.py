r"""Paths that are wrong are told of, with what was perhaps meant, before anything runs."""

from pathlib import Path

import numpy as np
import pytest

from limbeck.cli.errors import state

MISSING = {
    "compress": (("compress", "models:teacher", "trian.csv"), "train.csv"),
    "condense": (
        ("condense", "draw.npz", "--predict", "logistic", "--inputs", "x.npy"),
        "draws.npz",
    ),
    "inputs": (("condense", "draws.npz", "--predict", "logistic", "--inputs", "X1.npy"), None),
    "normalize": (("normalize", "rmb.npz"), "rbm.npz"),
    "logz": (("logz", "rbm2.npz"), "rbm.npz"),
    "info": (("info", "tets.csv"), "test.csv"),
}


@pytest.mark.parametrize("command", MISSING)
def test_what_is_not_there_and_what_was_perhaps_meant(refused, here, command):
    words, meant = MISSING[command]
    before = set(Path().iterdir())
    line = refused(*words)
    assert "which is not there" in line
    assert (f"(did you mean {meant}?)" in line) == (meant is not None)
    assert set(Path().iterdir()) == before


def test_a_state_in_words(here):
    assert state(Path()) == "a folder"
    assert state(Path("x.npy"), "folder") == "a file"
    assert state(Path("sub/train.csv")) == "which is not there"
    Path("sub").mkdir()
    Path("sub/train.csv").write_text("")
    assert state(Path("sub/tran.csv")) == "which is not there (did you mean sub/train.csv?)"


@pytest.mark.parametrize("name", ["garbage.npz", "garbage.npy"])
def test_what_is_no_array_is_never_taken_for_a_pickle(refused, here, name):
    Path(name).write_bytes(b"hello, world")
    line = refused("compress", "models:teacher", name)
    assert "no file that NumPy wrote" in line
    assert "pickle" not in line
    if name.endswith("npz"):
        assert "which is no npz file" in refused("normalize", name)


def test_an_empty_npz_file_is_still_one(refused, here):
    np.savez("empty.npz")
    assert "with nothing" in refused("compress", "models:teacher", "empty.npz")


def test_where_a_student_cannot_go_is_said_before_the_run(refused, here):
    words = ("condense", "draws.npz", "--predict", "logistic", "--inputs", "x.npy", "--export")
    line = refused(*words, "bag.docx")
    assert line.startswith("--export: expected .*, got bag.docx")
    assert not Path("limbeck-condense").exists()
