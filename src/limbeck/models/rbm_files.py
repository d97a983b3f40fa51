r"""Files of RBMs: their weights by any of the names that are in use, also as MATLAB wrote them."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file as load_safetensors
from torch import Tensor

from limbeck import numpy_files
from limbeck.errors import (
    ArgumentError,
    CheckpointError,
    LimbeckError,
    first_line,
    refuse_unreadable,
    require_path,
)
from limbeck.storage import files

FORMAT = "limbeck-rbm-1"
NAMES = (("W", "a", "b"), ("vishid", "visbiases", "hidbiases"))
ACCEPTED = "a file with W, a and b, or vishid, visbiases and hidbiases"


def read(path: Path) -> dict[str, Any]:
    r"""The arrays W (I, J), a (I,) and b (J,) of a file, under either set of names."""
    suffix = require_path(path, "path", ACCEPTED, "file", READERS)
    with refuse_unreadable("path", path, ACCEPTED):
        arrays = READERS[suffix](path)
    for names in NAMES:
        if all(name in arrays for name in names):
            W, *biases = (arrays[name] for name in names)
            # MATLAB's vectors are rows or columns
            a, b = (v.reshape(-1) if v.ndim == 2 and 1 in v.shape else v for v in biases)
            return {"W": W, "a": a, "b": b}
    contents = ", ".join(sorted(map(str, arrays))[:8]) or "nothing"
    raise ArgumentError("path", f"{path}, which holds {contents}", ACCEPTED)


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    r"""Write tensors as .npz or .safetensors; a failure leaves no partial file."""
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".safetensors"):
        raise ArgumentError("path", str(path), "a name that ends in .npz or .safetensors")
    content: Any
    if suffix == ".npz":
        archive = io.BytesIO()
        np.savez(archive, **{name: t.detach().cpu().numpy() for name, t in tensors.items()})  # type: ignore[arg-type]
        content = archive.getvalue()
    else:
        content = files.encode(tensors, {}, FORMAT, digest=True)
    try:
        return files.write_bytes(path, content)
    except CheckpointError as error:
        raise LimbeckError(f"path: writing {path} failed ({first_line(error)})") from error


def _read_npz(path: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = dict.fromkeys(members := numpy_files.members(path))
    for name in arrays.keys() & sum(NAMES, ()):
        arrays[name] = np.array(numpy_files.read_member(path, members[name]))
    return arrays


# Real matrices of numbers in MATLAB's files of level 5 (versions 5 to 7), bounds-checked. SciPy's
# reader ends the interpreter at some damaged files, so this one reads what RBMs need and refuses
# all else. Whatever is wrong with a file is a ValueError of one line.

# the types of elements, as of MATLAB's description of the format
NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
MATRIX, COMPRESSED = 14, 15
# the classes of arrays; those from 6 to 15 are full matrices of numbers
OTHERS = ("empty", "cells", "a structure", "an object", "text", "a sparse matrix")


def read_mat(path: Path, names: Collection[str]) -> dict[str, Any]:
    r"""The arrays of these names; all others of the file as None."""
    content = memoryview(path.read_bytes())
    if bytes(content[:10]).startswith((b"\x89HDF\r\n\x1a\n", b"MATLAB 7.3")):
        raise ValueError("MATLAB's format 7.3; an older one is needed: save(name, '-v7', …)")
    order = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(bytes(content[124:128]))
    if order is None:
        raise ValueError("no MATLAB file of the versions 5 to 7")
    arrays: dict[str, Any] = {}
    content = content[128:]
    while len(content):
        kind, matrix, content = _element(content, order)
        if kind == COMPRESSED:
            kind, matrix, _ = _element(_expanded(matrix, order, path), order)
        if kind != MATRIX:
            raise ValueError(f"an element of the type {kind}, where an array was expected")
        name, array = _array(matrix, order, names)
        if name in arrays:
            raise ValueError(f"{name} is in it twice")
        arrays[name] = array
    return arrays


def _expanded(content: memoryview, order: str, path: Path) -> memoryview:
    r"""A compressed element, of the size that it starts with, and with the right checksum."""
    stream = zlib.decompressobj()
    try:
        start = stream.decompress(content, 8)
        size = int(np.frombuffer(start[4:], f"{order}u4")[0])
        numpy_files.check_expansion(size, path)
        rest = stream.decompress(stream.unconsumed_tail, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged compressed data ({error})") from None
    if len(rest) != size or not stream.eof:
        raise ValueError("compressed data that are longer or shorter than they say")
    return memoryview(start + rest)


def _element(content: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    r"""The type and the content of the first element, and what follows it."""
    if len(content) < 8:
        raise ValueError("it ends within an element")
    kind, size = (int(n) for n in np.frombuffer(content[:8], f"{order}u4"))
    if kind >> 16:  # up to four bytes are in the tag itself
        kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, 8
        if size > 4:
            raise ValueError(f"an element of {size} bytes in the place of 4")
    else:
        start, end = 8, 8 + size
        end += 0 if kind == COMPRESSED else -end % 8  # elements start at multiples of 8 bytes
    if start + size > len(content):
        left = len(content) - start
        raise ValueError(f"an element of {size:,} bytes, of which {left:,} are left")
    return kind, content[start : start + size], content[end:]


def _array(matrix: memoryview, order: str, names: Collection[str]) -> tuple[str, Any]:
    r"""The name of an array, and its numbers if it is one of `names`."""
    first, attributes, rest = _element(matrix, order)
    second, sizes, rest = _element(rest, order)
    third, text, rest = _element(rest, order)
    if (first, len(attributes), second, third) != (6, 8, 5, 1):
        raise ValueError("an array without flags, dimensions and name")
    name = bytes(text).decode("latin-1")
    if name not in names:
        return name, None
    flags = int(np.frombuffer(attributes, f"{order}u4")[0])
    kind = flags & 0xFF
    numeric = 6 <= kind <= 15
    if not numeric or flags & 0x0800:
        what = "complex" if numeric else (*OTHERS, "unknown")[min(kind, len(OTHERS))]
        raise ValueError(f"{name} is {what}; a full matrix of real numbers is needed")
    if len(sizes) % 4 or not 8 <= len(sizes) <= 128:
        raise ValueError(f"{name} has dimensions of {len(sizes)} bytes")
    shape = tuple(int(size) for size in np.frombuffer(sizes, f"{order}i4"))
    stored, values, _ = _element(rest, order)
    if stored not in NUMBERS:
        raise ValueError(f"{name} has values of the type {stored}")
    dtype = np.dtype(order + NUMBERS[stored])  # the smallest that holds them, perhaps
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"{name} of the shape {shape} has {len(values):,} bytes")
    return name, np.frombuffer(values, dtype).reshape(shape, order="F")


READERS: Any = {
    ".npz": _read_npz,
    ".safetensors": load_safetensors,
    ".mat": lambda path: read_mat(path, sum(NAMES, ())),
}
