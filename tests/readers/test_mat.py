r"""MATLAB's files of RBMs: as SciPy reads them, and no crash at damaged ones."""

import struct
import zlib

import numpy as np
import pytest
import scipy.io
import torch

import limbeck as lb
from limbeck.models.rbm_files import read_mat
from tests.refusals import refused

RNG = np.random.default_rng(0)
ARRAYS = {
    "vishid": RNG.normal(size=(30, 20)),
    "visbiases": RNG.normal(size=(1, 30)),
    "hidbiases": RNG.normal(size=(1, 20)),
}
OTHERS = {
    "text": "some words", "cells": np.array([1, "a"], dtype=object), "struct": {"a": 1.0},
    "complex": np.ones((2, 2)) * 1j, "cube": np.zeros((2, 3, 4)),
    "a_name_of_31_letters_in_matlabs": 1,
}  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_numbers_of_every_type_are_as_scipy_reads_them(tmp_path, dtype, compressed):
    path = tmp_path / "a.mat"
    values = {"x": RNG.integers(0, 100, (3, 4)).astype(dtype), "scalar": np.array([[7]], dtype)}
    values |= {
        "empty": np.zeros((0, 3), dtype),
        "cube": np.arange(24).reshape(2, 3, 4).astype(dtype),
    }
    scipy.io.savemat(path, {**OTHERS, **values}, do_compression=compressed)
    read, reference = read_mat(path, values), scipy.io.loadmat(path)
    for name in values:
        assert np.array_equal(read[name], reference[name])
    assert all(read[name] is None for name in OTHERS.keys() - values.keys())


def element(kind, content, order="<"):
    return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(name, shape, content, order="<", kind=6, values=9, flags=0):
    parts = element(6, struct.pack(f"{order}II", kind | flags, 0), order)
    parts += element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    parts += element(1, name.encode(), order) + element(values, content, order)
    return element(14, parts, order)


def mat(path, *elements, order="<"):
    version = struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    path.write_bytes(b"MATLAB 5.0".ljust(124) + version + b"".join(elements))
    return path


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_and_doubles_that_are_kept_as_bytes(tmp_path, order):
    content = np.arange(6, dtype=f"{order}f8").tobytes()
    wide = matrix("W", (2, 3), content, order)
    narrow = matrix("a", (2, 1), bytes([1, 255]), order, values=2)
    read = read_mat(mat(tmp_path / "a.mat", wide, narrow, order=order), ("W", "a"))
    assert read["W"].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert read["a"].tolist() == [[1], [255]]
    assert scipy.io.loadmat(tmp_path / "a.mat")["a"].tolist() == [[1], [255]]


def compressed(content):
    packed = zlib.compress(content)
    return struct.pack("<II", 15, len(packed)) + packed


ONES = np.ones(6).tobytes()
REFUSED = {
    "dimensions of more numbers": matrix("W", (2000, 3000), ONES),
    "dimensions whose product overflows": matrix("W", (2**31 - 1, 2**31 - 1, 2**31 - 1), ONES),
    "negative dimensions": matrix("W", (-2, -3), ONES),
    "a hundred dimensions": matrix("W", (1,) * 100, ONES),
    "a sparse matrix": matrix("W", (2, 3), ONES, kind=5),
    "an unknown class": matrix("W", (2, 3), ONES, kind=99),
    "complex numbers": matrix("W", (2, 3), ONES, flags=0x0800),
    "an unknown type of numbers": matrix("W", (2, 3), ONES, values=77),
    "an element longer than the file": struct.pack("<II", 14, 2**32 - 1) + bytes(64),
    "a short element of more than four bytes": struct.pack("<II", (9 << 16) | 14, 0),
    "the end within an element": matrix("W", (2, 3), ONES)[:-20],
    "no array": element(9, ONES),
    "two arrays of one name": matrix("W", (2, 3), ONES) * 2,
    "compressed data that are none": struct.pack("<II", 15, 64) + bytes(64),
    "compressed data with an end missing": compressed(matrix("W", (2, 3), ONES))[:-2],
    "a bomb": compressed(
        struct.pack("<II", 14, 2**31) + matrix("W", (2**14, 2**14), b"")[8:-8]
        + struct.pack("<II", 9, 2**31) + bytes(10**6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(tmp_path, content):
    others = matrix("a", (2, 1), ONES[:16]) + matrix("b", (3, 1), ONES[:24])
    with refused("path", r"a\.mat, which cannot be read \(.+\)"):
        lb.RBM.load(mat(tmp_path / "a.mat", content, others))


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + bytes(600), bytes(200)])
def test_other_files_are_refused(tmp_path, content):
    (path := tmp_path / "a.mat").write_bytes(content)
    with refused("path", "MATLAB"):
        lb.RBM.load(path)


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_refused_or_change_nothing_but_numbers(tmp_path, packed):
    path = tmp_path / "rbm.mat"
    scipy.io.savemat(path, {**OTHERS, **ARRAYS}, do_compression=packed)
    content, counts = path.read_bytes(), {"equal": 0, "refused": 0, "other": 0}
    before, generator = lb.RBM.load(path), np.random.default_rng(1)
    for case in range(500):
        damaged = bytearray(content)
        place = int(generator.integers(len(content)))
        if case % 4 == 0:
            damaged[place : place + 64] = bytes(len(damaged[place : place + 64]))
        elif case % 4 == 1:
            damaged[place] ^= 1 << int(generator.integers(8))
        elif case % 4 == 2:
            damaged[place : place + 8] = generator.bytes(8)
        else:
            del damaged[place:]
        path.write_bytes(damaged)
        try:
            again = lb.RBM.load(path)
        except lb.LimbeckError as error:
            counts["refused"] += "\n" not in str(error)
            continue
        assert (again.visible, again.hidden) == (30, 20)
        equal = all(torch.equal(getattr(again, n), getattr(before, n)) for n in ("W", "a", "b"))
        counts["equal" if equal else "other"] += 1
    assert sum(counts.values()) == 500
    assert counts["refused"] > 100
    assert counts["other"] == 0 or not packed  # compressed arrays have checksums, plain ones none
