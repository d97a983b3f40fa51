r"""Posteriors in files: netCDF, Zarr, npy, npz and CSV."""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from limbeck.draws.stan import read_csv
from limbeck.draws.variables import Found, group
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["is_path", "opened"]

NETCDF = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5")
KINDS = (*NETCDF, ".zarr", ".npy", ".npz", ".csv")
POSITIONAL = "arr_0"  # numpy.savez's name for an array that came without one

Choose: TypeAlias = Callable[[Sequence[str]], list[str]]


def is_path(value: Any) -> bool:
    r"""Whether a value names a file, or several do."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_path, value))
    return isinstance(value, str | os.PathLike)


@contextlib.contextmanager
def opened(files: Any, choose: Choose, layout: str) -> Iterator[Found]:
    r"""What a file holds, as long as it is open.

    Large arrays are left in the file where it allows that: npy, npz that is not compressed.

    Arguments:
        files: A path; several of CSV files, which are chains.
        choose: Picks among the names that there are.
        layout: How axes are read where the file does not say.
    """
    paths = [Path(path) for path in (files if isinstance(files, list | tuple) else [files])]
    kinds = {path.suffix.lower() for path in paths}
    kind = kinds.pop()
    if kinds or kind not in KINDS or (len(paths) > 1 and kind != ".csv"):
        received = ", ".join(map(str, paths))
        accepted = f"a file that ends in {', '.join(KINDS)}, or several that end in .csv"
        raise ArgumentError("posterior", received, accepted)
    for path in paths:
        if not path.exists():
            raise ArgumentError(
                "posterior", f"{path}, which does not exist", "a file that is there"
            )
    with contextlib.ExitStack() as stack:
        try:
            if kind == ".csv":
                found = read_csv(paths, choose)
            elif kind in (".npy", ".npz"):
                found = Found(_numpy(paths[0], choose), layout)
            else:
                found = Found(_xarray(paths[0], choose, stack), layout)
        except LimbeckError:
            raise
        except Exception as error:  # of the readers' many kinds
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            received = f"{paths[0]}, which cannot be read ({reason})"
            raise ArgumentError("posterior", received, f"draws in a {kind} file") from error
        yield found


def _xarray(path: Path, choose: Choose, stack: contextlib.ExitStack) -> dict[str, Any]:
    try:
        xarray = importlib.import_module("xarray")
    except ImportError as error:
        install = "pip install 'limbeck[posteriors]', or read it and hand over the object"
        raise LimbeckError(f"posterior: {path.name} needs xarray: {install}") from error
    options: dict[str, Any] = (
        {"engine": "zarr", "consolidated": False} if path.suffix.lower() == ".zarr" else {}
    )
    try:
        data = xarray.open_dataset(path, group="posterior", **options)
    except (OSError, KeyError, ValueError):  # no such group, or no file of this kind at all
        data = xarray.open_dataset(path, **options)
    variables = group(stack.enter_context(data))
    assert variables is not None
    # A Zarr's order is that of a folder, which may be any.
    names = sorted(variables) if options else list(variables)
    return {name: variables[name] for name in choose(names)}


def _numpy(path: Path, choose: Choose) -> dict[str, Any]:
    if path.suffix.lower() == ".npy":
        choose([""])
        return {"": np.load(path, mmap_mode="c", allow_pickle=False)}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if list(members) == [POSITIONAL]:
        members = {"": members[POSITIONAL]}
    return {name: _member(path, members[name]) for name in choose(list(members))}


def _member(path: Path, info: zipfile.ZipInfo) -> Any:
    r"""An array of an npz file, mapped into memory if it is there byte by byte."""
    with open(path, "rb") as file:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size == 0:
            return np.load(file, allow_pickle=False)[info.filename.removesuffix(".npy")]
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, os.SEEK_CUR)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ArgumentError("posterior", f"{path}, with Python objects", "arrays of numbers")
        order: Any = "F" if fortran else "C"
        return np.memmap(path, dtype, "c", file.tell(), shape, order)
