r"""A teacher's predictions stored on disk, so that each input is queried once over all runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from limbeck.arguments import Choice, Count, PathLike, checked_arguments
from limbeck.errors import ArgumentError, CheckpointError, rename_argument, shown
from limbeck.records import encode
from limbeck.storage import disk
from limbeck.storage.files import differences
from limbeck.teachers.keys import Array, distinct, row_keys

FORMAT = "limbeck-teacher-cache-1"
META = "meta.json"
KEYS, VALUES = ".keys.npy", ".values.npy"
MOST = 64  # segments, before the smaller half becomes one
CHUNK = 2**24  # bytes that are copied at once
ABANDONED = 24 * 3600.0  # seconds after which an unfinished file has no writer any more


class TeacherCache:
    r"""A folder with the predictions of any number of teachers at any inputs.

    Predictions are stored by the teacher's fingerprint or `cache_key`, and by the content of the
    input row. Several processes may use a folder at the same time.

    Arguments:
        folder: The folder; it is created with the first predictions.
        top_k: Number of the largest probabilities to store exactly; when they are read, the rest of
            1 is spread evenly over the other classes. Default: None, all of them.
        dtype: The type of stored numbers, "float32" or "float64". Default: "float32".
    """

    @checked_arguments
    def __init__(
        self, folder: PathLike, top_k: Count | None = None,
        dtype: Annotated[str, Choice("float32", "float64")] = "float32",
    ) -> None:  # fmt: skip
        self.folder, self.dtype = Path(folder), dtype
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError("cache", f"{self.folder}, which is a file", "a folder")
        self.top_k = top_k
        self._open: dict[str, Answers] = {}

    def answers(
        self, teacher: str, shape: tuple[int, ...], names: Sequence[str] = (), kind: str = "values"
    ) -> Answers:
        r"""The stored predictions of one teacher.

        Arguments:
            teacher: A string that identifies the teacher.
            shape: The shape of one prediction.
            names: Names of the outputs, if any; they must not change.
            kind: The kind of numbers: "values", or any other name.
        """
        if not isinstance(teacher, str) or not teacher:
            raise ArgumentError("cache_key", shown(teacher), "a string that stands for the teacher")
        partial = self.top_k is not None and kind == "values" and self.top_k < shape[0]
        top_k = self.top_k if partial else None
        about = {
            "format": FORMAT, "teacher": teacher, "kind": kind, "shape": list(shape),
            "names": list(map(str, names)), "top_k": top_k, "dtype": self.dtype,
        }  # fmt: skip
        identity = json.dumps([teacher, kind, top_k, self.dtype])
        digest = hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
        legible = re.sub(r"[^\w.-]+", "-", teacher, flags=re.ASCII).strip(".-")[:40]
        folder = self.folder / f"{legible}-{digest}".lstrip("-")
        known = self._open.get(folder.name)
        if known is None or known.about != about:
            known = self._open[folder.name] = Answers(folder, about)
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        return TeacherCache, (str(self.folder), self.top_k, self.dtype)  # not what is in memory

    def __repr__(self) -> str:
        return f"TeacherCache({str(self.folder)!r})"


class Answers:
    r"""The stored predictions of one teacher; made by `TeacherCache.answers`."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.shape, self.top_k = tuple(about["shape"]), about["top_k"]
        self.number = dtype = np.dtype(about["dtype"])
        if self.top_k is not None:
            size = (self.top_k,)
            dtype = np.dtype([("probability", dtype, size), ("class", np.int32, size)])
        self._segments = Segments(folder, dtype, self.shape if self.top_k is None else ())
        self._agreed = False

    def __len__(self) -> int:
        self._agree()
        return len(self._segments)

    def get(self, keys: Array) -> tuple[Array, Array]:
        r"""Which rows, by keys (n, 2), are stored, (n,), and their predictions, in order."""
        self._agree()
        known, rows = self._segments.lookup(keys)
        return known, self._decode(rows)

    def put(self, keys: Array, values: Array) -> None:
        r"""Store the predictions (n, *shape) at rows with keys (n, 2)."""
        rows = self._encode(values)
        if len(rows) != len(keys):
            raise ArgumentError("values", f"{len(rows)} answers", f"{len(keys)}, one for each key")
        if len(rows):
            self._agree()
            if not (self.folder / META).exists():
                _write(self.folder / META, [encode(self.about)])
            self._segments.write(keys, rows)

    def as_stored(self, values: Array) -> Array:
        r"""The predictions (n, *shape) as `get` would return them."""
        return self._decode(self._encode(values))

    def _encode(self, values: Array) -> Array:
        r"""The predictions as stored: rounded, and with `top_k` the largest of each row."""
        if np.shape(values)[1:] != self.shape:
            received = f"outputs of shape {np.shape(values)}"
            raise ArgumentError("values", received, f"(n, {', '.join(map(str, self.shape))})")
        with np.errstate(over="ignore"):
            numbers = np.asarray(values).astype(self.number)
        if not np.isfinite(numbers).all():
            expected = "finite ones" + (', or dtype="float64"' if self.number.itemsize == 4 else "")
            raise ArgumentError("values", f"numbers that are not finite as {self.number}", expected)
        if self.top_k is None:
            return numbers
        total = numbers.sum(1, dtype=np.float64)
        if (numbers < 0).any() or (abs(total - 1) > 1e-3).any():
            expected = "None for predictions that are not class probabilities"
            raise ArgumentError("top_k", "predictions that do not sum to 1", expected)
        # of equal probabilities the lower class, whatever else is in the row
        largest = np.argsort(-numbers, axis=1, kind="stable")[:, : self.top_k]
        rows = np.empty(len(numbers), self._segments.dtype)
        rows["class"] = largest
        rows["probability"] = np.take_along_axis(numbers, largest, axis=1)
        return rows

    def _decode(self, rows: Array) -> Array:
        r"""Stored rows as predictions; the rest of 1 is spread over the classes not stored."""
        if self.top_k is None:
            return rows
        probabilities = rows["probability"].astype(np.float64)
        rest = np.maximum(0.0, 1.0 - probabilities.sum(1)) / (self.shape[0] - self.top_k)
        values = np.repeat(rest[:, None], self.shape[0], axis=1)
        np.put_along_axis(values, rows["class"].astype(np.intp), probabilities, axis=1)
        return values

    def _agree(self) -> None:
        r"""Refuse a folder that was made for something else."""
        if self._agreed:
            return
        filled = self.folder.is_dir() and any(self.folder.glob("*.npy"))  # looked at before meta
        path = self.folder / META
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if filled:
                raise CheckpointError(f"cache: {path} is missing; remove its folder") from None
            return
        except (OSError, ValueError) as error:
            message = f"cache: {path} cannot be read ({error}); remove its folder"
            raise CheckpointError(message) from error
        name = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        if name != FORMAT:
            raise CheckpointError(f"cache: {path} has the format {name!r}; expected {FORMAT!r}")
        if different := differences(saved, self.about):
            raise CheckpointError(
                f"cache: {self.folder} was made for another teacher: {'; '.join(different)}. "
                "Give another cache_key, or remove the folder."
            )
        self._agreed = True


def as_cache(value: object) -> TeacherCache | None:
    r"""A cache of a folder's path; None stays None."""
    if value is None or isinstance(value, TeacherCache):
        return value
    with rename_argument("folder", "cache", ", a TeacherCache, or None"):
        return TeacherCache(value)  # type: ignore[arg-type]


class Segment(NamedTuple):
    r"""One write."""

    name: str
    head: Array  # (n, 3): keys, and checks of the rows
    values: Array


class Segments:
    r"""Rows under keys, in a folder, where each write makes a segment."""

    # its two files are renamed when complete, the keys last, and never changed: no locks needed

    def __init__(self, folder: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.folder, self.dtype, self.shape = folder, dtype, shape
        self._index(())
        self._lock, self._compacts = threading.RLock(), True

    def __len__(self) -> int:
        with self._lock:
            self._refresh()
            return len(distinct(self._keys)[0])

    def lookup(self, keys: Array) -> tuple[Array, Array]:
        r"""Which keys (n, 2) are there, (n,), and the rows of those that are, in order."""
        with self._lock:
            self._refresh()
            places = self._find(keys)
            known = places >= 0
            places = places[known]
            rows = np.empty((len(places), *self.shape), self.dtype)
            which = np.searchsorted(self._starts, places, side="right") - 1
            for number in np.unique(which):
                segment, here = self._order[number], which == number
                inside = places[here] - self._starts[number]
                rows[here] = part = segment.values[inside]
                wrong = _checks(segment.head[inside, :2], part) != segment.head[inside, 2]
                if wrong.any():
                    path = self.folder / (segment.name + VALUES)
                    raise _damaged(path, f"has another row {inside[wrong][0]} than was written")
            return known, rows

    def write(self, keys: Array, rows: Array) -> None:
        r"""Store rows; raises a CheckpointError on failure."""
        if len(keys):
            self._commit(np.column_stack([keys, _checks(keys, rows)]), [rows])
            with self._lock, contextlib.suppress(CheckpointError):  # readers will say what is wrong
                self._compact()

    def _commit(self, head: Array, rows: Iterable[Array]) -> None:
        name = f"{time.time_ns():020d}-{secrets.token_hex(8)}"
        values = self.folder / (name + VALUES)
        _write(values, _array_file(self.dtype, (len(head), *self.shape), rows))
        try:
            keys = self.folder / (name + KEYS)
            _write(keys, _array_file(head.dtype, head.shape, [head]))
        except CheckpointError:
            with contextlib.suppress(OSError):
                disk.remove(values)
            raise
        disk.flush_folder(self.folder)  # names, too, shall survive a crash

    def _refresh(self) -> None:
        for _ in range(100):  # the folder may change meanwhile
            before, names = set(self._listing()), sorted(self._listing())
            if not before.issubset(names):  # others compact; the list may lack old and new ones
                continue
            if names == [segment.name for segment in self._order]:
                return
            known = {segment.name: segment for segment in self._order}
            segments = [known.get(name) or self._open(name) for name in names]
            if None not in segments:
                return self._index(segment for segment in segments if segment is not None)
        raise CheckpointError(f"cache: the files in {self.folder} do not stay; is a link broken?")

    def _listing(self) -> Iterator[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"cache: {self.folder} cannot be read ({error})") from error
        for name in names:
            if name.endswith(KEYS) and not name.startswith("."):
                yield name.removesuffix(KEYS)
            elif name.endswith(".npy") and not name.endswith(VALUES):
                raise _damaged(self.folder / name, "is not one of the teacher cache's own files")

    def _open(self, name: str) -> Segment | None:
        keys, values = (self.folder / (name + ending) for ending in (KEYS, VALUES))
        try:
            head = _load(keys)
            if head.dtype != np.uint64 or head.ndim != 2 or head.shape[1] != 3:
                raise _damaged(keys, f"holds {head.dtype} of shape {head.shape}, not keys")
            rows = _load(values)
        except FileNotFoundError:
            if not keys.exists():
                return None
            raise _damaged(values, "is missing") from None
        expected = (len(head), *self.shape)
        if rows.dtype != self.dtype or rows.shape != expected:
            holds = f"holds {rows.dtype} of shape {rows.shape}"
            raise _damaged(values, f"{holds}, and not {self.dtype} of shape {expected}")
        return Segment(name, head, rows)

    def _index(self, segments: Iterable[Segment]) -> None:
        self._order = list(segments)
        heads = [segment.head for segment in self._order]
        joined = np.concatenate([np.zeros((0, 3), np.uint64), *heads])
        self._starts = np.cumsum([0, *map(len, heads)])
        self._places = np.argsort(joined[:, 0], kind="stable")
        self._keys = joined[self._places, :2]
        self._lanes = self._keys[:, 0].copy()  # contiguous, for the search

    def _find(self, keys: Array) -> Array:
        r"""The place of each key among all rows, (n,); −1 where it is not there."""
        order = np.argsort(keys[:, 0])  # a search in order is many times faster
        at = np.empty(len(keys), np.intp)
        at[order] = np.searchsorted(self._lanes, keys[order, 0])
        places = np.full(len(keys), -1)
        left = np.arange(len(keys))
        while True:  # once, but where the first half of two keys is the same
            left = left[at[left] < len(self._lanes)]
            left = left[self._lanes[at[left]] == keys[left, 0]]
            if not len(left):
                return places
            same = self._keys[at[left], 1] == keys[left, 1]
            places[left[same]] = self._places[at[left[same]]]
            left = left[~same]
            at[left] += 1

    def _compact(self) -> None:
        if not self._compacts or len(list(self._listing())) <= MOST:
            return
        self._refresh()
        smaller = sorted(self._order, key=lambda s: len(s.head))[: MOST // 2 + 1]
        head = np.concatenate([segment.head for segment in smaller])
        numbers = np.sort(distinct(head[:, :2])[0])
        self._commit(head[numbers], _copied(smaller, numbers))
        for segment in smaller:
            for ending in (KEYS, VALUES):  # without its keys a segment is gone
                try:
                    disk.remove(self.folder / (segment.name + ending))
                except OSError:  # some systems keep files that are mapped
                    self._compacts = False
        for path in self.folder.iterdir():  # what killed processes have left unfinished
            keys = path.with_name(path.name.removesuffix(VALUES) + KEYS)
            unpaired = path.name.endswith(VALUES) and not keys.exists()
            with contextlib.suppress(OSError):
                old = time.time() - path.stat().st_mtime > ABANDONED
                if old and (path.suffix == ".tmp" or unpaired):
                    disk.remove(path)


def _copied(segments: list[Segment], numbers: Array) -> Iterator[Array]:
    r"""The rows of segments with these numbers, in pieces that fit into memory."""
    start = 0
    for segment in segments:
        stop = start + len(segment.head)
        inside = numbers[(numbers >= start) & (numbers < stop)] - start
        step = max(1, CHUNK * len(segment.head) // max(1, segment.values.nbytes))
        yield from (segment.values[inside[at : at + step]] for at in range(0, len(inside), step))
        start = stop


def _checks(keys: Array, rows: Array) -> Array:
    words = np.ascontiguousarray(rows).view(np.uint32).reshape(len(rows), -1)
    return row_keys(words)[:, 0] ^ keys[:, 0]


def _array_file(dtype: np.dtype, shape: tuple[int, ...], pieces: Iterable[Array]) -> Iterator[Any]:
    r"""An array's file piece by piece: no more than one of them is in memory."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, about)
    yield header.getvalue()
    for piece in pieces:
        yield np.ascontiguousarray(piece, dtype).reshape(-1).view(np.uint8)


def _write(path: Path, content: Iterable[Any]) -> None:
    try:
        disk.write_file(path, content)
    except OSError as error:
        raise CheckpointError(f"cache: writing {path} failed ({error})") from error


def _load(path: Path) -> Array:
    try:
        return np.asanyarray(np.lib.format.open_memmap(path, mode="r"))  # never pickled objects
    except FileNotFoundError:
        raise
    except Exception as error:  # of the reader's many kinds
        raise _damaged(path, f"cannot be read ({error})") from error


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"cache: {path} {what}; remove it and its pair; only its predictions are computed again"
    )
