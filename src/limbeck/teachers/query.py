r"""Querying a teacher: in batches, with a cache, with retries, with derivatives."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError, shown
from limbeck.evaluation import evaluate
from limbeck.progress import tracked
from limbeck.teachers.cache import Answers, TeacherCache, as_cache
from limbeck.teachers.keys import Array, as_rows, count, distinct, row_keys, select
from limbeck.teachers.networks import NetworkTeacher, first_float
from limbeck.teachers.row_teacher import RowTeacher

PATIENCE = 2.0  # seconds that a batch should take, and between two writes
MOST = 2**31  # bytes that all derivatives may take in memory


class TeacherError(LimbeckError):
    r"""A teacher that failed while it was queried; its own exception is the cause.

    Attributes:
        rows: The rows of X of the failed query.
        cached: The number of predictions in the cache.
    """

    def __init__(self, message: str, rows: Array, cached: int) -> None:
        super().__init__(message)
        self.rows, self.cached = rows, cached

    @classmethod
    def of(
        cls, error: Exception, where: str, rows: Array, remark: str = "", cached: int = 0
    ) -> TeacherError:
        r"""The error for a teacher that raised one itself."""
        cause = ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split())]))
        after = f"; {remark}" if remark else ""
        return cls(f"teacher: it failed at {where} ({cause}){after}", rows, cached)


@arg.checked_arguments
@dataclass(frozen=True)
class Query:
    r"""How a teacher is queried: in batches, with a cache, with retries after errors."""

    cache: arg.UserObject[str | os.PathLike[str] | TeacherCache | None] = None
    cache_key: arg.Text | None = None
    batch_size: arg.Count | None = None
    retries: arg.CountFromZero = 3
    retry_on: arg.UserObject[type[Exception] | tuple[type[Exception], ...]] = (OSError,)
    progress: arg.Flag = True
    wait: arg.FromZero = (
        1.0  # seconds before the first retry; twice as long before each further one
    )

    def label(self, teacher: RowTeacher | Derivatives, X: object) -> Array:
        r"""The teacher's targets (n, K) at rows; equal rows are queried once."""
        session = _Session(self, teacher, as_rows(X))
        session.run()
        equal = len(session.rows) < len(session.inverse)
        return session.targets[session.inverse] if equal else session.targets


def label_rows(teacher: RowTeacher | Derivatives, X: object, **settings: Any) -> Array:
    r"""A teacher's targets (n, K) at rows, with the settings of `Query`."""
    return Query(**settings).label(teacher, X)


class _Session:
    r"""Queries about distinct rows of X, by number, with their keys."""

    def __init__(self, query: Query, teacher: RowTeacher | Derivatives, X: object) -> None:
        self.query, self.teacher, self.X = query, teacher, X
        self.batch_size, kinds = query.batch_size, query.retry_on
        self.retries, self.wait = query.retries, query.wait
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                expected = "an exception class, or a tuple of such"
                raise ArgumentError("retry_on", shown(kinds), expected)
        keys = row_keys(X)
        self.rows, self.inverse = distinct(keys)
        self.keys = keys[self.rows]
        self.targets = np.empty((len(self.rows), teacher.outputs))
        self.known = np.zeros(len(self.rows), bool)
        self.answers: Answers | None = None
        if (folder := as_cache(query.cache)) is not None:
            key = teacher.fingerprint() if query.cache_key is None else query.cache_key
            if key is None:
                message = "cache: the content of a callable is unknown, so nothing is stored on "
                message += "disk; pass a cache_key that identifies this teacher"
                warnings.warn(message, stacklevel=4)
            else:
                names = () if teacher.classes is None else [str(name) for name in teacher.classes]
                content = getattr(teacher, "cache_kind", "values")
                self.answers = folder.answers(key, (teacher.outputs,), names, content)
        if self.answers is not None:
            self.known, cached = self.answers.get(self.keys)
            self.targets[self.known] = cached
        self.writable = self.answers is not None
        self.saved = int(self.known.sum())  # the number of predictions on disk
        self.unsaved: list[tuple[Array, Array]] = []  # row numbers and predictions to be written

    def run(self) -> None:
        unknown = np.flatnonzero(~self.known).tolist()
        if not unknown:
            return
        size, written = self.batch_size or 8, time.monotonic()
        bar = tracked(unknown, "querying the teacher", self.query.progress)
        try:
            with closing(cast(Generator[int, None, None], bar)):
                while batch := list(itertools.islice(bar, size)):
                    start = time.monotonic()
                    numbers = np.array(batch)
                    y = self._ask(numbers)
                    self.targets[numbers] = y if self.answers is None else self.answers.as_kept(y)
                    if self.writable:
                        self.unsaved.append((numbers, y))
                    now = time.monotonic()
                    seconds = now - start
                    # large steps, so that a quick teacher always gets the same ones
                    if self.batch_size is None and seconds > 2 * PATIENCE:
                        size = max(1, int(size * PATIENCE / seconds))
                    elif self.batch_size is None and seconds <= PATIENCE:
                        size = min(16_384, size * (8 if seconds < PATIENCE / 16 else 2))
                    if now - written > PATIENCE:
                        self._write()
                        written = now
        finally:
            self._write()

    def _ask(self, batch: Array) -> Array:
        rows = self.rows[batch]
        part = select(self.X, rows)
        for attempt in itertools.count(1):
            try:
                y = self.teacher(part)
                break
            except LimbeckError:  # which explain themselves
                raise
            except Exception as error:
                if not isinstance(error, self.query.retry_on) or attempt > self.retries:
                    self._write()
                    raise self._failure(error, rows, attempt) from error
                time.sleep(self.wait * 2 ** (attempt - 1))
        if (bad := ~np.isfinite(y).all(1)).any():
            received = f"NaN or infinity for {int(bad.sum())} rows, as row {rows[bad][0]} of X"
            raise ArgumentError("teacher", received, "finite answers")
        return y

    def _failure(self, error: Exception, rows: Array, attempts: int) -> TeacherError:
        n, first, last = len(rows), rows[0], rows[-1]
        where = f"rows {first} to {last}" if n > 1 else f"row {first}"
        if last - first != n - 1:
            where = f"{n} rows from {first} to {last}"
        where += " of X" + (f", {attempts} times" if attempts > 1 else "")
        remark = "no predictions are stored: pass cache= to store them"
        if self.answers is not None:
            remark = f"{self.saved:,} of {len(self.rows):,} predictions are in the cache "
            remark += "and are not computed again"
        return TeacherError.of(error, where, rows, remark, self.saved)

    def _write(self) -> None:
        if self.answers is None or not self.unsaved:
            return
        numbers, targets = map(np.concatenate, zip(*self.unsaved, strict=True))
        self.unsaved = []
        try:
            self.answers.put(self.keys[numbers], targets)
            self.saved += len(numbers)
        except CheckpointError as error:
            self.writable = False
            message = f"{error}. Predictions are returned, but no longer stored on disk."
            warnings.warn(message, stacklevel=5)


class ScaledTeacher(nn.Module):
    r"""A torch teacher in the inputs' precision, with values as (y − shift) / scale."""

    shift: Tensor  # (K,)
    scale: Tensor  # (K,), 1 where the values are constant

    def __init__(self, teacher: RowTeacher, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        assert teacher.module is not None
        self.module, self.task, self.form = teacher.module, teacher.task, teacher.module_form
        self.dtype = getattr(first_float(self.module), "dtype", None)
        self.output_form = str(self.form) if self.task == "classification" else "values"
        self.register_buffer("shift", shift)
        self.register_buffer("scale", safe_scale(scale))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.module(x.to(self.dtype or x.dtype)).to(x.dtype)
        if self.task == "classification":
            return y
        if self.task == "multilabel" and self.form != "probabilities":
            return y.sigmoid() if self.form == "logits" else y.exp()
        return (y.reshape(len(y), -1) - self.shift) / self.scale


def safe_scale(scale: Tensor) -> Tensor:
    r"""What targets are divided by: the scale, or 1 where they are constant."""
    return torch.where(scale > 0, scale, 1.0)


class Derivatives:
    r"""A teacher's derivatives (n, K · D) with respect to D inputs, of log or plain outputs."""

    def __init__(self, teacher: NetworkTeacher, domain: str, inputs: int) -> None:
        self.teacher, self.domain, self.inputs = teacher, domain, inputs
        self.classes, self.outputs = teacher.classes, teacher.outputs * inputs
        self.cache_kind, self.fingerprint = f"derivatives, {domain}", teacher.fingerprint

    def check_size(self, n: int) -> None:
        r"""Refuse numbers of rows whose derivatives would not fit into memory."""
        total = 8 * n * self.outputs
        if total > MOST:
            received = f"{n:,} inputs, whose derivatives take {total / 2**30:.0f} GiB"
            expected = f"at most {MOST // (8 * self.outputs):,}; without a cache, any number"
            raise ArgumentError("pool", received, expected)

    def __call__(self, X: object) -> Array:
        x = self.teacher.tensors(X)
        assert isinstance(x, Tensor)
        one = torch.ones(self.teacher.outputs, device=x.device, dtype=x.dtype)
        model = ScaledTeacher(self.teacher, torch.zeros_like(one), one)
        blocks = [
            evaluate(model, part, "derivatives", output=model.output_form, domain=self.domain)
            .derivatives.double().cpu().numpy()  # type: ignore[union-attr]
            for part in torch.split(x, 256)
        ]  # fmt: skip
        return np.concatenate(blocks).reshape(count(X), self.outputs)
