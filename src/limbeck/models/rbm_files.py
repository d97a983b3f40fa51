r"""Files of RBMs: their weights by any of the names that are in use, also as MATLAB wrote them."""

from __future__ import annotations

import io
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


# Real matrices of numbers in MATLAB's files of level 5 (versions 5 to 7). SciPy's reader ends the
# interpreter at some damaged files, so this one reads what RBMs need and refuses all else.

# the types of elements, as of MATLAB's description of the format
NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
MATRIX, COMPRESSED = 14, 15


def read_mat(path: Path, names: Collection[str]) -> dict[str, Any]:
    r"""The arrays of these names; all others of the file as None."""
    content = memoryview(path.read_bytes())
    order = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(bytes(content[124:128]))
    if order is None:
        raise ValueError("no MATLAB file of the versions 5 to 7, as save(name, '-v7', …) writes it")
    arrays: dict[str, Any] = {}
    content = content[128:]
    while len(content):
        kind, matrix, content = _element(content, order)
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            start = stream.decompress(matrix, 8)
            size = int(np.frombuffer(start[4:], f"{order}u4")[0])
            numpy_files.check_expansion(size, path)
            expanded = start + stream.decompress(stream.unconsumed_tail, size + 1)
            if not stream.eof:  # where the checksum is
                raise ValueError("compressed data that are longer or shorter than they say")
            kind, matrix, _ = _element(memoryview(expanded), order)
        if kind != MATRIX:
            raise ValueError(f"an element of the type {kind}, where an array was expected")
        name, array = _array(matrix, order, names)
        if name in arrays:
            raise ValueError(f"{name} is in it twice")
        arrays[name] = array
    return arrays


def _element(content: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    r"""The type and the content of the first element, and what follows it."""
    if len(content) < 8:
        raise ValueError("it ends within an element")
    kind, size = (int(n) for n in np.frombuffer(content[:8], f"{order}u4"))
    start, most = 8, len(content) - 8
    if kind >> 16:  # up to four bytes are in the tag itself
        kind, size, start, most = kind & 0xFFFF, kind >> 16, 4, 4
    if size > most:
        raise ValueError(f"an element of {size:,} bytes, where {most:,} are left")
    end = start + size
    padding = 0 if kind == COMPRESSED else -end % 8  # others start at multiples of 8 bytes
    return kind, content[start:end], content[end + padding :]


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
    flags, shape = np.frombuffer(attributes, f"{order}u4")[0], np.frombuffer(sizes, f"{order}i4")
    stored, values, _ = _element(rest, order)
    full = 6 <= flags & 0xFF <= 15 and not flags & 0x0800  # neither cells, text nor complex
    if not full or stored not in NUMBERS or (shape < 0).any():
        raise ValueError(f"{name} is not a full matrix of real numbers")
    numbers = np.frombuffer(values, order + NUMBERS[stored])  # of the smallest type that has them
    return name, numbers.reshape(tuple(shape), order="F")


READERS: Any = {
    ".npz": _read_npz,
    ".safetensors": load_safetensors,
    ".mat": lambda path: read_mat(path, sum(NAMES, ())),
}
