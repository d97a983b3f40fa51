r"""A teacher's predictions stored on disk, so that each input is queried once over all runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from limbeck.arguments import Choice, Count, PathLike, checked_arguments
from limbeck.errors import ArgumentError, CheckpointError, rename_argument, shown
from limbeck.records import encode
from limbeck.storage import disk
from limbeck.storage.files import differences
from limbeck.teachers.keys import Array, row_keys

FORMAT = "limbeck-teacher-cache-2"
META = "meta.json"
ANSWERS = "answers.sqlite"
SCHEMA = "CREATE TABLE answers (key BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID"
LOCK_SECONDS = 60.0  # for which a process waits for another


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
        self._stored = Store(folder / ANSWERS, dtype, self.shape if self.top_k is None else ())
        self._agreed = False

    def __len__(self) -> int:
        self._agree()
        return len(self._stored)

    def get(self, keys: Array) -> tuple[Array, Array]:
        r"""Which rows, by keys (n, 2), are stored, (n,), and their predictions, in order."""
        self._agree()
        known, rows = self._stored.lookup(keys)
        return known, self._decode(rows)

    def put(self, keys: Array, values: Array) -> None:
        r"""Store the predictions (n, *shape) at rows with keys (n, 2)."""
        rows = self._encode(values)
        if len(rows) != len(keys):
            raise ArgumentError("values", f"{len(rows)} answers", f"{len(keys)}, one for each key")
        if len(rows):
            self._agree()
            if not (path := self.folder / META).exists():
                try:
                    disk.write_file(path, encode(self.about))
                except OSError as error:
                    raise CheckpointError(f"cache: writing {path} failed ({error})") from error
            self._stored.write(keys, rows)

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
        rows = np.empty(len(numbers), self._stored.dtype)
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
        filled = (self.folder / ANSWERS).exists()  # before meta is read, which is written first
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


class Store:
    r"""Rows under keys of 128 bits in one SQLite file, which locks and recovers by itself."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.size = dtype.itemsize * math.prod(shape)  # bytes of a row, which its check follows

    def __len__(self) -> int:
        with self._open() as database:
            return database.execute("SELECT count(*) FROM answers").fetchone()[0] if database else 0

    def lookup(self, keys: Array) -> tuple[Array, Array]:
        r"""Which keys (n, 2) are there, (n,), and the rows of those that are, in order."""
        known, stored = np.zeros(len(keys), bool), bytearray()
        with self._open() as database:
            if database is not None:
                database.execute("CREATE TEMP TABLE wanted (place INTEGER PRIMARY KEY, key BLOB)")
                database.executemany("INSERT INTO wanted VALUES (?, ?)", enumerate(_pieces(keys)))
                join = "SELECT place, row FROM wanted JOIN answers USING (key) ORDER BY place"
                for place, row in database.execute(join):
                    if len(row) != self.size + 8:
                        raise self._damaged(f"has rows of {len(row)} bytes, not {self.size + 8}")
                    known[place] = True
                    stored += row
        parts = np.frombuffer(stored, np.uint8).reshape(-1, self.size + 8)
        rows = parts[:, :-8].copy().view(self.dtype).reshape(len(parts), *self.shape)
        checks = parts[:, -8:].copy().view("<u8")[:, 0]
        if len(rows) and (_checks(keys[known], rows) != checks).any():
            raise self._damaged("has other rows than were written")
        return known, rows

    def write(self, keys: Array, rows: Array) -> None:
        r"""Store rows, unless their keys are there already."""
        checks = _checks(keys, rows).astype("<u8")[:, None].view(np.uint8)
        plain = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
        pairs = zip(_pieces(keys), _pieces(np.hstack([plain, checks])), strict=True)
        with self._open(create=True) as database:
            assert database is not None
            database.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", pairs)

    @contextlib.contextmanager
    def _open(self, create: bool = False) -> Iterator[sqlite3.Connection | None]:
        r"""The database, in a transaction; None if there is none yet."""
        try:
            if create:
                disk.make_folder(self.path.parent)
            elif not self.path.exists():
                yield None
                return
            address = f"{self.path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
            connection = sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS)
            with contextlib.closing(connection) as database, database:
                database.execute("PRAGMA trusted_schema = OFF")  # the file may be another's
                if create:
                    database.execute(SCHEMA.replace("TABLE", "TABLE IF NOT EXISTS"))
                schema = database.execute("SELECT sql FROM sqlite_master").fetchall()
                if schema and schema[0] != (SCHEMA,):
                    raise self._damaged("is not one of the teacher cache's own files")
                yield database if schema else None
        except (OSError, sqlite3.OperationalError) as error:  # locked, full, not permitted
            raise CheckpointError(f"cache: {self.path} cannot be used ({error})") from error
        except sqlite3.Error as error:
            raise self._damaged(f"cannot be read ({error})") from error

    def _damaged(self, what: str) -> CheckpointError:
        advice = "remove it; its predictions are computed again"
        return CheckpointError(f"cache: {self.path} {what}; {advice}")


def _pieces(array: Array) -> Iterator[bytes]:
    r"""The bytes of each row."""
    content, size = array.tobytes(), array.itemsize * array.shape[1]
    return (content[at : at + size] for at in range(0, len(content), size))


def _checks(keys: Array, rows: Array) -> Array:
    words = np.ascontiguousarray(rows).view(np.uint32).reshape(len(rows), -1)
    return row_keys(words)[:, 0] ^ keys[:, 0]
