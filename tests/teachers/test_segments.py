r"""Rows on disk under keys: whole or not there, by any number of writers, and found again."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import limbeck as lb
from limbeck.teachers import cache as files
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
    return sorted(path.name for path in store.folder.iterdir() if path.name != META)


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
    assert len(store) == 6


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


def test_rows_are_mapped_not_loaded(store):
    store.get(inputs([1]))
    assert len(store._files) == 3
    for mapped in store._files.values():
        assert type(mapped) is np.memmap
        assert not mapped.flags.writeable


def test_the_index_is_built_once_for_the_same_files(store, monkeypatch):
    store.get(inputs([1]))
    monkeypatch.setattr(store, "_index", lambda files: pytest.fail("built again"))
    assert store.get(inputs([2, 3]))[0].all()


def test_the_first_of_two_answers_stays(store):
    store.put(inputs([1]), rows([99]))
    assert np.array_equal(store.get(inputs([1]))[1], rows([1]))
    assert len(store) == 6


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
    names = listed(store)
    assert len(names) == 3
    assert all(name.endswith(ROWS) for name in names)


def test_a_write_that_fails_leaves_nothing_and_says_so(store, monkeypatch):
    before = listed(store)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_about(lb.CheckpointError, "No space left on device"):
        write(store, [8, 9])
    assert listed(store) == before
    assert not store.get(inputs([8]))[0].any()


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
    np.save(path, np.zeros((5, 5)))


def pickled(path):
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def link_to_nowhere(path):
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def changed_key(path):
    stored = np.load(path)
    stored["key"][[0, 1]] = stored["key"][[1, 0]]
    np.save(path, stored)


DAMAGE = [truncate, empty, flip, foreign, other_array, pickled, changed_key]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_with_the_name_of_the_file(store, damage, tmp_path):
    path = store.folder / listed(store)[0]
    damage(path)
    with raises_about(lb.CheckpointError, path.name):
        opened(tmp_path).get(inputs([1, 2, 3]))


def test_a_link_that_leads_nowhere_does_not_hang_the_reader(store, tmp_path):
    link_to_nowhere(store.folder / listed(store)[0])
    with pytest.raises(lb.CheckpointError, match="do not stay"):
        opened(tmp_path).get(inputs([1]))


def test_rows_of_another_shape_are_refused(store, tmp_path):
    other = TeacherCache(tmp_path / "other").answers("teacher", (4,))
    other.put(inputs([1]), rows([1], 4))
    (store.folder / listed(store)[0]).write_bytes((other.folder / listed(other)[0]).read_bytes())
    with pytest.raises(lb.CheckpointError, match="and not rows of"):
        opened(tmp_path).get(inputs([1]))


def test_files_that_are_not_ours_are_named_or_left_alone(store):
    (store.folder / ".DS_Store").write_text("")
    (store.folder / "notes.txt").write_text("mine")
    assert store.get(inputs([1]))[0].all()
    np.save(store.folder / "mine.npy", np.zeros(3))
    with raises_about(lb.CheckpointError, "mine.npy"):
        store.get(inputs([1]))


def test_many_small_files_become_few(tmp_path, monkeypatch):
    most = 8
    monkeypatch.setattr(files, "MOST", most)
    store, reader = opened(tmp_path), opened(tmp_path)
    numbers = np.arange(1, 5 * most + 1)
    for number in numbers:
        write(store, [number])
        if number == most:
            assert len(listed(store)) == most
            assert reader.get(inputs(numbers[:most]))[0].all()
    assert len(listed(store)) <= most
    for some in (store, reader, opened(tmp_path)):
        found, values = some.get(inputs(numbers))
        assert found.all()
        assert np.array_equal(values, rows(numbers))
        assert len(some) == len(numbers)


def test_compaction_keeps_each_row_once(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 6)
    store = opened(tmp_path)
    write(store, np.arange(100, 120))  # too large to be merged
    for k in range(6):
        write(store, [1, 2, k + 10])
    sizes = [len(np.load(store.folder / name)) for name in listed(store)]
    assert sorted(sizes) == [3] * 2 + [2 + 4, 20]
    numbers = np.concatenate([[1, 2], np.arange(10, 16), np.arange(100, 120)])
    found, values = opened(tmp_path).get(inputs(numbers))
    assert found.all()
    assert np.array_equal(values, rows(numbers))


def test_a_reader_survives_compaction_between_listing_and_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 4)
    store, reader = opened(tmp_path), opened(tmp_path)
    for k in range(4):
        write(store, [k])
    listing = reader._listing

    def slow():
        names = listing()
        if len(names) == 4:
            write(store, [4])  # compacts while the reader is at its list
        return names

    monkeypatch.setattr(reader, "_listing", slow)
    assert reader.get(inputs(np.arange(5)))[0].all()


def test_compaction_sweeps_what_the_killed_have_left(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 4)
    store = opened(tmp_path)
    write(store, [0])
    for name, age in (("old", 2), ("new", 0)):
        path = store.folder / f".{name}.tmp"
        path.write_text("")
        os.utime(path, (time.time() - age * files.ABANDONED,) * 2)
    for k in range(1, 5):
        write(store, [k])
    assert {name for name in listed(store) if name.startswith(".")} == {".new.tmp"}


def test_files_that_cannot_be_removed_are_not_compacted_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 4)
    store = opened(tmp_path)

    def held(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", held)
    for k in range(8):
        write(store, [k])
    assert len(listed(store)) == 8 + 1
    found, values = opened(tmp_path).get(inputs(np.arange(8)))
    assert found.all()
    assert np.array_equal(values, rows(np.arange(8)))


WRITER = """
import sys
import numpy as np
from limbeck.teachers import cache
from limbeck.teachers.keys import row_keys

cache.MOST = 6
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
def test_processes_write_and_compact_at_the_same_time_and_nothing_is_lost(tmp_path):
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
