r"""Files of RBMs: their weights by any of the names that are in use."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.numpy import save as safetensors_bytes
from safetensors.torch import load_file as load_safetensors
from torch import Tensor

from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.models.checks import Device
from limbeck.storage import files

__all__ = ["from_arrays", "read", "write"]

Kind = TypeVar("Kind")

NAMES = (("W", "a", "b"), ("vishid", "visbiases", "hidbiases"))
ACCEPTED = "a file with W, a and b, or vishid, visbiases and hidbiases"


def read(path: Path) -> dict[str, Any]:
    r"""The arrays W, a and b of a file, under either set of names."""
    if path.suffix.lower() not in READERS:
        raise ArgumentError("path", str(path), f"a name that ends in {', '.join(READERS)}")
    if not path.is_file():
        state = "a folder" if path.is_dir() else "which does not exist"
        raise ArgumentError("path", f"{path}, {state}", ACCEPTED)
    try:
        arrays = READERS[path.suffix.lower()](path)
    except LimbeckError:
        raise
    except Exception as error:  # readers raise errors of many kinds
        received = f"{path}, which cannot be read as {path.suffix.lower()} ({_line(error)})"
        raise ArgumentError("path", received, ACCEPTED) from error
    for names in NAMES:
        if all(name in arrays for name in names):
            return dict(zip(NAMES[0], (arrays[name] for name in names), strict=True))
    contents = ", ".join(sorted(map(str, arrays))[:8]) or "nothing"
    raise ArgumentError("path", f"{path}, which holds {contents}", ACCEPTED)


def from_arrays(
    cls: Callable[..., Kind],
    path: Path,
    arrays: Mapping[str, np.ndarray | Tensor],
    dtype: torch.dtype,
    device: Device,
) -> Kind:
    r"""An RBM of a file's arrays; errors name the file."""
    flat = {**arrays, **{name: _vector(arrays[name]) for name in ("a", "b")}}
    try:
        return cls(**flat, dtype=dtype, device=device)
    except ArgumentError as error:
        if error.argument not in flat:
            raise
        received = f"{path}, whose {error.argument} has {error.received}"
        raise ArgumentError("path", received, error.expected) from error


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    r"""Write tensors as .npz or .safetensors; a failure leaves no partial file."""
    if path.suffix.lower() not in WRITERS:
        raise ArgumentError("path", str(path), f"a name that ends in {' or '.join(WRITERS)}")
    arrays = {name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}
    try:
        with files.replacing(path) as temporary:
            Path(temporary).write_bytes(WRITERS[path.suffix.lower()](arrays))
    except CheckpointError as error:
        raise LimbeckError(f"path: writing {path} failed ({_line(error)})") from error
    return path


def _read_npz(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:  # numpy would leave a broken one open
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ArgumentError("path", f"{path}, which holds a single array", ACCEPTED)
        known = sum(NAMES, ())
        return {name: loaded[name] if name in known else None for name in loaded.files}


def _read_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # scikit-learn needs scipy, so it is there

    try:
        arrays = loadmat(path)
    except NotImplementedError:
        received = f"{path}, in MATLAB's format 7.3"
        raise ArgumentError("path", received, "an older one: save(name, '-v7', …)") from None
    return {name: array for name, array in arrays.items() if not name.startswith("__")}


def _npz(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _vector(array: np.ndarray | Tensor) -> np.ndarray | Tensor:
    r"""A row or column, as MATLAB has them, as a vector."""
    array = array if isinstance(array, Tensor) else np.asarray(array)
    return array.reshape(-1) if array.ndim == 2 and 1 in array.shape else array


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _read_npz,
    ".safetensors": load_safetensors,
    ".mat": _read_mat,
}
WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    ".npz": _npz,
    ".safetensors": safetensors_bytes,
}
