r"""A teacher's predictions stored on disk, so that each input is queried once over all runs."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.arguments import PathLike, checked_arguments
from limbeck.errors import ArgumentError, CheckpointError, rename_argument
from limbeck.records import decode, encode
from limbeck.storage import disk
from limbeck.storage.files import differences
from limbeck.teachers.keys import Array, row_keys

FORMAT = "limbeck-teacher-cache-4"
META, ROWS = "meta.json", "predictions.rows"
LOCK_SECONDS = 300.0  # for which a writer waits for others, who may have many rows to write


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
        if not teacher:
            raise ArgumentError("cache_key", "''", "a string that stands for the teacher")
        about = {
            "format": FORMAT, "teacher": teacher, "kind": kind, "shape": list(shape),
            "names": list(map(str, names)),
        }  # fmt: skip
        identity = json.dumps([teacher, kind, None, "float32"])  # as of format 1, to refuse those
        digest = hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
        legible = re.sub(r"[^\w.-]+", "-", teacher, flags=re.ASCII).strip(".-")[:40]
        return Answers(self.folder / f"{legible}-{digest}".lstrip("-"), about)

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

    One file holds the rows, in the order in which they were written; the description says how many.
    Writers, one at a time, append rows and then replace the description. Readers need no lock.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.shape = tuple(about["shape"])
        # the check is a hash of the teacher, the key and the values: rows of another folder fail it
        identity = hashlib.blake2b(encode(about), digest_size=8).digest()
        self.identity = np.frombuffer(identity, np.uint64)
        parts = [("key", np.uint64, 2), ("check", np.uint64), ("values", np.float64, self.shape)]
        self.dtype = np.dtype(parts)

    def get(self, keys: Array) -> tuple[Array, Array]:
        r"""Which rows, by keys (n, 2), are stored, (n,), and their predictions, in order."""
        if not (stored := self._stored()):
            return np.zeros(len(keys), bool), np.empty((0, *self.shape))
        rows = np.memmap(self.folder / ROWS, self.dtype, "r", shape=stored)
        self._verify(rows[[0, -1]])
        halves = np.array(rows["key"][:, 0])
        places = np.argsort(halves, kind="stable")  # of equal keys the first stays
        order, at = np.argsort(keys[:, 0]), np.empty(len(keys), np.intp)
        at[order] = np.searchsorted(halves[places], keys[order, 0])  # in order: many times faster
        at = places[np.minimum(at, stored - 1)]
        known = (rows["key"][at] == keys).all(1)
        rows = rows[at[known]]
        self._verify(rows)
        return known, np.array(rows["values"])

    def put(self, keys: Array, values: Array) -> None:
        r"""Store finite predictions (n, *shape) at n rows, one or more, with keys (n, 2)."""
        rows, path = np.empty(len(keys), self.dtype), self.folder / META
        rows["key"], rows["values"] = keys, values
        rows["check"] = self._checks(keys, rows["values"])
        try:
            disk.make_folder(self.folder)
            with disk.lock(path, LOCK_SECONDS):
                disk.remove_pending(self.folder, "tmp", META)
                stored = self._stored()
                if not path.exists():
                    disk.write_file(path, encode(self.about | {"rows": 0}))
                disk.create(self.folder / ROWS, rows.tobytes(), stored * self.dtype.itemsize)
                disk.write_file(path, encode(self.about | {"rows": stored + len(rows)}))
                disk.flush_folder(self.folder)  # names, too, shall survive a crash
        except OSError as error:
            raise CheckpointError(f"cache: writing {self.folder} failed ({error})") from error

    def _stored(self) -> int:
        r"""The number of rows on disk; a folder that was made for something else is refused."""
        path, file = self.folder / META, self.folder / ROWS
        filled = file.exists()  # looked at before the description
        try:
            saved = decode(disk.read(path), path)
        except FileNotFoundError:
            if filled:
                raise CheckpointError(f"cache: {path} is missing; remove its folder") from None
            return 0
        except (OSError, CheckpointError) as error:
            message = f"cache: {path} cannot be read ({error}); remove its folder"
            raise CheckpointError(message) from error
        saved = saved if isinstance(saved, dict) else {}
        rows = saved.pop("rows", None)
        if different := differences(saved, self.about):
            raise CheckpointError(
                f"cache: {path} is of another teacher or format: {'; '.join(different)}. "
                "Give another cache_key or folder, or remove this one."
            )
        if not isinstance(rows, int) or rows < 0:
            raise _damaged(path, f"has {rows!r} as number of rows")
        size = file.stat().st_size if file.exists() else 0
        if size < rows * self.dtype.itemsize:
            raise _damaged(file, f"has {size:,} bytes, too few for {rows:,} rows of {self.dtype}")
        return rows

    def _verify(self, rows: Array) -> None:
        if (self._checks(rows["key"], rows["values"]) != rows["check"]).any():
            raise _damaged(self.folder / ROWS, "has other rows than were written")

    def _checks(self, keys: Array, values: Array) -> Array:
        flat = values.reshape(len(values), math.prod(self.shape))
        hashes = row_keys(np.ascontiguousarray(flat).view(np.uint32))[:, 0]
        return hashes ^ keys[:, 0] ^ self.identity


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"cache: {path} {what}; remove its folder; only its predictions are computed again"
    )
