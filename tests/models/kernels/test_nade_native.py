r"""How C++ kernels come about, and how everything does without them."""

import stat

import pytest
import torch

from limbeck.models.kernels import nade_native, nade_op
from limbeck.models.kernels import nade_native as native


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    r"""No library known yet, and a cache folder of its own."""
    monkeypatch.setenv("LIMBECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LIMBECK_NATIVE", raising=False)
    yield tmp_path / "cache"
    native.library.cache_clear()


def source(monkeypatch, tmp_path, text):
    r"""A source of the test's own in the place of limbeck's."""
    (tmp_path / "small.cpp").write_text(text)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    native.library.cache_clear()
    return native.library("small.cpp")


needs_compiler = pytest.mark.skipif(not nade_native.available(), reason="no C++ compiler")


@needs_compiler
def test_a_library_is_compiled_once_and_kept(fresh, monkeypatch, tmp_path):
    text = 'extern "C" int seven() { return 7; }'
    assert source(monkeypatch, tmp_path, text).seven() == 7
    (made,) = fresh.iterdir()
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("it was there"))
    assert source(monkeypatch, tmp_path, text).seven() == 7
    assert list(fresh.iterdir()) == [made]


@needs_compiler
def test_another_source_is_another_library(fresh, monkeypatch, tmp_path):
    for number in (1, 2):
        text = f'extern "C" int number() {{ return {number}; }}'
        assert source(monkeypatch, tmp_path, text).number() == number
    assert len(list(fresh.iterdir())) == 2


@needs_compiler
def test_a_source_that_does_not_compile_gives_none(fresh, monkeypatch, tmp_path):
    assert source(monkeypatch, tmp_path, "this is not C++") is None
    assert list(fresh.iterdir()) == []


@needs_compiler
def test_a_folder_that_others_may_write_to_is_not_used(fresh, monkeypatch, tmp_path):
    fresh.mkdir()
    fresh.chmod(0o777)
    assert source(monkeypatch, tmp_path, 'extern "C" int one() { return 1; }').one() == 1
    assert list(fresh.iterdir()) == []


def test_without_a_compiler_there_is_none(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source(monkeypatch, tmp_path, 'extern "C" int one() { return 1; }') is None


def test_the_environment_can_refuse(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("LIMBECK_NATIVE", "0")
    assert source(monkeypatch, tmp_path, 'extern "C" int one() { return 1; }') is None


def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch):
    monkeypatch.setattr(nade_native, "library", lambda _: object())
    monkeypatch.setattr(nade_native, "logits", lambda x, *_: x)
    monkeypatch.setattr(nade_native, "pull", lambda d, x, w, c, u, wants_x: (d, w, c, u))
    nade_native.available.cache_clear()
    try:
        assert not nade_native.available()
    finally:
        nade_native.available.cache_clear()


def test_kernels_are_chosen_by_size_and_availability(monkeypatch):
    small, large = torch.zeros(2, 10), torch.zeros(200, 100)
    w = torch.zeros(100, 50)
    monkeypatch.setattr(nade_native, "available", lambda: True)
    assert nade_op.use_native(large, w)
    assert not nade_op.use_native(small, w)
    assert not nade_op.use_native(large.half(), w)
    monkeypatch.setattr(nade_native, "available", lambda: False)
    assert not nade_op.use_native(large, w)
