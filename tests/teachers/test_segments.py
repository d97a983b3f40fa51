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
from limbeck.teachers.cache import KEYS, VALUES, Segments
from limbeck.teachers.keys import row_keys

FLOAT = np.dtype(np.float32)


def opened(folder, outputs=3):
    return Segments(folder, FLOAT, (outputs,))


def inputs(numbers):
    return row_keys(np.asarray(numbers, np.float64)[:, None])


def rows(numbers, outputs=3):
    return np.outer(numbers, np.arange(1, outputs + 1)).astype(np.float32)


def write(store, numbers):
    store.write(inputs(numbers), rows(numbers))


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path):
    store = opened(tmp_path)
    for numbers in ([1, 2, 3], [10, 20], [4]):
        write(store, numbers)
    return store


def test_rows_come_back_in_the_order_asked_for(store):
    found, values = store.lookup(inputs([20, 7, 4, 1, 20, -3]))
    assert found.tolist() == [True, False, True, True, True, False]
    assert np.array_equal(values, rows([20, 4, 1, 20]))
    assert len(store) == 6


def test_an_empty_or_missing_folder_has_nothing(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        found, values = opened(folder).lookup(inputs([1, 2]))
        assert not found.any()
        assert values.shape == (0, 3)
    assert not (tmp_path / "none").exists()


def test_a_reader_sees_what_others_write_later(store):
    reader = opened(store.folder)
    assert reader.lookup(inputs([5]))[0].tolist() == [False]
    write(store, [5])
    assert reader.lookup(inputs([5]))[0].tolist() == [True]


def test_rows_are_mapped_not_loaded(store):
    store.lookup(inputs([1]))
    for segment in store._order:
        assert type(segment.values) is np.memmap
        assert type(segment.head) is np.memmap
        assert not segment.values.flags.writeable


def test_the_index_is_built_once_for_the_same_files(store, monkeypatch):
    store.lookup(inputs([1]))
    monkeypatch.setattr(store, "_index", lambda segments: pytest.fail("built again"))
    assert store.lookup(inputs([2, 3]))[0].all()


def test_the_first_of_two_answers_stays(store):
    store.write(inputs([1]), rows([99]))
    assert np.array_equal(store.lookup(inputs([1]))[1], rows([1]))
    assert len(store) == 6


def test_keys_with_the_same_first_half_are_told_apart(tmp_path):
    store = opened(tmp_path)
    keys = np.array([[7, 1], [7, 2], [7, 3], [8, 1]], np.uint64)
    store.write(keys, rows([1, 2, 3, 4]))
    asked = np.array([[7, 3], [7, 9], [7, 1], [8, 1], [9, 1], [7, 2]], np.uint64)
    found, values = store.lookup(asked)
    assert found.tolist() == [True, False, True, True, False, True]
    assert np.array_equal(values, rows([3, 1, 4, 2]))


def test_nothing_is_left_behind_by_a_write(store):
    names = listed(store.folder)
    assert len(names) == 6
    assert all(name.endswith((KEYS, VALUES)) for name in names)


@pytest.mark.parametrize("which", [0, 1])
def test_a_write_that_fails_leaves_nothing_and_says_so(store, monkeypatch, which):
    before, left = listed(store.folder), [which]

    def full(handle):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(lb.CheckpointError, match="No space left on device"):
        write(store, [8, 9])
    assert listed(store.folder) == before
    assert not store.lookup(inputs([8]))[0].any()


def test_an_unfinished_segment_is_not_seen(store):
    name = listed(store.folder)[0].removesuffix(KEYS)
    (store.folder / (name + KEYS)).unlink()  # as before it was written
    found, _ = opened(store.folder).lookup(inputs([1, 10, 4]))
    assert found.sum() == 2


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


def missing(path):
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, empty, flip, foreign, other_array, pickled, missing])
def test_damage_to_rows_is_told_with_the_name_of_the_file(store, damage):
    path = store.folder / listed(store.folder)[1]
    assert path.name.endswith(VALUES)
    damage(path)
    with pytest.raises(lb.CheckpointError, match=path.name):
        opened(store.folder).lookup(inputs([1, 2, 3]))


@pytest.mark.parametrize("damage", [truncate, empty, flip, foreign, other_array, pickled])
def test_damage_to_keys_is_told_with_the_name_of_the_file(store, damage):
    path = store.folder / listed(store.folder)[0]
    assert path.name.endswith(KEYS)
    damage(path)
    name = path.name.removesuffix(KEYS)
    with pytest.raises(lb.CheckpointError, match=name):
        opened(store.folder).lookup(inputs([1, 2, 3]))


def test_rows_under_the_keys_of_others_are_not_taken_for_theirs(tmp_path):
    store = opened(tmp_path)
    write(store, [1, 2])
    write(store, [3, 4])
    one, other = (tmp_path / name for name in listed(tmp_path) if name.endswith(VALUES))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(lb.CheckpointError, match="than was written"):
        opened(tmp_path).lookup(inputs([1]))


def test_keys_in_each_others_places_are_found_out(store):
    path = store.folder / listed(store.folder)[0]
    head = np.load(path)
    head[[0, 1], :2] = head[[1, 0], :2]
    np.save(path, head)
    with pytest.raises(lb.CheckpointError, match="than was written"):
        opened(store.folder).lookup(inputs([1]))


def test_rows_of_another_shape_are_refused(store):
    with pytest.raises(lb.CheckpointError, match=r"\(3, 3\), and not float32 of shape \(3, 4"):
        opened(store.folder, outputs=4).lookup(inputs([1]))


def test_files_that_are_not_ours_are_named_or_left_alone(store):
    (store.folder / ".DS_Store").write_text("")
    (store.folder / "notes.txt").write_text("mine")
    assert store.lookup(inputs([1]))[0].all()
    np.save(store.folder / "mine.npy", np.zeros(3))
    with pytest.raises(lb.CheckpointError, match=r"mine\.npy is not one of"):
        store.lookup(inputs([1]))


def test_a_link_that_leads_nowhere_does_not_hang_the_reader(store):
    (store.folder / f"0-0{KEYS}").symlink_to(store.folder / "nowhere")
    with pytest.raises(lb.CheckpointError, match="do not stay"):
        opened(store.folder).lookup(inputs([1]))


def test_many_small_segments_become_few(tmp_path, monkeypatch):
    most = 8
    monkeypatch.setattr(files, "MOST", most)
    store, reader = opened(tmp_path), opened(tmp_path)
    numbers = np.arange(1, 5 * most + 1)
    for number in numbers:
        write(store, [number])
        if number == most:
            assert len(listed(tmp_path)) == 2 * most
            assert reader.lookup(inputs(numbers[:most]))[0].all()
    assert len(listed(tmp_path)) <= 2 * most
    for some in (store, reader, opened(tmp_path)):
        found, values = some.lookup(inputs(numbers))
        assert found.all()
        assert np.array_equal(values, rows(numbers))
        assert len(some) == len(numbers)


def test_compaction_keeps_each_row_once(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 6)
    monkeypatch.setattr(files, "CHUNK", 16)  # bytes: a row at a time
    store = opened(tmp_path)
    write(store, np.arange(100, 120))  # too large to be merged
    for k in range(6):
        write(store, [1, 2, k + 10])
    sizes = [len(np.load(tmp_path / n)) for n in listed(tmp_path) if n.endswith(KEYS)]
    assert sorted(sizes) == [3] * 2 + [2 + 4, 20]
    numbers = np.concatenate([[1, 2], np.arange(10, 16), np.arange(100, 120)])
    found, values = opened(tmp_path).lookup(inputs(numbers))
    assert found.all()
    assert np.array_equal(values, rows(numbers))


def test_a_reader_survives_compaction_between_listing_and_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 4)
    store, reader = opened(tmp_path), opened(tmp_path)
    for k in range(4):
        write(store, [k])
    listing = reader._listing

    def slow():
        names = list(listing())
        if len(names) == 4:
            write(store, [4])  # compacts while the reader is at its list
        return names

    monkeypatch.setattr(reader, "_listing", slow)
    assert reader.lookup(inputs(np.arange(5)))[0].all()


def test_compaction_sweeps_what_the_killed_have_left(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 4)
    store = opened(tmp_path)
    for name, age in (("old", 2), ("new", 0)):
        for ending in (VALUES, ".tmp"):
            path = tmp_path / f".{name}{ending}"
            path.write_text("")
            os.utime(path, (time.time() - age * files.ABANDONED,) * 2)
    for k in range(5):
        write(store, [k])
    left = {name for name in listed(tmp_path) if name.startswith(".")}
    assert left == {f".new{VALUES}", ".new.tmp"}


def test_files_that_cannot_be_removed_are_not_compacted_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 4)
    store = opened(tmp_path)

    def held(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", held)
    for k in range(8):
        write(store, [k])
    assert len(listed(tmp_path)) == 2 * (8 + 1)
    found, values = opened(tmp_path).lookup(inputs(np.arange(8)))
    assert found.all()
    assert np.array_equal(values, rows(np.arange(8)))


WRITER = """
import sys
import numpy as np
from pathlib import Path
from limbeck.teachers import cache as segments
from limbeck.teachers.keys import row_keys

segments.MOST = 6
folder, start = Path(sys.argv[1]), int(sys.argv[2])
store = segments.Segments(folder, np.dtype(np.float32), (3,))
numbers = np.concatenate([np.arange(20), np.arange(start, start + 20)])  # shared, and its own
print("ready", flush=True)
sys.stdin.readline()
for number in numbers:
    values = np.outer([number], [1, 2, 3]).astype(np.float32)
    store.write(row_keys(np.array([[float(number)]])), values)
    asked = numbers[: 1 + np.flatnonzero(numbers == number)[0]].astype(float)
    assert store.lookup(row_keys(asked[:, None]))[0].all()
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
        found, values = reader.lookup(inputs(numbers))
        assert np.array_equal(values, rows(numbers[found]))
        assert found.sum() >= seen  # what was there once does not go away
        seen = found.sum()
        time.sleep(0.05)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    found, values = opened(folder).lookup(inputs(numbers))
    assert found.all()
    assert np.array_equal(values, rows(numbers))
