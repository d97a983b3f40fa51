r"""A teacher's answers, kept on disk: each input is asked about once, over passes and runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage.files import differences, write_text
from limbeck.teachers.cache_store import Segments
from limbeck.teachers.keys import Array

__all__ = ["Answers", "TeacherCache", "as_cache"]

FORMAT = "limbeck-teacher-cache-1"
META = "meta.json"
TOTAL = 1e-3  # how far from 1 the total of probabilities may be


class TeacherCache:
    r"""A folder with the answers of any number of teachers, to any inputs.

    Answers are found by the teacher's fingerprint or `cache_key`, and by the content of the input
    row. Several processes may use a folder at the same time.

    Arguments:
        folder: The folder; it is made when the first answers come.
        top_k: How many of the largest probabilities to keep exactly; when read back, what is left
            of 1 is spread evenly over the other classes. Default: None, all of them.
        dtype: What numbers are kept as, "float32" or "float64". Default: "float32".
    """

    def __init__(
        self, folder: str | os.PathLike[str], top_k: int | None = None, dtype: str = "float32"
    ) -> None:
        self.folder, self.dtype = Path(folder), dtype
        if self.folder.exists() and not self.folder.is_dir():
            raise ArgumentError("cache", f"{self.folder}, which is a file", "a folder")
        expected = "None, or how many probabilities to keep: 1 or more"
        self.top_k = None if top_k is None else whole_number("top_k", top_k, expected, 1)
        if dtype not in ("float32", "float64"):
            raise ArgumentError.unknown("dtype", dtype, ("float32", "float64"))
        self._open: dict[str, Answers] = {}

    def answers(
        self, teacher: str, shape: tuple[int, ...], names: Sequence[str] = (), kind: str = "values"
    ) -> Answers:
        r"""The answers of one teacher.

        Arguments:
            teacher: A string that stands for the teacher.
            shape: The shape of an answer.
            names: Names of the outputs, if any; they must not change.
            kind: What is kept: "values", or any other name.
        """
        if not isinstance(teacher, str) or not teacher:
            raise ArgumentError("cache_key", repr(teacher), "a string that stands for the teacher")
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
    r"""What one teacher has answered; made by `TeacherCache.answers`."""

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
        r"""Which rows, by keys (n, 2), have an answer, (n,), and these answers, in order."""
        self._agree()
        known, rows = self._segments.lookup(keys)
        return known, self._decode(rows)

    def put(self, keys: Array, values: Array) -> None:
        r"""Keep the answers (n, *shape) to rows with keys (n, 2)."""
        rows = self._encode(values)
        if len(rows) != len(keys):
            raise ArgumentError("values", f"{len(rows)} answers", f"{len(keys)}, one for each key")
        if len(rows):
            self._agree()
            if not (self.folder / META).exists():
                write_text(self.folder / META, json.dumps(self.about, indent=1) + "\n")
            self._segments.write(keys, rows)

    def as_kept(self, values: Array) -> Array:
        r"""The answers (n, *shape) as `get` would give them back."""
        return self._decode(self._encode(values))

    def _encode(self, values: Array) -> Array:
        r"""The answers as they are on disk: rounded, and with `top_k` the largest of each row."""
        if np.shape(values)[1:] != self.shape:
            received = f"answers of shape {np.shape(values)}"
            raise ArgumentError("values", received, f"(n, {', '.join(map(str, self.shape))})")
        with np.errstate(over="ignore"):
            numbers = np.asarray(values).astype(self.number)
        if not np.isfinite(numbers).all():
            expected = "finite ones" + (', or dtype="float64"' if self.number.itemsize == 4 else "")
            raise ArgumentError("values", f"numbers that are not finite as {self.number}", expected)
        if self.top_k is None:
            return numbers
        total = numbers.sum(1, dtype=np.float64)
        if (numbers < 0).any() or (abs(total - 1) > TOTAL).any():
            expected = "probabilities of classes, which total 1; anything else is kept with "
            raise ArgumentError("top_k", "answers that do not total 1", expected + "top_k=None")
        # of equal probabilities the lower class, whatever else is in the row
        largest = np.argsort(-numbers, axis=1, kind="stable")[:, : self.top_k]
        rows = np.empty(len(numbers), self._segments.dtype)
        rows["class"] = largest
        rows["probability"] = np.take_along_axis(numbers, largest, axis=1)
        return rows

    def _decode(self, rows: Array) -> Array:
        r"""Rows on disk as answers; what is left of 1 is spread over classes that are not there."""
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
    if isinstance(value, str | os.PathLike) and str(value):
        return TeacherCache(value)
    raise ArgumentError("cache", repr(value), "a folder, a TeacherCache, or None")
