r"""Options in TOML files: what is written is read back, and repeats the run."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import limbeck as lb
from limbeck.cli.options import to_toml

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3),
)

RUNS = {
    "compress": ("models:teacher", "train.csv", "--drop", "y", "--student", "8", "--inputs",
                 "munge", "--pool", "100", "--steps", "40", "--no-timing", "--no-verdicts"),
    "condense": ("draws.npz", "--predict", "models:predict", "--inputs", "x.npy", "--components",
                 "3", "--steps", "40", "--no-verdicts"),
    "normalize": ("rbm.npz", "--hidden", "4", "--steps", "40", "--chains", "50", "--burn-in",
                  "20", "--lr", "0.01"),
    "logz": ("rbm.npz", "--method", "bridge", "--steps", "40", "--samples", "200", "--burn-in",
             "50", "--no-verdicts"),
}  # fmt: skip


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), VALUES, max_size=5))
def test_what_is_written_is_read_back(options):
    text = to_toml("compress", options)
    found = tomllib.loads(text)
    assert found.pop("command", None) == options.get("command", "compress")
    assert found == {name: value for name, value in options.items() if name != "command"}


def told(folder):
    r"""All that a result says of what was found, without times."""
    found = json.loads((Path(folder) / "result.json").read_text())
    for timed in ("seconds", "command", "summary", "circumstances"):
        found.pop(timed)
    for estimate in found.get("log_z", []):
        estimate.pop("seconds")
    found.get("agreement", {}).pop("seconds", None)
    return found


@pytest.mark.parametrize("verb", RUNS)
def test_the_written_file_repeats_the_run(limbeck, here, verb):
    first = limbeck(verb, *RUNS[verb], "--seed", "5", "--out", "one")
    assert first.code == 0, first.err
    again = limbeck(verb, "--config", "one/config.toml", "--out", "two")
    assert again.code == 0, again.err
    assert told("one") == told("two")
    one, two = (lb.storage.files.read_tensors(Path(folder) / "student.safetensors")[0]
                for folder in ("one", "two"))  # fmt: skip
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    written = tomllib.loads(Path("two/config.toml").read_text())
    assert written.pop("out") == "two"
    assert written.pop("seed") == 5
    assert written.items() <= tomllib.loads(Path("one/config.toml").read_text()).items()


def test_the_command_that_is_kept_repeats_the_run(limbeck, here):
    limbeck("compress", *RUNS["compress"], "--seed", "5", "--out", "one")
    line = json.loads(Path("one/result.json").read_text())["command"]
    assert line.startswith("limbeck compress models:teacher train.csv ")
    assert "--no-timing" in line
    before = told("one")
    assert limbeck(*line.split()[1:]).code == 0
    assert told("one") == before


def test_the_command_line_wins_over_the_file(limbeck, here):
    Path("mine.toml").write_text('target = "rbm.npz"\nmethod = "exact"\nburn-in = 3\nseed = 8\n')
    found = limbeck("logz", "--config", "mine.toml", "--seed", "9", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["seed"] == 9
    written = tomllib.loads(Path("limbeck-logz/config.toml").read_text())
    assert (written["method"], written["burn_in"], written["seed"]) == ("exact", 3, 9)


def test_every_option_is_in_the_written_file(limbeck, here):
    limbeck("logz", "rbm.npz")
    text = Path("limbeck-logz/config.toml").read_text()
    for name in ("target", "method", "thin", "seed", "device", "out", "require", "json"):
        assert f"\n{name} = " in text
    for name in ("proposal", "chains", "start"):
        assert f"\n# {name}: default" in text


def test_files_that_do_not_fit_are_refused(refused, here):
    for text, said in (
        ("stesp = 3\n", r"did you mean 'steps'\?"),
        ('command = "compress"\n', "it is for limbeck compress"),
        ("[steps]\nmany = 3\n", "steps: expected a whole number .*, got a dict"),
        ("steps = \n", "cannot be read"),
        ('target = "rbm.npz"\nsamples = "many"\n', "samples: expected a whole number"),
    ):
        Path("mine.toml").write_text(text)
        assert re.search(said, refused("logz", "--config", "mine.toml"))
    assert "which does not exist" in refused("logz", "--config", "none.toml")
    assert "a folder" in refused("logz", "--config", ".")


def test_an_export_is_where_the_options_say(limbeck, here):
    words = ("compress", *RUNS["compress"], "--export", "small.npz", "--out", "one")
    assert limbeck(*words).code == 0
    before = Path("small.npz").read_bytes()
    again = ("compress", "--config", "one/config.toml", "--seed", "7", "--out", "two")
    assert limbeck(*again, "--export", "mine.npz").code == 0
    assert Path("small.npz").read_bytes() == before != Path("mine.npz").read_bytes()
    found = limbeck(*again)
    assert found.code == 0, found.err
    assert "The student is in small.npz" in found.out
    assert Path("small.npz").read_bytes() == Path("mine.npz").read_bytes()
