r"""Rows on disk under keys, in files that are written once: many may write, anyone may read."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limbeck.errors import CheckpointError
from limbeck.storage.files import replacing
from limbeck.teachers.keys import Array, distinct, row_keys

__all__ = ["Segments"]

KEYS, VALUES = ".keys.npy", ".values.npy"
MOST = 64  # segments, before the smaller half becomes one
CHUNK = 2**24  # bytes that are copied at once
LOOKS = 100  # at a folder that changes meanwhile
ABANDONED = 24 * 3600.0  # seconds after which an unfinished file has no writer any more


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
        r"""Keep rows; a CheckpointError says if that could not be done."""
        if len(keys):
            self._commit(np.column_stack([keys, _checks(keys, rows)]), [rows])
            with self._lock, contextlib.suppress(CheckpointError):  # readers will say what is wrong
                self._compact()

    def _commit(self, head: Array, rows: Iterable[Array]) -> None:
        name = f"{time.time_ns():020d}-{secrets.token_hex(8)}"
        values = self.folder / (name + VALUES)
        with replacing(values) as temporary:
            _save(temporary, self.dtype, (len(head), *self.shape), rows)
        try:
            with replacing(self.folder / (name + KEYS)) as temporary:
                _save(temporary, head.dtype, head.shape, [head])
        except CheckpointError:
            values.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # names, too, shall survive a crash
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _refresh(self) -> None:
        for _ in range(LOOKS):
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
                    (self.folder / (segment.name + ending)).unlink(missing_ok=True)
                except OSError:  # some systems keep files that are mapped
                    self._compacts = False
        for path in self.folder.iterdir():  # what killed processes have left unfinished
            keys = path.with_name(path.name.removesuffix(VALUES) + KEYS)
            unpaired = path.name.endswith(VALUES) and not keys.exists()
            with contextlib.suppress(OSError):
                old = time.time() - path.stat().st_mtime > ABANDONED
                if old and (path.suffix == ".tmp" or unpaired):
                    path.unlink()


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


def _save(path: str, dtype: np.dtype, shape: tuple[int, ...], pieces: Iterable[Array]) -> None:
    r"""Write an array piece by piece, by write calls: a mapped file on a full disk would crash."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype).data)


def _load(path: Path) -> Array:
    try:
        return np.asanyarray(np.lib.format.open_memmap(path, mode="r"))  # never pickled objects
    except FileNotFoundError:
        raise
    except Exception as error:  # of the reader's many kinds
        raise _damaged(path, f"cannot be read ({error})") from error


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"cache: {path} {what}; remove it and its pair, and only its answers are asked for again"
    )
