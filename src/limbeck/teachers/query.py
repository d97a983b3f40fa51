r"""Querying a teacher: in batches, with a cache, with retries, within limits, with derivatives."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import numpy as np

from limbeck import arguments as arg
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError, shown, warn
from limbeck.progress import tracked
from limbeck.teachers.cache import Answers, TeacherCache, as_cache
from limbeck.teachers.keys import Array, as_rows, count, distinct, row_keys, select
from limbeck.teachers.networks import Derivatives
from limbeck.teachers.row_teacher import RowTeacher

T = TypeVar("T")
PATIENCE = 2.0  # seconds that a batch should take, and between two writes


class TeacherError(LimbeckError):
    r"""A teacher that failed while it was queried; its own exception is the cause.

    Attributes:
        rows: The rows of X of the failed query.
        cached: The number of predictions in the cache.
    """

    def __init__(self, message: str, rows: Array, cached: int = 0) -> None:
        super().__init__(message)
        self.rows, self.cached = rows, cached

    def __reduce__(self) -> tuple[type, tuple[str, Array, int]]:
        return type(self), (str(self), self.rows, self.cached)


@dataclass
class Usage:
    r"""What the queries of one `Query` have used so far."""

    queries: int = 0  # rows that the teacher has labelled
    deadline: float | None = None  # of the time limit, on the monotonic clock
    next_call: float = 0.0  # when the rate allows the next call
    stop_reason: str | None = None  # why nothing more is queried, such as a lost connection
    failure: TeacherError | None = None  # the error, if that is the reason
    teacher: object = None  # whose targets are remembered
    keys: Array = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    targets: Array | None = None  # (n, K), at the rows with these keys


class Labelled(NamedTuple):
    r"""Targets (n, K) at rows, which of the rows (n,) the teacher has labelled, and why not all."""

    targets: Array
    known: Array
    error: TeacherError | None = None


@arg.checked_arguments
@dataclass(frozen=True)
class Query:
    r"""How a teacher is queried: in batches, with a cache, with retries, within limits.

    A query is one row that the teacher labels; a call has a batch of them. Rows in the cache are no
    queries. Limits hold for all that is queried with the same object.
    """

    cache: arg.UserObject[str | os.PathLike[str] | TeacherCache | None] = None
    cache_key: arg.Text | None = None
    teacher_batch: arg.Count | None = None
    retries: arg.CountFromZero = 3
    retry_on: arg.UserObject[type[Exception] | tuple[type[Exception], ...]] = (OSError,)
    progress: arg.Flag = True
    wait: arg.FromZero = 1.0  # seconds before the first retry; twice as long before each next one
    max_queries: arg.Count | None = None
    queries_per_second: arg.Positive | None = None
    query_seconds: arg.Positive | None = None
    query_workers: arg.Count = 1  # threads that call the teacher at the same time
    usage: Usage = field(default_factory=Usage, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = self.retry_on
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                expected = "an exception class, or a tuple of such"
                raise ArgumentError("retry_on", shown(kinds), expected)

    @property
    def limited(self) -> bool:
        r"""Whether some rows may stay without targets."""
        limits = (self.max_queries, self.query_seconds, self.usage.stop_reason)
        return any(limit is not None for limit in limits)

    @property
    def queries_left(self) -> int | None:
        r"""The number of further queries; None for any number."""
        if self.usage.stop_reason is not None:
            return 0
        return None if self.max_queries is None else max(0, self.max_queries - self.usage.queries)

    def label(self, teacher: RowTeacher | Derivatives, X: object) -> Array:
        r"""The teacher's targets (n, K) at rows; equal rows are queried once."""
        labelled = self.label_some(teacher, X)
        if labelled.error is not None:
            raise labelled.error
        return labelled.targets

    def label_some(
        self, teacher: RowTeacher | Derivatives, X: object, seed: int | None = None
    ) -> Labelled:
        r"""Targets at as many rows as limits and the connection allow; a seed shuffles them."""
        session = _Session(self, teacher, as_rows(X))
        error = session.run(seed)
        return Labelled(session.targets[session.inverse], session.known[session.inverse], error)

    def remember(self, teacher: RowTeacher, X: object, targets: Array) -> None:
        r"""Take known targets at rows for the following queries of this object."""
        usage = self.usage
        usage.teacher, usage.keys, usage.targets = teacher, row_keys(as_rows(X)), targets

    def open(self, make: Callable[[], RowTeacher], X: object) -> RowTeacher:
        r"""The teacher that `make` builds with a few queries at X, which are not repeated."""
        with teacher_failures("the first rows of X", np.arange(min(count(X), 16)), self):
            teacher = self.attempt(make)
        if (probed := teacher.probed()) is not None:
            self.remember(teacher, *probed)
            self.usage.queries += count(probed[0])
        return teacher

    def attempt(self, call: Callable[[], T], pause: Callable[[float], object] = time.sleep) -> T:
        r"""The result of a call, which is repeated after errors that may pass."""
        for number in range(self.retries):
            try:
                return call()
            except LimbeckError:  # which explain themselves
                raise
            except self.retry_on:
                pause(self.wait * 2**number)
        return call()


@contextmanager
def teacher_failures(where: str, rows: Array, query: Query | None = None) -> Iterator[None]:
    r"""Context in which errors of a teacher's own code become a `TeacherError` about rows."""
    try:
        yield
    except LimbeckError:
        raise
    except (Exception, SystemExit) as error:
        try:
            words = " ".join(str(error).split())
        except Exception:  # of the exception's own class
            words = ""
        cause = ": ".join(filter(None, [type(error).__name__, words]))
        retried = query is not None and isinstance(error, query.retry_on) and query.retries
        times = f", {1 + query.retries} times" if query is not None and retried else ""
        raise TeacherError(f"teacher: it failed at {where}{times} ({cause})", rows) from error


class _Session:
    r"""Queries about distinct rows of X, by number, with their keys."""

    def __init__(self, query: Query, teacher: RowTeacher | Derivatives, X: object) -> None:
        self.query, self.teacher, self.X = query, teacher, X
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
                warn(message)
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
        self._recall()
        # a network's mode is set for each call, which only one thread at a time can do
        self.workers = query.query_workers if getattr(teacher, "module", None) is None else 1
        self.rate_lock, self.stopping = threading.Lock(), threading.Event()
        # rows in a call at most, and in the next one
        self.largest = int(min(16_384, max(1, PATIENCE * (query.queries_per_second or math.inf))))
        self.size = query.teacher_batch or min(8, self.largest)
        self.written = time.monotonic()

    def _recall(self) -> None:
        r"""Take the targets that the query remembers."""
        usage = self.query.usage
        if usage.teacher is not self.teacher or usage.targets is None:
            return
        before = len(usage.keys)
        first, inverse = distinct(np.concatenate([usage.keys, self.keys]))
        place = first[inverse[before:]]  # among the remembered rows, or in this session
        numbers = np.flatnonzero((place < before) & ~self.known)
        if len(numbers):
            self._take(numbers, usage.targets[place[numbers]])

    def run(self, seed: int | None = None) -> TeacherError | None:
        r"""Query about all unknown rows within the limits; the error if some remain unknown."""
        query, usage = self.query, self.query.usage
        unknown = np.flatnonzero(~self.known)
        if seed is not None:
            unknown = np.random.default_rng(seed).permutation(unknown)
        if not len(unknown):
            self._write()
            return None
        if query.query_seconds is not None and usage.deadline is None:
            usage.deadline = time.monotonic() + query.query_seconds
        numbers = unknown[: query.queries_left].tolist()
        bar = tracked(numbers, "querying the teacher", query.progress)
        try:
            with closing(cast(Generator[int, None, None], bar)):
                if self.workers > 1:
                    self._run_in_threads(bar)
                else:
                    while (batch := self._next(bar)) is not None:
                        self._collect(batch, *self._query_rows(batch))
        except TeacherError as error:
            self._write()
            error.args, error.cached = (f"{error}; {self._remark()}",), self.saved
            if not isinstance(error.__cause__, query.retry_on):
                raise
            usage.stop_reason = f"the teacher failed ({type(error.__cause__).__name__})"
            usage.failure = error
            return error
        except KeyboardInterrupt:
            self._write()
            raise KeyboardInterrupt(self._remark()) from None
        finally:
            self._write()
        left = np.flatnonzero(~self.known)
        if not len(left):
            return None
        reason = usage.stop_reason or f"max_queries={query.max_queries:,} is reached"
        share = f"{len(left):,} of {len(self.rows):,} rows"
        message = f"teacher: {reason}, and {share} are not labelled; {self._remark()}"
        return TeacherError(message, self.rows[left], self.saved)

    def _run_in_threads(self, bar: Iterator[int]) -> None:
        r"""Several calls at the same time; on an error, those that have begun are completed."""
        calls: dict[Future[tuple[Array, float]], Array] = {}
        pool = ThreadPoolExecutor(self.workers)
        try:
            while True:
                while len(calls) < self.workers and (numbers := self._next(bar)) is not None:
                    calls[pool.submit(self._query_rows, numbers)] = numbers
                if not calls:
                    return
                for done in wait(calls, return_when=FIRST_COMPLETED).done:
                    self._collect(calls[done], *done.result())
                    del calls[done]
        finally:
            self.stopping.set()
            pool.shutdown(cancel_futures=True)
            for call, numbers in calls.items():
                if not call.cancelled() and call.exception() is None:
                    self._collect(numbers, *call.result())

    def _next(self, bar: Iterator[int]) -> Array | None:
        r"""The next rows to query, by number; None at the end, or of the time."""
        usage = self.query.usage
        if usage.deadline is not None and time.monotonic() >= usage.deadline:
            usage.stop_reason = f"query_seconds={self.query.query_seconds:g} are over"
            return None
        batch = list(itertools.islice(bar, self.size))
        return np.array(batch) if batch else None

    def _collect(self, numbers: Array, y: Array, seconds: float) -> None:
        r"""Take a call's targets, adapt the size of the next one, and write now and then."""
        self._take(numbers, y)
        self.query.usage.queries += len(numbers)
        if self.query.teacher_batch is None:
            # large steps, so that a quick teacher always gets the same ones
            if seconds > 2 * PATIENCE:
                self.size = max(1, int(self.size * PATIENCE / seconds))
            elif seconds <= PATIENCE:
                self.size = min(self.largest, self.size * (8 if seconds < PATIENCE / 16 else 2))
        # what took long is written at once: a killed run shall lose little
        if seconds > PATIENCE / 20 or time.monotonic() - self.written > PATIENCE:
            self._write()
            self.written = time.monotonic()

    def _take(self, numbers: Array, y: Array) -> None:
        self.targets[numbers] = y
        self.known[numbers] = True
        if self.writable:
            self.unsaved.append((numbers, y))

    def _query_rows(self, batch: Array) -> tuple[Array, float]:
        r"""The targets at rows, by number, and the seconds that they took."""
        start, rows = time.monotonic(), self.rows[batch]
        part = select(self.X, rows)
        low, high = rows.min(), rows.max()
        where = f"rows {low} to {high}" if high > low else f"row {low}"
        if high - low != len(rows) - 1:
            where = f"{len(rows)} rows from {low} to {high}"
        with teacher_failures(f"{where} of X", np.sort(rows), self.query):
            y = self.query.attempt(lambda: self._call(part, len(rows)), self._pause)
        if (bad := ~np.isfinite(y).all(1)).any():
            received = f"NaN or infinity for {int(bad.sum())} rows, as row {rows[bad][0]} of X"
            raise ArgumentError("teacher", received, "finite answers")
        return y, time.monotonic() - start

    def _call(self, part: object, n: int) -> Array:
        r"""A call of the teacher, as soon as the rate allows it."""
        usage, rate = self.query.usage, self.query.queries_per_second
        if rate is not None:
            with self.rate_lock:
                now = time.monotonic()
                start = max(now, usage.next_call)
                usage.next_call = start + n / rate
            if start > now:
                self._pause(start - now)
        return self.teacher(part)

    def _pause(self, seconds: float) -> None:
        if self.workers == 1:
            time.sleep(seconds)
        elif self.stopping.wait(seconds):
            raise InterruptedError("other calls have failed or were interrupted")

    def _remark(self) -> str:
        r"""How many predictions are stored."""
        if self.answers is None:
            return "no predictions are stored: pass cache= to store them"
        stored = f"{self.saved:,} of {len(self.rows):,} predictions"
        return f"{stored} are in the cache and are not computed again"

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
            warn(f"{error}. Predictions are returned, but no longer stored on disk.")
