r"""Folders that change as a whole: what stays, what goes, who may write."""

import errno
import multiprocessing
import os
import threading
import time

import pytest
import torch

import limbeck as lb
from limbeck.storage import disk, files, folders
from tests.faults import Killed, faulty_disk
from tests.refusals import raises_about
from tests.storage.writers import content, plain


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_the_manifest_does_not_name_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    folders.write(tmp_path, "result", {"a": b"1", "b": b"2"})
    folders.write(tmp_path, "result", {"a": b"3"})
    assert names(tmp_path) == ["a", "manifest.json", "notes.txt"]
    folders.remove(tmp_path)
    assert names(tmp_path) == ["notes.txt"]


def test_files_are_kept_or_added(tmp_path):
    folders.write(tmp_path, "result", {"a": b"1", "b": b"2", "c": b"3"})
    folders.write(tmp_path, "result", {"d": b"4"}, keep=("a", "b"))
    folders.write(tmp_path, "report", {"b": b"5"}, keep=None)
    saved = folders.read(tmp_path, "result", ("a", "b", "c"))
    assert saved.content == {"a": b"1", "b": b"5"}
    assert saved.names == {"a", "b", "d"}


def test_a_file_of_the_user_with_the_name_of_an_obsolete_one_stays(tmp_path):
    folders.write(tmp_path, "result", {"a": b"1", "b": b"2"})
    folders.write(tmp_path, "result", {"a": b"1"})
    (tmp_path / "b").write_text("mine")
    folders.write(tmp_path, "result", {"a": b"2"})
    assert (tmp_path / "b").read_text() == "mine"


def test_the_next_writer_completes_what_a_killed_one_committed(tmp_path):
    folders.write(tmp_path, "result", {"a": b"1", "b": b"2", "c": b"3"})
    for at in range(1, 30):
        with faulty_disk(at, kill=True):
            try:
                folders.write(tmp_path, "result", {"a": b"4"}, keep=("b",))
            except Killed:
                continue
            break
    assert folders.read(tmp_path, "result", ("a", "b")).content == {"a": b"4", "b": b"2"}
    folders.write(tmp_path, "result", {"d": b"5"}, keep=None)
    saved = folders.read(tmp_path, "result", ("a", "b", "c", "d"))
    assert saved.content == {"a": b"4", "b": b"2", "d": b"5"}
    assert names(tmp_path) == ["a", "b", "d", "manifest.json"]


@pytest.mark.parametrize("name", ["", ".a", "a/b", "..", "manifest.json", "a\\b", "a\nb"])
def test_names_that_are_not_plain_are_not_written(tmp_path, name):
    with raises_about(lb.CheckpointError, "expected a plain name"):
        folders.write(tmp_path, "result", {name: b""})


def write_often(folder, start, count):
    start.wait()
    for number in range(count):
        part = f"{os.getpid()} {number}".encode()
        folders.write(folder, "result", {"a": part, "b": part * 1000})


def test_two_processes_write_and_a_third_reads(tmp_path):
    context = multiprocessing.get_context("fork")
    start, count = context.Barrier(3), 25
    folders.write(tmp_path, "result", {"a": b"x", "b": b"x" * 1000})
    workers = [context.Process(target=write_often, args=(tmp_path, start, count)) for _ in range(2)]
    for worker in workers:
        worker.start()
    start.wait()
    seen = set()
    while any(worker.is_alive() for worker in workers):
        saved = folders.read(tmp_path, "result", ("a", "b")).content
        assert saved["b"] == saved["a"] * 1000  # never of two writers
        seen.add(bytes(saved["a"]))
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(seen) > 2
    assert names(tmp_path) == ["a", "b", "manifest.json"]


def test_a_writer_that_waits_too_long_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "LOCK_SECONDS", 0.05)
    with (
        disk.lock(tmp_path / "manifest.json"),
        pytest.raises(lb.CheckpointError, match="another process is writing to"),
    ):
        plain(0).save(tmp_path)
    plain(0).save(tmp_path)


def test_threads_take_turns(tmp_path):
    inside, most = [], []

    def work():
        with disk.lock(tmp_path / "x"):
            inside.append(1)
            time.sleep(0.001)  # the next one removes the lock file that others have open
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


@pytest.mark.skipif(os.name == "nt", reason="permissions are of another kind")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_all_files_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        plain(0).save(tmp_path / "saved")
        lb.NADE(3, 2).save(tmp_path / "nade.safetensors")
        lb.RBM.random(3, 2).save(tmp_path / "rbm.npz")
    finally:
        os.umask(before)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 5
    assert {path.stat().st_mode & 0o777 for path in found} == {0o666 & ~mask}


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    r"""A folder in which nothing can be made; root may write where permissions forbid it."""
    folder = plain(0).save(tmp_path / "saved")
    opened = os.open

    def denied(path, flags, *more, **options):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(folder)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", denied)
    return folder


def test_a_folder_that_is_read_only_is_read_and_not_written(read_only):
    assert content(lb.load(read_only)) == content(plain(0))
    with raises_about(lb.CheckpointError, "Permission denied"):
        plain(1).save(read_only)
    with raises_about(lb.CheckpointError, "nade.safetensors"):
        lb.NADE(3, 2).save(read_only / "nade.safetensors")
    assert content(lb.load(read_only)) == content(plain(0))


def test_a_failed_single_file_leaves_the_old_one(tmp_path):
    path = files.write_bytes(tmp_path / "a", b"old")
    with faulty_disk(at=2), pytest.raises(lb.CheckpointError, match="is untouched"):
        files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_student_loads_as_it_was_and_leaves_the_random_numbers_to_come(tmp_path):
    result = plain(0)
    result.student = lb.MLP(41, 43, 2)
    result.save(tmp_path / "saved")
    state = torch.get_rng_state()
    loaded = lb.load(tmp_path / "saved").student.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in result.student.state_dict().items():
        assert torch.equal(loaded[name], tensor)
