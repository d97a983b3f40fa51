r"""The user's files of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.cli.errors import state
from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["MAGIC", "Rows", "array", "divided", "numbers", "rows"]

ROWS = "X"
r"""The array of an npz file that holds the rows, where there are several."""

MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
r"""How npy and npz files begin."""


class Rows(NamedTuple):
    r"""Rows, a frame or an array, and their labels (n,) if there are any."""

    x: Any
    y: Any = None

    def at(self, index: np.ndarray) -> Rows:
        r"""Some of the rows."""
        x = self.x.iloc[index] if hasattr(self.x, "iloc") else self.x[index]
        return Rows(x, None if self.y is None else self.y[index])


def rows(
    path: Path, argument: str, label: str | None = None, drop: Sequence[str] | None = None
) -> Rows:
    r"""The rows of a file.

    Arguments:
        path: The file.
        argument: What the command calls it.
        label: The column, or the array of an npz file, that holds labels.
        drop: Columns to leave out.
    """
    found = _read(path, argument)
    if isinstance(found, dict):
        return _arrays(found, path, argument, label, drop)
    if isinstance(found, np.ndarray):
        if label is not None or drop:
            received = f"{path}, an array without names"
            expected = "a CSV, Parquet or npz file, for a label or columns by name"
            raise ArgumentError(argument, received, expected)
        return Rows(found)
    if not len(found):
        raise ArgumentError(argument, f"{path}, which has no rows", "a file with rows")
    for name in [*([] if label is None else [label]), *(drop or [])]:
        if name not in found.columns:
            option = "--label" if name == label else "--drop"
            error = ArgumentError.unknown(option, name, map(str, found.columns))
            expected = f"a column of {path}: {error.expected}"
            raise ArgumentError(option, error.received, expected)
    y = None if label is None else found[label].to_numpy()
    return Rows(found.drop(columns=[*([] if label is None else [label]), *(drop or [])]), y)


def _arrays(found: dict[str, Any], path: Path, argument: str, label: str | None, drop: Any) -> Rows:
    if drop:
        raise ArgumentError("--drop", drop, "nothing, for an npz file, whose columns have no names")
    names = [name for name in found if name != label]
    if label is not None and label not in found:
        raise ArgumentError.unknown("--label", label, found)
    name = next((each for each in names if each in (ROWS, ROWS.lower())), names[0] if names else "")
    if not names or (len(names) > 1 and name.upper() != ROWS):
        received = f"{path}, with {', '.join(found) or 'nothing'}"
        raise ArgumentError(argument, received, f"rows under the name {ROWS}, or one array")
    x, y = found[name], None if label is None else found[label]
    if y is not None and len(y) != len(x):
        raise ArgumentError(
            "--label", f"{len(y)} labels in {path}", f"one for each of {len(x)} rows"
        )
    return Rows(x, y)


def _read(path: Path, argument: str) -> Any:
    kind = path.suffix.lower()
    if not path.is_file():
        raise ArgumentError(argument, f"{path}, {state(path)}", f"a file: {', '.join(READERS)}")
    if kind not in READERS:
        raise ArgumentError(argument, str(path), f"a file that ends in {', '.join(READERS)}")
    try:
        found = READERS[kind](path)
    except LimbeckError:
        raise
    except Exception as error:  # of the readers' many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ArgumentError(argument, f"{path}, unreadable: {reason}", f"a {kind} file") from error
    if isinstance(found, np.ndarray) and (found.ndim == 0 or not len(found)):
        raise ArgumentError(argument, f"{path}, which has no rows", "a file with rows")
    return found


def _pandas(path: Path) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise LimbeckError(f"{path.name} needs pandas: pip install 'limbeck[tables]'") from error
    return pandas


def _csv(path: Path) -> Any:
    return _pandas(path).read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")


def _parquet(path: Path) -> Any:
    pandas = _pandas(path)
    try:
        return pandas.read_parquet(path)
    except ImportError as error:
        raise LimbeckError(f"{path.name} needs pyarrow: pip install 'limbeck[tables]'") from error


def _npy(path: Path) -> Any:
    with open(path, "rb") as file:
        if not file.read(len(MAGIC[0])).startswith(MAGIC):  # which NumPy would take for a pickle
            raise ValueError("it is no file that NumPy wrote")
        file.seek(0)
        found = np.load(file, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else dict(found.items())


READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".pq": _parquet,
    ".npy": _npy,
    ".npz": _npy,
}


def numbers(x: Any, argument: str, dtype: Any = "float32") -> np.ndarray:
    r"""Rows as an array of numbers, of their own type if none is given; errors name words."""
    if hasattr(x, "select_dtypes"):
        words = x.select_dtypes(exclude=["number", "bool"]).columns
        if len(words):
            received = f"columns that are not numbers: {', '.join(map(str, words[:5]))}"
            expected = "numbers; --drop leaves columns out"
            raise ArgumentError(argument, received, expected)
    found = np.asarray(x)
    if found.dtype.kind not in "biuf":
        raise ArgumentError(argument, f"an array of {found.dtype}", "numbers")
    return found if dtype is None else found.astype(dtype)


def array(path: Path, argument: str) -> np.ndarray:
    r"""The rows of a file as numbers."""
    return numbers(rows(path, argument).x, argument)


def divided(given: Rows, share: float, seed: int, argument: str) -> tuple[Rows, Rows]:
    r"""Rows to learn from, and a share of them set aside, drawn at random."""
    count = len(given.x)
    aside = max(1, round(share * count))
    if aside >= count:
        received = f"{count} rows, of which {aside} would be set aside"
        raise ArgumentError(argument, received, "more rows, or --test with others")
    order = np.random.default_rng(seed).permutation(count)
    return given.at(np.sort(order[aside:])), given.at(np.sort(order[:aside]))
