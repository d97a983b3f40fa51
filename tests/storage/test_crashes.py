r"""A save that fails or dies at any operation leaves the old version or the new one, whole."""

import itertools
import random
import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import storage
from limbeck.cli.folder import Folder, is_unfinished
from limbeck.storage import checkpoints, disk
from limbeck.teachers.cache import TeacherCache
from tests.faults import Killed, crash_points, faulty_disk, killed
from tests.storage.writers import WRITERS, load_command, save_command

CASES = [(name, before) for name in WRITERS for before in (True, False)]
SLOW = [("page", False), ("page", True), ("command", True), ("command", False)]


@pytest.mark.parametrize(
    ("name", "before"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES],
)
def test_every_crash_point(tmp_path, name, before):
    assert crash_points(WRITERS[name], tmp_path, before) >= 5


def save_before(out, before):
    r"""What is there before a command with other settings and --overwrite."""
    if before == "a result":
        save_command(out, 0)
    if before == "an unfinished run":
        work = Folder(out, "logz", {"target": "rbm.npz", "steps": 0})
        checkpoints.write(work.checkpoint / "loop", 2, {"w": torch.zeros(2)}, {}, None)


@pytest.mark.parametrize(
    ("before", "kill"),
    [
        ("nothing", True),
        ("a result", True),
        ("an unfinished run", True),
        pytest.param("a result", False, marks=pytest.mark.slow),
    ],
)
def test_a_command_is_never_refused_after_a_crash(tmp_path, before, kill):
    r"""With --overwrite it starts again; without, it resumes, or repeats its own result."""
    options, ends = {"target": "rbm.npz", "steps": 1}, set()
    with faulty_disk():
        save_before(tmp_path / "before" / "out", before)
        save_command(tmp_path / "after" / "out", 1)
    whole = {"version 1": load_command(tmp_path / "after" / "out")}
    if before == "a result":
        whole["version 0"] = load_command(tmp_path / "before" / "out")
    for at in itertools.count(1):
        out = tmp_path / str(at) / "out"
        if before != "nothing":
            shutil.copytree(tmp_path / "before", out.parent)
        with faulty_disk(at, kill) as faulty, suppress(Killed, lb.LimbeckError, OSError):
            save_command(out, 1)
        if faulty.count < at:
            break
        if before == "a result" or (out.exists() and not is_unfinished(out)):
            with suppress(lb.ArgumentError):  # one that is not there yet
                assert load_command(out) == whole[storage.read(out).content["title"]]
                ends.add(storage.read(out).content["title"])
        with faulty_disk():
            try:
                again = Folder(out, "logz", options)
                ends.add("resumed" if again.resumes else "repeated")
                assert "steps = 1" in (again.work / "config.toml").read_text()
            except lb.ArgumentError as error:  # the old one, of other settings, is still there
                assert "steps was 0 and is 1" in str(error)  # noqa: PT017
                ends.add("old")
            save_command(out, 1)
        assert load_command(out) == whole["version 1"]
        left = [path for path in out.parent.rglob("*") if path.is_dir() or disk.is_own(path.name)]
        assert left == [out]
    assert {"resumed", "repeated", *whole} <= ends


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "failed"])
def test_answers_of_a_teacher_survive(tmp_path, kill):
    keys, values = np.arange(8, dtype=np.uint64).reshape(4, 2), np.arange(8.0).reshape(4, 2)
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        with faulty_disk():
            TeacherCache(folder).answers("teacher", (2,)).put(keys[:2], values[:2])
        with faulty_disk(at, kill) as faulty, suppress(Killed, lb.CheckpointError):
            TeacherCache(folder).answers("teacher", (2,)).put(keys[2:], values[2:])
        if faulty.count < at:
            break
        known, found = TeacherCache(folder).answers("teacher", (2,)).get(keys)
        assert known[:2].all()
        np.testing.assert_array_equal(found, values[known])
        TeacherCache(folder).answers("teacher", (2,)).put(keys[2:], values[2:])
        np.testing.assert_array_equal(
            TeacherCache(folder).answers("teacher", (2,)).get(keys)[1], values
        )
    assert at > 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compressed", "checkpoint", "command", "nade"])
def test_a_process_is_killed_at_any_moment(tmp_path, name):
    draw = random.Random(name)
    for number in range(3):
        killed(name, WRITERS[name], tmp_path / str(number), draw)
