r"""Compiled kernels are loaded only from a folder in which nobody else can write."""

import os
from pathlib import Path

import pytest

from limbeck.models.kernels import nade_native

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kernels are for POSIX systems")


@pytest.fixture
def place(tmp_path, monkeypatch):
    r"""The folder that LIMBECK_CACHE names, which is not there yet."""
    monkeypatch.setenv("LIMBECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mode(path):
    return path.lstat().st_mode & 0o777


def test_a_new_folder_is_the_users_alone(place):
    before = os.umask(0)
    try:
        assert nade_native._folder() == place.resolve()
    finally:
        os.umask(before)
    assert mode(place) == 0o700


@pytest.mark.parametrize("others", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(place, others):
    place.mkdir()
    place.chmod(others)
    folder = nade_native._folder()
    assert folder != place.resolve()
    assert mode(folder) == 0o700


def test_a_folder_under_one_that_others_can_write_to_is_not_used(place, tmp_path):
    tmp_path.chmod(0o777)
    assert nade_native._folder() != place.resolve()
    tmp_path.chmod(0o1777)  # as the system's temporary folder: others cannot rename in it
    assert nade_native._folder() == place.resolve()


def test_a_folder_of_another_user_is_not_used(place, monkeypatch):
    place.mkdir(mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert nade_native._folder() != place.resolve()


def test_a_link_is_followed_once_and_only_if_it_is_the_users(place, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "real")
    assert nade_native._folder() == (tmp_path / "real").resolve()  # where a changed link is not
    lstat, status = Path.lstat, os.stat_result((0o120777, 0, 0, 1, os.getuid() + 1, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda path: status if path == place else lstat(path))
    folder = nade_native._folder()
    assert folder not in (place, (tmp_path / "real").resolve())


def compiled(place, monkeypatch):
    r"""The library that `library` would load, compiled by a stand-in."""
    runs = []

    def compile_(compiler, source, target):
        runs.append(target)
        target.unlink(missing_ok=True)
        target.write_bytes(b"")
        target.chmod(0o700)

    monkeypatch.setenv("LIMBECK_NATIVE", "1")
    monkeypatch.setattr(nade_native, "_compile", compile_)
    monkeypatch.setattr(nade_native.ctypes, "CDLL", lambda path: Path(path))
    nade_native.library.__wrapped__("nade.cpp")
    (path,) = place.iterdir()
    return runs, path


@pytest.mark.skipif(nade_native.cpp_compiler() is None, reason="needs a C++ compiler")
def test_a_library_that_is_a_link_or_open_to_others_is_compiled_again(place, tmp_path, monkeypatch):
    runs, path = compiled(place, monkeypatch)
    assert nade_native.library.__wrapped__("nade.cpp") == path
    assert len(runs) == 1
    path.chmod(0o777)
    nade_native.library.__wrapped__("nade.cpp")
    assert len(runs) == 2
    path.unlink()
    (tmp_path / "other.so").write_bytes(b"")
    path.symlink_to(tmp_path / "other.so")
    nade_native.library.__wrapped__("nade.cpp")
    assert len(runs) == 3
    assert not path.is_symlink()


@pytest.mark.skipif(not nade_native.available(), reason="needs compiled kernels")
def test_a_compiled_library_is_the_users_alone(place):
    nade_native.library.__wrapped__("nade.cpp")
    (path,) = place.iterdir()
    assert mode(path) == 0o700
