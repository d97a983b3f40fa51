r"""Files of RBMs: their weights by any of the names that are in use."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file as load_safetensors
from torch import Tensor

from limbeck import numpy_files
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.models.mat_file import read_mat
from limbeck.storage import files

FORMAT = "limbeck-rbm-1"
NAMES = (("W", "a", "b"), ("vishid", "visbiases", "hidbiases"))
ACCEPTED = "a file with W, a and b, or vishid, visbiases and hidbiases"


def read(path: Path) -> dict[str, Any]:
    r"""The arrays W (I, J), a (I,) and b (J,) of a file, under either set of names."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise ArgumentError("path", str(path), f"a name that ends in {', '.join(READERS)}")
    if not path.is_file():
        state = "a folder" if path.is_dir() else "which does not exist"
        raise ArgumentError("path", f"{path}, {state}", ACCEPTED)
    try:
        arrays = READERS[suffix](path)
    except LimbeckError:
        raise
    except Exception as error:  # readers raise errors of many kinds
        received = f"{path}, which cannot be read as {suffix} ({_first_line(error)})"
        raise ArgumentError("path", received, ACCEPTED) from error
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
        raise LimbeckError(f"path: writing {path} failed ({_first_line(error)})") from error


def _read_npz(path: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = dict.fromkeys(members := numpy_files.members(path))
    for name in arrays.keys() & sum(NAMES, ()):
        arrays[name] = np.array(numpy_files.read_member(path, members[name]))
    return arrays


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


READERS: Any = {
    ".npz": _read_npz,
    ".safetensors": load_safetensors,
    ".mat": lambda path: read_mat(path, sum(NAMES, ())),
}
