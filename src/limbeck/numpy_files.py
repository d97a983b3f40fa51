r"""Arrays of npy and npz files: what a file claims is compared with its size before it is read.

Whatever is wrong with a file is a ValueError of one line, which callers give the file's name.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

Array = np.ndarray[Any, Any]
MAX_EXPANDED = 2**28  # bytes that compressed data may always become; beyond, it may become
MAX_RATIO = 100  # so many times the size of its file
MAX_MEMBERS = 100_000  # of an npz file


def check_expansion(claimed: int, path: Path, free: int = MAX_EXPANDED) -> None:
    r"""Refuse to read a file or folder whose data would become much larger; `free` bytes may."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files)
    if claimed > max(free, MAX_RATIO * size):
        raise ValueError(f"it claims to hold {claimed:,} bytes in a file of {size:,}")


def read_npy(path: Path) -> Array:
    r"""The array of an npy file, mapped into memory; writing to it leaves the file as it is."""
    with open(path, "rb") as file:
        return _mapped(path, file, path.stat().st_size)


def members(path: Path) -> dict[str, zipfile.ZipInfo]:
    r"""The arrays of an npz file by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error, EOFError) as error:
        raise ValueError(f"it is no npz file ({error})") from None
    names = [info.filename.removesuffix(".npy") for info in infos]
    if len(infos) > MAX_MEMBERS or len(set(names)) < len(names):
        raise ValueError(f"it holds {len(infos):,} arrays, or two of one name")
    return dict(zip(names, infos, strict=True))


def read_member(path: Path, info: zipfile.ZipInfo) -> Array:
    r"""An array of an npz file, mapped into memory if it is there byte by byte."""
    if info.compress_type == zipfile.ZIP_STORED and info.file_size:
        with open(path, "rb") as file:
            file.seek(info.header_offset)
            start = file.read(30)
            if len(start) < 30 or not start.startswith(b"PK\x03\x04"):
                raise ValueError(f"{info.filename!r} is not where the file says")
            file.seek(sum(struct.unpack("<HH", start[26:30])), os.SEEK_CUR)
            return _mapped(path, file, min(file.tell() + info.file_size, path.stat().st_size))
    check_expansion(info.file_size, path)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(info) as file:
            dtype, shape, order = _header(file, info.file_size)
            content = file.read(math.prod(shape) * dtype.itemsize)
            if len(content) < math.prod(shape) * dtype.itemsize or file.read(1):
                raise ValueError(f"{info.filename!r} is longer or shorter than it says")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{info.filename!r} is damaged ({error})") from None
    return np.frombuffer(content, dtype).reshape(shape, order=order).copy()


def _mapped(path: Path, file: IO[bytes], end: int) -> Array:
    dtype, shape, order = _header(file, end - file.tell())
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "c", file.tell(), shape, order)


def _header(file: IO[bytes], size: int) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    r"""The type, shape and order of an array whose header comes next in so many bytes."""
    read = np.lib.format
    try:
        first = read.read_magic(file) == (1, 0)
        header = read.read_array_header_1_0 if first else read.read_array_header_2_0
        shape, fortran, dtype = header(file)
    except Exception:  # NumPy evaluates a header as a Python literal, which may raise anything
        raise ValueError("it is no array as NumPy writes it") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"it claims shape {shape} of {dtype}, and has {size:,} bytes")
    return dtype, shape, "F" if fortran else "C"
