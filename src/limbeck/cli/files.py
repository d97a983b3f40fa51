r"""Arguments of the command line: data files, and the user's own code as `module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from limbeck.errors import ArgumentError, refuse_unreadable, require_path, suggestion

if TYPE_CHECKING:  # --help must not wait for these
    import numpy as np
    import pandas as pd

IMPORTED_FILES: set[str] = set()  # the user's own code, whose errors are not bugs in limbeck
PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")
DATA_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".npy", ".npz")
MODEL_SUFFIXES = (".onnx", ".json", ".ubj", ".txt", ".cbm")
MAX_COLUMNS = 100_000  # of a CSV file; pandas takes kilobytes of memory for each
MAX_HEADER = 2**24  # characters of a first line that are looked at
REFERENCE = re.compile(r"(?P<module>.+):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")


def is_reference(text: str) -> bool:
    r"""Whether a string names something in a module, as models:teacher or a/b.py:net.head do."""
    return REFERENCE.fullmatch(text) is not None


def object_or_text(text: str, argument: str) -> Any:
    r"""The object that `module:name` names; any other text as it is."""
    return load_object(text, argument) if is_reference(text) else text


def load_object(text: str, argument: str) -> Any:
    r"""The object that `module:name` or `file.py:name` names; this folder is searched first."""
    match = REFERENCE.fullmatch(text)
    if match is None:
        raise ArgumentError(argument, repr(text), "module:name, such as models:teacher")
    value: object = _import_module(match["module"], text, argument)
    for part in match["name"].split("."):
        if not hasattr(value, part):
            public = [name for name in dir(value) if not name.startswith("_")]
            names = ArgumentError.unknown(argument, part, public).expected
            expected = f"a name in it: {names}" if public else "a name in it; it has none"
            raise ArgumentError(argument, f"{text!r}, and {part!r} does not exist", expected)
        value = getattr(value, part)
    return value


def _import_module(name: str, text: str, argument: str) -> ModuleType:
    here, path = Path.cwd(), Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ArgumentError(argument, f"{path}, which is not a file", "an existing Python file")
    for folder in (str(here), str(path.parent.resolve())):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        module = _import_file(path) if is_file else importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module may raise
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong = error if isinstance(error, SyntaxError) else last
            place = f"at {Path(wrong.filename or '?').name}, line {wrong.lineno}"
            reason = f"{type(error).__name__}: {' '.join(str(error).split())} {place}"
            received = f"{text!r}, whose import fails ({reason})"
            expected = "a module that can be imported; --debug shows more"
            raise ArgumentError(argument, received, expected) from error
        hint = suggestion(missing, [path.stem for path in here.glob("*.py")])
        expected = f"a module in {here} or installed{hint}"
        raise ArgumentError(argument, f"{text!r}, and there is no {name!r}", expected) from None
    if origin := getattr(module, "__file__", None):
        IMPORTED_FILES.add(str(Path(origin).resolve()))
    return module


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that its classes can be looked up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


class Rows(NamedTuple):
    r"""Rows, a frame or an array, with their labels and weights (n,) if there are any."""

    x: np.ndarray | pd.DataFrame
    y: np.ndarray | None = None
    weight: np.ndarray | None = None


def read_rows(
    path: Path, argument: str, label: str | None = None, drop: Sequence[str] | None = None,
    weight: str | None = None, dates: Sequence[str] | None = None,
) -> Rows:  # fmt: skip
    r"""The rows of a file; `label` and `weight` are columns, or arrays of an npz file."""
    import numpy as np

    data, named = read_data(path, argument), {"--label": label, "--sample-weight": weight}
    is_frame, is_npz = hasattr(data, "columns"), isinstance(data, dict)
    left_out = [(name, "--drop") for name in drop or []]
    left_out += [(name, option) for option, name in named.items() if name is not None]
    columns = [*left_out, *((name, "--dates") for name in dates or [])]
    if columns and not is_frame and (drop or dates or not is_npz):
        expected = "a CSV or Parquet file, for columns by name (an npz file for labels)"
        raise ArgumentError(columns[0][1], f"{path}, of columns without names", expected)
    for name, option in columns:
        if name not in (data.columns if is_frame else data):
            error = ArgumentError.unknown(option, name, map(str, data))
            raise ArgumentError(option, error.received, f"a column of {path}: {error.expected}")
    y, weights = (None if name is None else np.asarray(data[name]) for name in named.values())
    if is_frame:
        data = data.assign(**{name: _as_dates(data[name], path) for name in dates or []})
        data = data.drop(columns=[name for name, _ in left_out])
    elif is_npz:  # rows are X, or the only other array
        arrays = {name: part for name, part in data.items() if name not in named.values()}
        rows = [part for name, part in arrays.items() if name in ("X", "x") or len(arrays) == 1]
        if not rows:
            received = f"{path}, with {', '.join(data) or 'nothing'}"
            raise ArgumentError(argument, received, "rows under the name X, or one array")
        data = rows[0]
    if not data.shape or not len(data):
        raise ArgumentError(argument, f"{path}, which has no rows", "a file with rows")
    for option, part in zip(named, (y, weights), strict=True):
        if part is not None and (not part.ndim or len(part) != len(data)):
            received = f"{part.size} values in {path}"
            raise ArgumentError(option, received, f"one for each of {len(data)} rows")
    return Rows(data, y, weights)


def _as_dates(column: pd.Series, path: Path) -> pd.Series:
    r"""A column of dates as text, as dates."""
    import pandas as pd

    try:
        if pd.api.types.is_numeric_dtype(column.dtype):  # which would be nanoseconds since 1970
            raise ValueError("its values are numbers")
        with warnings.catch_warnings():  # of dates that may be read in two ways
            warnings.simplefilter("error", UserWarning)
            return pd.to_datetime(column)
    except (ValueError, TypeError, OverflowError, UserWarning) as error:
        received = f"{column.name!r} of {path}, unreadable: {str(error).splitlines()[0]}"
        raise ArgumentError("--dates", received, "a column of dates such as 2026-11-19") from error


def read_data(path: Path, argument: str) -> Any:
    r"""The content of a file: a frame, an array, or a dict of arrays (npz)."""
    suffix = require_path(path, argument, "a file of rows", "file", DATA_SUFFIXES)
    with refuse_unreadable(argument, path, f"a {suffix} file"):
        data = _read_numpy(path) if suffix in (".npy", ".npz") else _read_table(path, suffix)
    if getattr(data, "ndim", 1) == 0:
        raise ArgumentError(argument, f"{path}, which has no rows", "a file with rows")
    return data


def _read_table(path: Path, suffix: str) -> pd.DataFrame:
    from limbeck.environment import import_extra
    from limbeck.numpy_files import check_expansion

    pd = import_extra("pandas", "tables", f"{path.name} needs")
    separator = {".csv": ",", ".tsv": "\t"}.get(suffix)
    if separator is not None:
        with open(path, encoding="utf-8", errors="replace") as file:
            columns = file.readline(MAX_HEADER).count(separator) + 1
        if columns > MAX_COLUMNS:
            raise ValueError(f"its first line has {columns:,} columns, of {MAX_COLUMNS:,}")
        return pd.read_csv(path, sep=separator)
    about = import_extra("pyarrow.parquet", "tables", f"{path.name} needs").read_metadata(path)
    sizes = [about.row_group(k).total_byte_size for k in range(about.num_row_groups)]
    claimed = max(sum(sizes), 8 * about.num_rows * about.num_columns)
    check_expansion(claimed, path, free=2**32)  # equal values take no space in such files
    return pd.read_parquet(path)


def _read_numpy(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    import numpy as np

    from limbeck import numpy_files

    with open(path, "rb") as file:
        if file.read(1) == b"\x93":
            return np.array(numpy_files.read_npy(path))
    members = numpy_files.members(path).items()
    return {name: np.array(numpy_files.read_member(path, member)) for name, member in members}


def as_numbers(
    x: np.ndarray | pd.DataFrame, argument: str, dtype: str | None = "float32"
) -> np.ndarray:
    r"""Rows as an array of numbers; `dtype=None` keeps their type."""
    import numpy as np

    if hasattr(x, "select_dtypes"):
        words = x.select_dtypes(exclude=["number", "bool"]).columns
        if len(words):
            received = f"columns that are not numbers: {', '.join(map(str, words[:5]))}"
            raise ArgumentError(argument, received, "numbers; --drop leaves columns out")
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        raise ArgumentError(argument, f"an array of {array.dtype}", "numbers")
    return array if dtype is None else array.astype(dtype)


def split_rows(rows: Rows, share: float, seed: int, argument: str) -> tuple[Rows, Rows]:
    r"""Rows to train on, and a random share of them set aside."""
    import numpy as np

    from limbeck.teachers.keys import select

    count = len(rows.x)
    aside = max(1, round(share * count))
    if aside >= count:
        received = f"{count} rows, of which {aside} would be set aside"
        raise ArgumentError(argument, received, "more rows, or --test with others")

    def take(index: np.ndarray) -> Rows:
        return Rows(*(None if part is None else select(part, np.sort(index)) for part in rows))

    order = np.random.default_rng(seed).permutation(count)
    return take(order[aside:]), take(order[:aside])
