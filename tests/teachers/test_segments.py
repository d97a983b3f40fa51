r"""Rows on disk under keys: whole or not there, by any number of writers, and found again."""

import errno
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import limbeck as lb
from limbeck.storage import disk
from limbeck.teachers.cache import META, ROWS, TeacherCache
from limbeck.teachers.keys import row_keys
from tests.refusals import raises_about


def opened(folder, outputs=3):
    return TeacherCache(folder).answers("teacher", (outputs,))


def inputs(numbers):
    return row_keys(np.asarray(numbers, np.float64)[:, None])


def rows(numbers, outputs=3):
    return np.outer(numbers, np.arange(1, outputs + 1)).astype(float)


def write(store, numbers):
    store.put(inputs(numbers), rows(numbers))


def listed(store):
    return sorted(path.name for path in store.folder.iterdir())


@pytest.fixture
def store(tmp_path):
    store = opened(tmp_path)
    for numbers in ([1, 2, 3], [10, 20], [4]):
        write(store, numbers)
    return store


def test_rows_come_back_in_the_order_asked_for(store):
    found, values = store.get(inputs([20, 7, 4, 1, 20, -3]))
    assert found.tolist() == [True, False, True, True, True, False]
    assert np.array_equal(values, rows([20, 4, 1, 20]))


def test_an_empty_or_missing_folder_has_nothing(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        found, values = opened(folder).get(inputs([1, 2]))
        assert not found.any()
        assert values.shape == (0, 3)
    assert not (tmp_path / "none").exists()


def test_a_reader_sees_what_others_write_later(store, tmp_path):
    reader = opened(tmp_path)
    assert reader.get(inputs([5]))[0].tolist() == [False]
    write(store, [5])
    assert reader.get(inputs([5]))[0].tolist() == [True]


def test_the_first_of_two_answers_stays(store):
    store.put(inputs([1]), rows([99]))
    assert np.array_equal(store.get(inputs([1]))[1], rows([1]))


def test_keys_with_the_same_first_half_are_not_taken_for_each_other(tmp_path):
    store = opened(tmp_path)
    keys = np.array([[7, 1], [7, 2], [7, 3], [8, 1]], np.uint64)
    store.put(keys, rows([1, 2, 3, 4]))
    asked = np.array([[7, 3], [7, 9], [7, 1], [8, 1], [9, 1], [7, 2]], np.uint64)
    found, values = store.get(asked)
    # of the three that share their first half one is found; the others are computed again
    assert found.tolist() == [False, False, True, True, False, False]
    assert np.array_equal(values, rows([1, 4]))


def test_nothing_is_left_behind_by_a_write(store):
    assert listed(store) == [META, ROWS]


def test_a_write_that_fails_leaves_what_was_there_and_says_so(store, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(lb.CheckpointError, match="No space left on device"):
            write(store, [8, 9])
    assert listed(store) == [META, ROWS]
    known, values = opened(store.folder.parent).get(inputs([8, 4, 9, 1]))
    assert known.tolist() == [False, True, False, True]
    assert np.array_equal(values, rows([4, 1]))
    write(store, [9])
    assert np.array_equal(store.get(inputs([9, 4]))[1], rows([9, 4]))


def test_what_killed_writers_have_left_is_replaced(store):
    pending = store.folder / disk.pending_name(META, "0" * 12, "tmp")
    pending.write_text("{")
    with open(store.folder / ROWS, "ab") as file:
        file.write(b"half of a row")
    assert np.array_equal(store.get(inputs([4]))[1], rows([4]))
    write(store, [5])
    assert listed(store) == [META, ROWS]
    assert np.array_equal(opened(store.folder.parent).get(inputs([5, 4]))[1], rows([5, 4]))


def test_a_writer_waits_for_another(store, monkeypatch):
    monkeypatch.setattr("limbeck.teachers.cache.LOCK_SECONDS", 0.05)
    with disk.lock(store.folder / META):
        with pytest.raises(lb.CheckpointError, match="is locked by another process"):
            write(store, [5])
        assert store.get(inputs([1]))[0].all()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-2] ^= 64
    path.write_bytes(data)


def foreign(path):
    path.write_bytes(b"PK\x03\x04 something else altogether")


def other_array(path):
    with open(path, "wb") as file:
        np.save(file, np.zeros((5, 5)))


def pickled(path):
    path.write_bytes(pickle.dumps({"a": 1}) * 100)


def link_to_nowhere(path):
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def changed_key(path):
    data, size = bytearray(path.read_bytes()), path.stat().st_size // 6
    data[:16], data[size : size + 16] = data[size : size + 16], data[:16]
    path.write_bytes(data)


def removed(path):
    path.unlink()


DAMAGE = [
    truncate, empty, flip, foreign, other_array, pickled, link_to_nowhere, changed_key, removed
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_with_the_name_of_the_file(store, damage, tmp_path):
    path = store.folder / ROWS
    damage(path)
    with raises_about(lb.CheckpointError, path.name):
        opened(tmp_path).get(inputs([1, 2, 3]))


@pytest.mark.parametrize("count", ["-1", '"6"', "null", "7"])
def test_a_wrong_number_of_rows_is_told(store, tmp_path, count):
    path = store.folder / META
    path.write_text(path.read_text().replace('"rows": 6', f'"rows": {count}'))
    for use in (lambda answers: answers.get(inputs([1])), lambda answers: write(answers, [9])):
        with pytest.raises(lb.CheckpointError, match=r"number of rows|too few for 7 rows"):
            use(opened(tmp_path))


def test_rows_of_another_shape_are_refused(store, tmp_path):
    other = TeacherCache(tmp_path / "other").answers("teacher", (4,))
    other.put(inputs(np.arange(9)), rows(np.arange(9), 4))
    (store.folder / ROWS).write_bytes((other.folder / ROWS).read_bytes())
    with pytest.raises(lb.CheckpointError, match=ROWS):
        opened(tmp_path).get(inputs([1]))


def test_files_that_are_not_ours_are_left_alone(store):
    (store.folder / "notes.txt").write_text("mine")
    np.save(store.folder / "mine.npy", np.zeros(3))
    write(store, [5])
    assert store.get(inputs([1, 5]))[0].all()
    assert listed(store) == [META, "mine.npy", "notes.txt", ROWS]


WRITER = """
import sys
import numpy as np
from limbeck.teachers import cache
from limbeck.teachers.keys import row_keys

folder, start = sys.argv[1], int(sys.argv[2])
store = cache.TeacherCache(folder).answers("teacher", (3,))
numbers = np.concatenate([np.arange(20), np.arange(start, start + 20)])  # shared, and its own
print("ready", flush=True)
sys.stdin.readline()
for number in numbers:
    values = np.outer([number], [1, 2, 3])
    store.put(row_keys(np.array([[float(number)]])), values)
    asked = numbers[: 1 + np.flatnonzero(numbers == number)[0]].astype(float)
    assert store.get(row_keys(asked[:, None]))[0].all()
"""


@pytest.mark.slow
def test_processes_write_at_the_same_time_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "shared"
    environment = os.environ | {"PYTHONPATH": str(Path(lb.__file__).parents[1])}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, folder, str(start)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for start in (1000, 2000)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    reader, seen = opened(folder), 0
    numbers = np.concatenate([np.arange(k, k + 20) for k in (0, 1000, 2000)])
    while any(writer.poll() is None for writer in writers):
        found, values = reader.get(inputs(numbers))
        assert np.array_equal(values, rows(numbers[found]))
        assert found.sum() >= seen  # what was there once does not go away
        seen = found.sum()
        time.sleep(0.05)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    found, values = opened(folder).get(inputs(numbers))
    assert found.all()
    assert np.array_equal(values, rows(numbers))
