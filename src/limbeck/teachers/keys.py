r"""Rows of any kind, and their keys: equal rows have equal keys in every format."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import numbers
import uuid
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import torch

from limbeck.arrays import map_tensors, to_numpy
from limbeck.errors import ArgumentError

Array: TypeAlias = np.ndarray[Any, Any]

ACCEPTED = "rows of numbers, strings, dates and missing values: an array, frame, sparse matrix"
BLOCK = 2**15  # numbers that are mixed at once, so that they stay in the cache
EXACT = 2**53  # integers up to here are exact in float64
GAPS = ("NAType", "NaTType")  # types of pandas' missing values
ROUNDS = ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB))  # Stafford's variant 13


def as_rows(X: object) -> Any:
    r"""The user's inputs in a form from which rows can be selected; lists become arrays."""
    if isinstance(X, dict):
        if not X:
            raise ArgumentError("X", "an empty dict", ACCEPTED)
        return {name: as_rows(part) for name, part in X.items()}
    if hasattr(X, "tocsr"):
        return X.tocsr()
    if hasattr(X, "iloc") or isinstance(X, torch.Tensor):
        return X
    try:
        return np.asanyarray(X)
    except ValueError as reason:
        raise ArgumentError("X", f"what is no array ({reason})", ACCEPTED) from None


def count(X: object) -> int:
    r"""The number of rows."""
    rows = as_rows(X)
    if isinstance(rows, dict):
        return count(next(iter(rows.values())))
    if not rows.shape:
        raise ArgumentError("X", f"a {type(X).__name__} without rows", ACCEPTED)
    return int(rows.shape[0])


def select(X: object, rows: Array) -> Any:
    r"""Some rows of an array, a tensor, a frame, a sparse matrix, or a dict of these."""
    if isinstance(X, dict):
        return {name: select(part, rows) for name, part in X.items()}
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]  # type: ignore[index]


def as_given(X: object) -> Any:
    r"""Tensors and lists as arrays; frames, sparse matrices and arrays as they came."""
    return as_rows(map_tensors(to_numpy, X))


def missing(values: Array) -> Array:
    r"""Which values are None, NaN, NaT or pandas' NA, in their shape."""
    if values.dtype.kind != "O":
        return np.asarray(values != values)
    gone = [
        value is None
        or type(value).__name__ in GAPS
        or (isinstance(value, numbers.Number | np.generic) and bool(value != value))
        for value in values.flat
    ]
    return np.array(gone, bool).reshape(values.shape)


def dense(X: object) -> np.ndarray:
    r"""One array: a frame's columns side by side, a sparse matrix with its zeros."""
    if isinstance(X, dict):
        raise ArgumentError("X", f"a dict of {', '.join(map(repr, X))}", "one array")
    rows = as_given(X)
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)


def first_rows(X: object, reason: str, most: int = 16) -> Any:
    r"""A few rows at which a teacher is queried first; an error if there are none."""
    rows = None if X is None else as_rows(X)
    if rows is None or count(rows) == 0:
        received = "None" if X is None else "no rows"
        raise ArgumentError("X", received, f"a few rows, to see {reason}")
    return select(rows, np.arange(min(most, count(rows))))


def row_keys(X: object) -> Array:
    r"""A key of 128 bits for each row, as (n, 2) unsigned integers; no cryptographic hash."""
    # the sum over columns of a random function of the value: 1, 1.0 and True are equal, and so are
    # 0.0 and −0.0, a sparse row and the dense one; NaN, None, NA and NaT are not
    rows = as_rows(X)
    if hasattr(rows, "tocsr"):
        step = max(1, 2**22 // max(1, rows.shape[1]))  # numbers that are filled in at once
        blocks = (rows[at : at + step].toarray() for at in range(0, max(1, rows.shape[0]), step))
        return np.concatenate([row_keys(block) for block in blocks])
    parts = _parts(rows)
    n = len(parts[0][2])
    keys = np.zeros((n, 2), np.uint64)
    # of each column a random function, by multipliers, offsets and weights (3, columns)
    columns, at = sum(values.shape[1] for _, _, values in parts), 0
    schema = json.dumps([[name, list(shape)] for name, shape, _ in parts])
    code = hashlib.blake2b(schema.encode(), digest_size=16).digest()
    random = np.random.PCG64(int.from_bytes(code, "little")).random_raw(3 * columns)
    functions = random.reshape(3, columns)
    functions[0] |= np.uint64(1)  # odd, so that different values stay different
    for name, _, values in parts:
        if len(values) != n:
            raise ArgumentError(f"X[{name!r}]", f"{len(values)} rows", f"{n}, as the other parts")
        of_part = functions[:, at : (at := at + values.shape[1])]
        if values.dtype == object:
            for column in range(values.shape[1]):
                keys += _objects(values[:, column], of_part[:, column : column + 1])
        else:
            _add_numbers(keys, values, of_part)
    return keys


def distinct(keys: Array) -> tuple[Array, Array]:
    r"""Where each distinct key comes first (m,), in that order, and which of them each is (n,)."""
    texts = np.ascontiguousarray(keys).view("S16").reshape(-1)  # which are compared as wholes
    _, first, inverse = np.unique(texts, return_index=True, return_inverse=True)
    appearance = np.argsort(first)
    return first[appearance], np.argsort(appearance)[inverse]


def _parts(X: Any) -> list[tuple[str, tuple[int, ...], Array]]:
    r"""Names, shapes of a row, and values (n, columns), which are numbers or objects."""
    if isinstance(X, dict):
        named = list(X.items())
    elif hasattr(X, "iloc"):
        X = X.to_frame() if not hasattr(X, "columns") else X
        named = [(name, X.iloc[:, k]) for k, name in enumerate(X.columns)]
    else:
        named = [("", X)]
    arrays = [(str(name), _values(part)) for name, part in named]
    parts = [(name, a.shape[1:], a.reshape(len(a), math.prod(a.shape[1:]))) for name, a in arrays]
    if not any(values.shape[1] for _, _, values in parts):
        raise ArgumentError("X", "rows without columns", ACCEPTED)
    return parts


def _values(part: Any) -> Array:
    if hasattr(part, "iloc"):
        plain = isinstance(part.dtype, np.dtype) and part.dtype.kind in "biuf"
        part = part.to_numpy() if plain else part.to_numpy(dtype=object)
    array = np.asarray(to_numpy(part))
    if array.ndim == 0:
        raise ArgumentError("X", "a single value", ACCEPTED)
    masked = np.ma.is_masked(part)
    if masked or array.dtype.kind not in "biufOUS":
        received = "masked values" if masked else f"values of dtype {array.dtype}"
        raise ArgumentError("X", received, ACCEPTED)
    wide = array.dtype.kind in "iu" and array.itemsize == 8 and array.size
    inexact = wide and (array.max() > EXACT or array.min() < -EXACT)
    return array.astype(object) if inexact or array.dtype.kind in "US" else array


def _add_numbers(keys: Array, values: Array, functions: Array) -> None:
    r"""Add random 64 bits of each number, by the functions (3, columns) of the columns."""
    step = max(1, BLOCK // max(1, values.shape[1]))
    functions = functions[:, :, None]
    for start in range(0, len(values), step):
        # transposed, since sums over rows are quick
        floats = np.array(values[start : start + step].T, np.float64, order="C")
        floats += 0.0  # −0.0 becomes 0.0
        floats[np.isnan(floats)] = np.nan  # NaN come in many patterns
        bits = floats.view(np.uint64)
        bits *= functions[0]
        bits += functions[1]
        for shift, factor in ROUNDS:
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(factor)
        bits ^= bits >> np.uint64(32)
        keys[start : start + step, 0] += bits.sum(0)
        bits *= functions[2]
        keys[start : start + step, 1] += bits.sum(0)


def _objects(values: Array, function: Array) -> Array:
    codes: dict[Any, int] = {}
    try:
        which = np.fromiter((codes.setdefault(v, len(codes)) for v in values), np.intp, len(values))
    except TypeError as reason:
        raise ArgumentError("X", f"a cell that holds {reason}", ACCEPTED) from None
    words = [_word(value) for value in codes]
    keys = np.zeros((len(words), 2), np.uint64)
    floats = np.array([word if isinstance(word, float) else 0.0 for word in words])
    _add_numbers(keys, floats[:, None], function)
    for k, word in enumerate(words):  # these replace the keys of numbers
        if isinstance(word, bytes):
            digest = hashlib.blake2b(word, digest_size=16, key=function.astype("<u8").tobytes())
            keys[k] = np.frombuffer(digest.digest(), "<u8")
    return keys[which]


def _word(value: object) -> float | bytes:
    r"""A float where the value is one exactly, else bytes that say all of it."""
    if isinstance(value, str):
        return b"text " + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"bytes " + value
    kind = type(value)
    if value is None or kind.__name__ in GAPS:
        return f"missing {kind.__name__}".encode()
    number = isinstance(value, numbers.Number | np.bool_)
    if number and not isinstance(value, complex | np.complexfloating):
        # Python compares exactly
        exact: Any = value.item() if isinstance(value, np.generic) else value
        try:
            rounded = float(exact)
        except OverflowError:
            rounded = float("inf")
        if rounded == exact or exact != exact:
            return rounded
        return f"number {Fraction(*exact.as_integer_ratio())}".encode()
    if isinstance(value, datetime.datetime):
        value = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        return f"time {value.isoformat()}".encode()
    if isinstance(value, datetime.timedelta):
        rest = getattr(value, "nanoseconds", 0)  # pandas' own have them
        return f"span {value.days} {value.seconds} {value.microseconds} {rest}".encode()
    of_pandas = kind.__module__.partition(".")[0] == "pandas"  # intervals, periods
    if of_pandas or isinstance(value, datetime.date | datetime.time | uuid.UUID):
        return f"{kind.__name__} {value!r}".encode()
    raise ArgumentError("X", f"a cell that holds a {kind.__name__}", ACCEPTED)
