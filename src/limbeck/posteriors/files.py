r"""Variables of a posterior from files: netCDF, Zarr, NumPy, Stan CSV."""

from __future__ import annotations

import contextlib
import csv
import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np

from limbeck import numpy_files
from limbeck.environment import import_extra
from limbeck.errors import ArgumentError, refuse_unreadable, require_path
from limbeck.posteriors.draws import group

INDEXED = re.compile(r"(.+?)(?:\[(\d+(?:,\s*\d+)*)\]|\.(\d+(?:\.\d+)*))")  # a[1,2] or a.1.2
MAX_NAME = 1000  # letters of a column's name
MAX_LINE = 2**24  # letters of a line of a CSV file
CHAIN = ("chain__", ".chain")
OTHER = (".iteration", ".draw", "")  # a nameless column is a table's index

Array = np.ndarray[Any, Any]
Choose: TypeAlias = Callable[[Sequence[str]], list[str]]


class Variables(NamedTuple):
    r"""The selected variables of a posterior."""

    by_name: Mapping[str, Any]  # a bare array has the name ''
    layout: str  # of their axes
    notes: Sequence[str] = ()  # for the user


def places(header: Sequence[object]) -> dict[str, Array]:
    r"""The columns of each variable, as an array of column numbers of the variable's shape.

    Columns of the sampler (lp__, .draw) are left out; columns that are named 0, 1, … are a vector.
    """
    names = [str(name).strip() for name in header]
    if long := [name for name in names if len(name) > MAX_NAME]:
        received = f"a name of {len(long[0]):,} letters"
        raise ArgumentError("posterior", received, f"names of up to {MAX_NAME:,}")
    named = [column for column, name in enumerate(names) if name]
    if [names[column] for column in named] == [str(number) for number in range(len(named))]:
        return {"": np.array(named)}
    columns: dict[str, dict[tuple[int, ...], int]] = {}
    for column, text in enumerate(names):
        if text.endswith("__") or text in (*CHAIN, *OTHER):
            continue
        match = INDEXED.fullmatch(text)
        name = match[1] if match else text
        place = tuple(map(int, re.split("[.,]", match[2] or match[3]))) if match else ()
        if place in columns.setdefault(name, {}):
            raise ArgumentError("posterior", f"two columns {text!r}", "a name for each column")
        columns[name][place] = column
    if not columns:
        received = f"the columns {', '.join(names[:8])}"
        raise ArgumentError("posterior", received, "columns of parameters")
    arrays = {}
    for name, of_variable in columns.items():  # whose indices start at one, or at a zero
        base = 0 if any(0 in place for place in of_variable) else 1
        shape = tuple(max(index) - base + 1 for index in zip(*of_variable, strict=False))
        if len(set(map(len, of_variable))) > 1 or math.prod(shape) != len(of_variable):
            received = f"{len(of_variable)} columns of {name}, as {list(of_variable)[-1]}"
            expected = "one for each index, all with as many indices"
            raise ArgumentError("posterior", received, expected)
        arrays[name] = np.array([of_variable[at] for at in sorted(of_variable)], int).reshape(shape)
    return arrays


def from_columns(
    header: Sequence[object], tables: Sequence[Array], choose: Choose, notes: Sequence[str] = ()
) -> Variables:
    r"""Variables (chain, draw, ...) of tables (draw, column) a chain or more each."""
    column = next((place for place, name in enumerate(header) if name in CHAIN), None)
    if column is not None:
        tables = [t[t[:, column] == chain] for t in tables for chain in np.unique(t[:, column])]
        _check_lengths("chains", tables)
    chains, columns = np.stack(tables), places(header)
    by_name = {name: chains[..., columns[name]] for name in choose(list(columns))}
    return Variables(by_name, "chains", notes)


def _check_lengths(kind: str, tables: Sequence[Array]) -> None:
    lengths = [len(table) for table in tables]
    if len(set(lengths)) > 1:
        received = f"{kind} of {', '.join(map(str, lengths))} draws"
        raise ArgumentError("posterior", received, "chains of equal length")


def _read_csv(paths: Sequence[Path], choose: Choose) -> Variables:
    heads = [_csv_head(path) for path in paths]
    header, _, warmup = heads[0]
    for path, (names, *_) in zip(paths, heads, strict=True):
        if names != header:
            received = f"{path}, with other columns than {paths[0]}"
            raise ArgumentError("posterior", received, "chains of one model")
    columns = places(header)
    chosen = [columns[name] for name in choose(list(columns))]
    used = sorted({int(column) for places in chosen for column in places.flat})
    used += [column for column, name in enumerate(header) if name in CHAIN]
    tables = [_table(path, *head[1:], used) for path, head in zip(paths, heads, strict=True)]
    _check_lengths("files", tables)
    notes = [f"{warmup} warmup draws of each chain are left out"] if warmup else []
    return from_columns([header[column] for column in used], tables, choose, notes)


def _lines(file: TextIO) -> Iterator[str]:
    r"""The lines of a file, which a file without ends of lines does not have."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise ValueError(f"a line of {MAX_LINE:,} letters or more")
        yield line


def _csv_head(path: Path) -> tuple[list[str], int, int]:
    r"""What a file has before its numbers: columns, lines, and how many draws are Stan's warmup."""
    comments, names, lines = [], [""], 0
    with open(path, encoding="utf-8-sig") as file:
        for lines, line in enumerate(_lines(file), start=1):  # noqa: B007 - used after the loop
            if line.startswith("#"):
                comments.append(line)
            elif line.strip():
                names = [name.strip() for name in next(csv.reader([line]))]
                break
    if not any(names):
        raise ArgumentError("posterior", f"{path}, without a line of names", "draws by column")
    numbered = [str(column) for column in range(len(names))]
    with contextlib.suppress(ValueError):  # a first line of numbers has no names
        if names != numbered and [float(name) for name in names]:
            return numbered, lines - 1, 0
    settings = dict(re.findall(r"^#[ \t]*(\w+)[ \t]*=[ \t]*(\S+)", "".join(comments), re.MULTILINE))
    saved = settings.get("save_warmup", "0").lower() in ("1", "true")
    warmup = math.ceil(int(settings.get("num_warmup", 0)) / int(settings.get("thin", 1)))
    return names, lines, warmup if saved else 0


def _table(path: Path, skipped: int, warmup: int, used: Sequence[int]) -> Array:
    with open(path, encoding="utf-8-sig") as file, warnings.catch_warnings(action="ignore"):
        rest = itertools.islice(_lines(file), skipped, None)
        rows = (line for line in rest if line.strip("\n\r, "))  # none is no reason to warn
        table = np.loadtxt(rows, delimiter=",", quotechar='"', usecols=used, ndmin=2)
    return table.reshape(-1, len(used))[warmup:]


KINDS = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".zarr", ".npy", ".npz", ".csv")


def open_files(
    paths: Sequence[Path], choose: Choose, layout: str, stack: contextlib.ExitStack
) -> Variables:
    r"""The variables of files, where large arrays stay as long as the stack is open."""
    kinds = {path.suffix.lower() for path in paths}
    kind = kinds.pop()
    if kinds or kind not in KINDS or (len(paths) > 1 and kind != ".csv"):
        received = ", ".join(map(str, paths))
        expected = f"a file that ends in {', '.join(KINDS)}, or several that end in .csv"
        raise ArgumentError("posterior", received, expected)
    for path in paths:
        require_path(path, "posterior", "draws", "any" if kind == ".zarr" else "file")
    with refuse_unreadable("posterior", paths[0], f"draws in a {kind} file"):
        if kind == ".csv":
            return _read_csv(paths, choose)
        if kind in (".npy", ".npz"):
            return Variables(_numpy(paths[0], choose), layout)
        return Variables(_xarray(paths[0], choose, stack), layout)


def _xarray(path: Path, choose: Choose, stack: contextlib.ExitStack) -> dict[str, Any]:
    zarr = path.suffix.lower() == ".zarr"
    needs = ("posteriors", f"posterior: {path.name} needs")
    xarray: Any = import_extra("xarray", *needs)
    if zarr:
        import_extra("zarr", *needs)
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if zarr else {}
    if "create_default_indexes" in inspect.signature(xarray.open_dataset).parameters:
        options["create_default_indexes"] = False  # which would be read here, whatever their size
    try:
        data = xarray.open_dataset(path, group="posterior", **options)
    except (OSError, KeyError, ValueError):  # no such group, or no file of this kind at all
        data = xarray.open_dataset(path, **options)
    variables = group(stack.enter_context(data))
    assert variables is not None
    names = sorted(variables) if zarr else list(variables)  # a folder may have any order
    chosen = {name: variables[name] for name in choose(names)}
    numpy_files.check_expansion(sum(map(_claimed_bytes, chosen.values())), path)
    return chosen


def _claimed_bytes(variable: Any) -> int:
    r"""What reading a variable may take: all of it, or one of its chunks, which may be larger."""
    chunks = variable.encoding.get("chunks") or variable.encoding.get("chunksizes") or ()
    return variable.dtype.itemsize * max(math.prod(variable.shape), math.prod(map(int, chunks)))


def _numpy(path: Path, choose: Choose) -> dict[str, Any]:
    if path.suffix.lower() == ".npy":
        choose([""])
        return {"": numpy_files.read_npy(path)}
    members = numpy_files.members(path)
    if list(members) == ["arr_0"]:  # numpy.savez's name for an array that came without one
        members = {"": members["arr_0"]}
    return {name: numpy_files.read_member(path, members[name]) for name in choose(list(members))}
