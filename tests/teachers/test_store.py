r"""Rows on disk under keys: whole or not there, by any number of writers, and found again."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import limbeck as lb
from limbeck.teachers import cache as files
from limbeck.teachers.cache import ANSWERS, Store
from limbeck.teachers.keys import row_keys

FLOAT = np.dtype(np.float32)


def opened(folder, outputs=3):
    return Store(folder / ANSWERS, FLOAT, (outputs,))


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
    reader = opened(store.path.parent)
    assert reader.lookup(inputs([5]))[0].tolist() == [False]
    write(store, [5])
    assert reader.lookup(inputs([5]))[0].tolist() == [True]


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
    assert listed(store.path.parent) == ["answers.sqlite"]


def test_a_write_that_fails_changes_nothing_and_says_so(store, monkeypatch):
    connect = sqlite3.connect

    def full(*args, **options):
        connection = connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 2")
        return connection

    monkeypatch.setattr(sqlite3, "connect", full)
    numbers = np.arange(1000, 2000)
    with pytest.raises(lb.CheckpointError, match=r"answers\.sqlite .* disk is full"):
        write(store, numbers)
    monkeypatch.undo()
    assert not store.lookup(inputs(numbers))[0].any()
    assert len(store) == 6


def test_a_file_that_another_process_holds_is_named(store, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(lb.CheckpointError, match="locked"):
            write(store, [8])
    write(store, [8])
    assert store.lookup(inputs([8]))[0].all()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-2] ^= 64
    path.write_bytes(data)


def foreign(path):
    path.write_bytes(b"PK\x03\x04 something else altogether")


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def other_table(path):
    path.unlink()
    change(path, "CREATE TABLE mine (x)")


def view(path):
    change(path, "ALTER TABLE answers RENAME TO hidden")
    change(path, "CREATE VIEW answers AS SELECT * FROM hidden")


def swapped_rows(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        pairs = database.execute("SELECT key, row FROM answers").fetchall()
        keys, values = zip(*pairs, strict=True)
        moved = zip(values[1:] + values[:1], keys, strict=True)
        database.executemany("UPDATE answers SET row = ? WHERE key = ?", moved)


def short_rows(path):
    change(path, "UPDATE answers SET row = substr(row, 2)")


DAMAGE = [truncate, flip, foreign, other_table, view, swapped_rows, short_rows]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_with_the_name_of_the_file(store, damage):
    damage(store.path)
    with pytest.raises(lb.CheckpointError, match=r"answers\.sqlite"):
        opened(store.path.parent).lookup(inputs([1, 2, 3, 4, 10, 20]))


def test_a_missing_or_empty_file_has_no_rows(store):
    store.path.write_bytes(b"")  # as it is before the first writer is done
    assert not store.lookup(inputs([1]))[0].any()
    store.path.unlink()
    assert not store.lookup(inputs([1]))[0].any()
    write(store, [1])
    assert store.lookup(inputs([1]))[0].all()


def test_rows_of_another_shape_are_refused(store):
    with pytest.raises(lb.CheckpointError, match="rows of 20 bytes, not 24"):
        opened(store.path.parent, outputs=4).lookup(inputs([1]))


def test_other_files_are_left_alone(store):
    (store.path.parent / "notes.txt").write_text("mine")
    assert store.lookup(inputs([1]))[0].all()


DYING = """
import os
import sys
from pathlib import Path
import numpy as np
from limbeck.teachers import cache

pieces = cache._pieces

def dying(array):
    for number, piece in enumerate(pieces(array)):
        if number == 90_000:  # of one write; what the database holds in memory is long on disk
            os._exit(7)
        yield piece

store = cache.Store(Path(sys.argv[1]), np.dtype(np.float32), (3,))
cache._pieces = dying
keys = np.arange(200_000, dtype=np.uint64).reshape(-1, 2)
store.write(keys, np.ones((len(keys), 3), np.float32))
"""


def test_a_writer_that_dies_in_a_write_leaves_what_was_there(store):
    environment = os.environ | {"PYTHONPATH": str(Path(lb.__file__).parents[1])}
    command = [sys.executable, "-c", DYING, store.path]
    assert subprocess.run(command, env=environment, check=False).returncode == 7
    assert len(store) == 6
    found, values = store.lookup(inputs([1, 2, 3, 4, 10, 20]))
    assert found.all()
    assert np.array_equal(values, rows([1, 2, 3, 4, 10, 20]))
    write(store, [5])
    assert len(store) == 7


WRITER = """
import sys
import numpy as np
from pathlib import Path
from limbeck.teachers.cache import ANSWERS, Store
from limbeck.teachers.keys import row_keys

folder, start = Path(sys.argv[1]), int(sys.argv[2])
store = Store(folder / ANSWERS, np.dtype(np.float32), (3,))
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
