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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.arguments import PathLike, checked_arguments
from limbeck.errors import ArgumentError, CheckpointError, rename_argument, shown
from limbeck.records import encode
from limbeck.storage import disk
from limbeck.storage.files import differences
from limbeck.teachers.keys import Array, distinct, row_keys

FORMAT = "limbeck-teacher-cache-2"
META = "meta.json"
ROWS = ".rows.npy"  # the ending of each file of rows
MOST = 64  # files of rows, before the smaller half becomes one
ABANDONED = 24 * 3600.0  # seconds after which an unfinished file has no writer any more


class TeacherCache:
    r"""A folder with the predictions of any number of teachers at any inputs.

    Predictions are stored by the teacher's fingerprint or `cache_key`, and by the content of the
    input row. Several processes may use a folder at the same time.

    Arguments:
        folder: The folder; it is created with the first predictions.
    """

    @checked_arguments
    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError("cache", f"{self.folder}, which is a file", "a folder")
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
        about = {
            "format": FORMAT, "teacher": teacher, "kind": kind, "shape": list(shape),
            "names": list(map(str, names)),
        }  # fmt: skip
        identity = json.dumps([teacher, kind, None, "float32"])  # as of format 1, to refuse those
        digest = hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
        legible = re.sub(r"[^\w.-]+", "-", teacher, flags=re.ASCII).strip(".-")[:40]
        folder = self.folder / f"{legible}-{digest}".lstrip("-")
        known = self._open.get(folder.name)
        if known is None or known.about != about:
            known = self._open[folder.name] = Answers(folder, about)
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        return TeacherCache, (str(self.folder),)  # not what is in memory

    def __repr__(self) -> str:
        return f"TeacherCache({str(self.folder)!r})"


def as_cache(value: object) -> TeacherCache | None:
    r"""A cache of a folder's path; None stays None."""
    if value is None or isinstance(value, TeacherCache):
        return value
    with rename_argument("folder", "cache", ", a TeacherCache, or None"):
        return TeacherCache(value)  # type: ignore[arg-type]


class Answers:
    r"""The stored predictions of one teacher; made by `TeacherCache.answers`.

    Each write makes a file of rows, which is renamed when it is complete and never changed, so that
    processes need no locks.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.shape = tuple(about["shape"])
        # the check is a hash of the key and the values
        parts = [("key", np.uint64, 2), ("check", np.uint64), ("values", np.float64, self.shape)]
        self.dtype = np.dtype(parts)
        self._agreed, self._compacts, self._lock = False, True, threading.RLock()
        self._index({})

    def __len__(self) -> int:
        self._refresh()
        return len(distinct(self._keys)[0])

    def get(self, keys: Array) -> tuple[Array, Array]:
        r"""Which rows, by keys (n, 2), are stored, (n,), and their predictions, in order."""
        with self._lock:
            self._refresh()
            if not len(self._keys):
                return np.zeros(len(keys), bool), np.empty((0, *self.shape))
            order = np.argsort(keys[:, 0])  # a search in order is many times faster
            at = np.empty(len(keys), np.intp)
            at[order] = np.searchsorted(self._lanes, keys[order, 0])
            at = np.minimum(at, len(self._keys) - 1)
            known = (self._keys[at] == keys).all(1)
            places = self._places[at[known]]
            values = np.empty((len(places), *self.shape))
            which = np.searchsorted(self._starts, places, side="right") - 1
            for number in np.unique(which):
                name, here = list(self._files)[number], which == number
                inside = places[here] - self._starts[number]
                rows = self._files[name][inside]
                values[here] = rows["values"]
                wrong = _checks(rows["key"], rows["values"]) != rows["check"]
                if wrong.any():
                    what = f"has another row {inside[wrong][0]} than was written"
                    raise _damaged(self.folder / name, what)
            return known, values

    def put(self, keys: Array, values: Array) -> None:
        r"""Store the predictions (n, *shape) at rows with keys (n, 2)."""
        numbers = np.asarray(values, np.float64)
        if numbers.shape != (len(keys), *self.shape):
            expected = f"{(len(keys), *self.shape)}, a row for each key"
            raise ArgumentError("values", f"outputs of shape {numbers.shape}", expected)
        if not np.isfinite(numbers).all():
            raise ArgumentError("values", "numbers that are not finite", "finite ones")
        if not len(keys):
            return
        self._agree()
        if not (self.folder / META).exists():
            _write(self.folder / META, encode(self.about))
        rows = np.empty(len(keys), self.dtype)
        rows["key"], rows["check"], rows["values"] = keys, _checks(keys, numbers), numbers
        self._write_rows(rows)
        with self._lock, contextlib.suppress(CheckpointError):  # readers will say what is wrong
            self._compact()

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
        if different := differences(saved if isinstance(saved, dict) else {}, self.about):
            raise CheckpointError(
                f"cache: {path} is of another teacher or format: {'; '.join(different)}. "
                "Give another cache_key or folder, or remove this one."
            )
        self._agreed = True

    def _write_rows(self, rows: Array) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
        path = self.folder / f"{time.time_ns():020d}-{secrets.token_hex(8)}{ROWS}"
        _write(path, header.getvalue(), rows.view(np.uint8))
        disk.flush_folder(self.folder)  # names, too, shall survive a crash

    def _refresh(self) -> None:
        r"""Read the files that are new."""
        self._agree()
        for _ in range(100):  # the folder may change meanwhile
            before, names = set(self._listing()), sorted(self._listing())
            if not before.issubset(names):  # others compact; the list may lack old and new ones
                continue
            if names == list(self._files):
                return
            with contextlib.suppress(FileNotFoundError):
                new = {name: self._load(name) for name in names if name not in self._files}
                return self._index({name: (self._files | new)[name] for name in names})
        raise CheckpointError(f"cache: the files in {self.folder} do not stay; is a link broken?")

    def _listing(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self.folder) if name.endswith(".npy")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cache: {self.folder} cannot be read ({error})") from error
        for name in names:
            if not name.endswith(ROWS):
                raise _damaged(self.folder / name, "is not one of the teacher cache's own files")
        return names

    def _load(self, name: str) -> Array:
        path = self.folder / name
        try:
            rows = np.lib.format.open_memmap(path, mode="r")  # never pickled objects
        except FileNotFoundError:
            raise
        except Exception as error:  # of the reader's many kinds
            raise _damaged(path, f"cannot be read ({error})") from error
        if rows.dtype != self.dtype or rows.ndim != 1:
            holds = f"holds {rows.dtype} of shape {rows.shape}"
            raise _damaged(path, f"{holds}, and not rows of {self.dtype}")
        return rows

    def _index(self, files: dict[str, Array]) -> None:
        self._files = files
        keys = [np.zeros((0, 2), np.uint64), *(rows["key"] for rows in files.values())]
        joined = np.concatenate(keys)
        self._starts = np.cumsum([0, *map(len, keys[1:])])
        self._places = np.argsort(joined[:, 0], kind="stable")
        self._keys = joined[self._places]
        self._lanes = self._keys[:, 0].copy()  # contiguous, for the search

    def _compact(self) -> None:
        if not self._compacts or len(self._listing()) <= MOST:
            return
        self._refresh()
        smaller = sorted(self._files, key=lambda name: len(self._files[name]))[: MOST // 2 + 1]
        rows = np.concatenate([self._files[name] for name in smaller])
        self._write_rows(rows[np.sort(distinct(rows["key"])[0])])
        for name in smaller:
            try:
                disk.remove(self.folder / name)
            except OSError:  # some systems keep files that are mapped
                self._compacts = False
        for path in self.folder.glob(".*.tmp"):  # what killed processes have left unfinished
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED:
                    disk.remove(path)


def _checks(keys: Array, values: Array) -> Array:
    words = np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1)
    return row_keys(words)[:, 0] ^ keys[:, 0]


def _write(path: Path, *content: Any) -> None:
    try:
        disk.write_file(path, content)
    except OSError as error:
        raise CheckpointError(f"cache: writing {path} failed ({error})") from error


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"cache: {path} {what}; remove it; only its predictions are computed again"
    )
