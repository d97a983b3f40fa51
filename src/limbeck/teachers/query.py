r"""Querying a teacher: in batches, again after an error, with derivatives."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator
from contextlib import closing
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from limbeck.arguments import number, whole_number
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.evaluation import evaluate
from limbeck.progress import tracked
from limbeck.teachers.cache import Answers, as_cache
from limbeck.teachers.keys import Array, as_rows, count, distinct, row_keys, select

__all__ = ["Asked", "Derivatives", "TeacherError", "divisor", "label"]

FIRST, LARGEST = 8, 16_384  # rows in a batch, where their number is found by trying
PATIENCE = 2.0  # seconds that a batch should take, and between two writes


class TeacherError(LimbeckError):
    r"""A teacher that failed while it was asked; its own exception is the cause.

    Attributes:
        rows: The rows of X that it was asked about when it failed.
        kept: How many of the answers are in the cache.
    """

    def __init__(self, message: str, rows: Array, kept: int) -> None:
        super().__init__(message)
        self.rows, self.kept = rows, kept

    @classmethod
    def of(
        cls, error: Exception, where: str, rows: Array, stays: str = "", kept: int = 0
    ) -> TeacherError:
        r"""What a teacher raised, in its own words, and what stays of its answers."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        after = f"; {stays}" if stays else ""
        return cls(f"teacher: it failed at {where} ({what}){after}", rows, kept)


def label(
    predictor: Any,
    X: Any,
    *,
    cache: Any = None,
    cache_key: str | None = None,
    batch_size: int | None = None,
    retries: int = 3,
    wait: float = 1.0,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (OSError,),
    progress: bool = True,
) -> Array:
    r"""What a teacher says of each row, (n, K).

    Rows that are equal (`row_keys`) are asked about once, and with a cache once for ever. What was
    answered before an error or an interruption stays in the cache. With a cache the answers are
    as exact as its dtype, when they are new too, so that a second run gives the same ones.

    Arguments:
        predictor: The teacher, as `as_predictor` makes it.
        X: Its inputs: an array, a tensor, a frame, a sparse matrix, or a dict of arrays.
        cache: A folder or `TeacherCache` to keep answers in.
        cache_key: What the cache knows the teacher by; None takes the hash of its content. An
            opaque callable has none, and nothing of it is kept on disk without a key.
        batch_size: How many rows to ask about at once; None finds a number for which an answer
            takes a few seconds at most. (Answers may depend on it in their last digits.)
        retries: How often to ask again after an exception that may pass.
        wait: Seconds to wait before asking again, doubled each time.
        retry_on: The exceptions that may pass: by default those of connections and timeouts,
            which are OSErrors.
        progress: Whether to show a bar.
    """
    X = as_rows(X)
    if batch_size is not None:
        expected = "None, or a number of rows: 1 or more"
        batch_size = whole_number("batch_size", batch_size, expected, 1)
    keys = row_keys(X)
    first, inverse = distinct(keys)
    asking = _Asking(predictor, X, first, keys[first], _store(predictor, cache, cache_key))
    asking.retries = whole_number("retries", retries, "a whole number, 0 or more", 0)
    asking.wait = number("wait", wait, "seconds, 0 or more", lambda s: s >= 0)
    asking.retry_on = _exceptions(retry_on)
    asking.run(batch_size, progress)
    return asking.answers if len(first) == len(keys) else asking.answers[inverse]


def _store(predictor: Any, cache: Any, cache_key: str | None) -> Answers | None:
    found = as_cache(cache)
    if found is None:
        return None
    teacher = predictor.fingerprint() if cache_key is None else cache_key
    if teacher is None:
        message = "cache: a callable has no content to know it by, so nothing is kept on disk; "
        warnings.warn(message + "give a cache_key that stands for this teacher", stacklevel=3)
        return None
    names = () if predictor.classes is None else [str(name) for name in predictor.classes]
    kind = getattr(predictor, "kept_as", "values")
    return found.answers(teacher, (predictor.outputs,), names, kind)


def _exceptions(given: Any) -> tuple[type[Exception], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise ArgumentError("retry_on", repr(given), "an exception class, or a tuple of such")
    return kinds


class _Asking:
    r"""One sitting with a teacher: distinct rows of X by number, with their keys."""

    retries: int
    wait: float
    retry_on: tuple[type[Exception], ...]

    def __init__(
        self, predictor: Any, X: Any, rows: Array, keys: Array, store: Answers | None
    ) -> None:
        self.predictor, self.X, self.rows, self.keys, self.store = predictor, X, rows, keys, store
        self.answers = np.empty((len(rows), predictor.outputs))
        self.known = np.zeros(len(rows), bool)  # which have an answer
        if store is not None:
            self.known, found = store.get(keys)
            self.answers[self.known] = found
        self.kept = int(self.known.sum())  # how many of them are on disk
        self.waiting: list[tuple[Array, Array]] = []  # numbers and answers to be written
        self.writable = store is not None

    def run(self, batch_size: int | None, progress: bool) -> None:
        r"""Ask about all that is not known."""
        left = np.flatnonzero(~self.known)
        if not len(left):
            return
        size, written = batch_size or FIRST, time.monotonic()
        bar = cast(
            Generator[int, None, None], tracked(left.tolist(), "asking the teacher", progress)
        )
        try:
            with closing(bar):
                while batch := list(islice(bar, size)):
                    began = time.monotonic()
                    self._answer(np.array(batch))
                    now = time.monotonic()
                    size = batch_size or _next_size(size, now - began)
                    if now - written > PATIENCE:
                        self._write()
                        written = now
        finally:
            self._write()

    def _answer(self, batch: Array) -> None:
        answer = self._checked(self._ask(batch), self.rows[batch])
        self.answers[batch] = answer if self.store is None else self.store.as_kept(answer)
        if self.writable:
            self.waiting.append((batch, answer))

    def _ask(self, batch: Array) -> Any:
        rows = self.rows[batch]
        part = select(self.X, rows)
        for attempt in range(self.retries + 1):
            try:
                return self.predictor(part)
            except LimbeckError:  # which say themselves what is wrong
                raise
            except Exception as error:
                passing = isinstance(error, self.retry_on)
                if not passing or attempt == self.retries:
                    raise self._failure(error, rows, attempt + 1) from error
            time.sleep(self.wait * 2**attempt)
        raise AssertionError  # the last attempt answers or fails

    def _failure(self, error: Exception, rows: Array, attempts: int) -> TeacherError:
        self._write()
        tried = f", {attempts} times" if attempts > 1 else ""
        stays = f"{self.kept:,} of {len(self.rows):,} answers are kept, and are not asked for again"
        if self.store is None:
            stays = "no answers are kept: a cache would have kept them"
        return TeacherError.of(error, f"{_named(rows)} of X{tried}", rows, stays, self.kept)

    def _checked(self, answer: Any, rows: Array) -> Array:
        shape = (len(rows), self.predictor.outputs)
        try:
            found = np.asarray(answer, np.float64)
        except (TypeError, ValueError) as reason:
            received = f"answers that are no numbers ({reason})"
            raise ArgumentError("teacher", received, f"an array of shape {shape}") from reason
        if shape[1] == 1 and found.ndim == 1:
            found = found[:, None]
        if found.shape != shape:
            received = f"answers of shape {found.shape} for {len(rows)} rows"
            expected = f"{shape}: a row for each input, a column for each output"
            raise ArgumentError("teacher", received, expected)
        if (bad := ~np.isfinite(found).all(1)).any():
            received = f"NaN or infinity for {int(bad.sum())} rows, as row {rows[bad][0]} of X"
            raise ArgumentError("teacher", received, "finite answers")
        return found

    def _write(self) -> None:
        if self.store is None or not self.waiting:
            return
        batches, answers = zip(*self.waiting, strict=True)
        self.waiting = []
        new = np.concatenate(batches)
        try:
            self.store.put(self.keys[new], np.concatenate(answers))
            self.kept += len(new)
        except CheckpointError as error:
            self.writable = False
            message = f"{error}. Answers are returned, but from here on not kept on disk."
            warnings.warn(message, stacklevel=4)


def _next_size(size: int, seconds: float) -> int:
    r"""How many rows next: fewer where an answer took long, more where it was quick.

    Steps are large, so that a quick teacher is asked in the same batches each time.
    """
    if seconds > 2 * PATIENCE:
        return max(1, int(size * PATIENCE / seconds))
    if seconds > PATIENCE:
        return size
    return min(LARGEST, size * (8 if seconds < PATIENCE / 16 else 2))


def _named(rows: Array) -> str:
    if len(rows) == 1:
        return f"row {rows[0]}"
    if rows[-1] - rows[0] == len(rows) - 1:
        return f"rows {rows[0]} to {rows[-1]}"
    return f"{len(rows)} rows from {rows[0]} to {rows[-1]}"


class Asked(nn.Module):
    r"""A torch teacher's answers as losses take them, with derivatives, in the inputs' precision.

    Arguments:
        predictor: The teacher.
        shift: What is taken from values, (K,).
        scale: What they are divided by; 0 stands for a constant, and divides nothing.
    """

    def __init__(self, predictor: Any, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.module, self.task, self.form = predictor.module, predictor.task, predictor.module_form
        held = chain(self.module.parameters(), self.module.buffers())
        self.dtype = next((t.dtype for t in held if t.is_floating_point()), None)
        self.output_form = self.form if self.task == "classification" else "values"
        self.register_buffer("shift", shift)
        self.register_buffer("scale", divisor(scale))

    def forward(self, x: Tensor) -> Tensor:
        y = self.module(x.to(self.dtype or x.dtype)).to(x.dtype)
        if self.task == "classification":
            return y
        if self.task == "multilabel" and self.form != "probabilities":
            return y.sigmoid() if self.form == "logits" else y.exp()
        return (y.reshape(len(y), -1) - self.shift) / self.scale


def divisor(scale: Tensor) -> Tensor:
    r"""What targets are divided by: the scale, or 1 where they are constant."""
    return torch.where(scale > 0, scale, 1.0)


MOST = 2**31
r"""Bytes that all derivatives may take in memory."""

BLOCK = 256
r"""Rows that are differentiated together."""


class Derivatives:
    r"""The derivatives of every output with respect to every number of a row, as `label` asks them.

    Calls give (n, K · D). A cache keeps them beside the answers, under the same teacher, by domain.

    Arguments:
        predictor: The teacher, a torch module.
        domain: "log", of log probabilities, or "plain".
        inputs: Numbers in a row D.
    """

    def __init__(self, predictor: Any, domain: str, inputs: int) -> None:
        self.predictor, self.domain, self.inputs = predictor, domain, inputs
        self.classes, self.outputs = predictor.classes, predictor.outputs * inputs
        self.kept_as = f"derivatives, {domain}"

    def fingerprint(self) -> str | None:
        r"""The teacher's own."""
        found: str | None = self.predictor.fingerprint()
        return found

    def check_size(self, n: int) -> None:
        r"""Refuse numbers of rows whose derivatives would not fit into memory."""
        total = 8 * n * self.outputs
        if total > MOST:
            received = f"{n:,} inputs, whose derivatives take {total / 2**30:.0f} GiB"
            expected = f"at most {MOST // (8 * self.outputs):,}; without a cache, any number"
            raise ArgumentError("size", received, expected)

    def __call__(self, X: Any) -> Array:
        n, outputs = count(X), self.predictor.outputs
        x = self.predictor.tensors(X)
        one = torch.ones(outputs, device=x.device, dtype=x.dtype)
        model = Asked(self.predictor, torch.zeros_like(one), one)
        blocks = [
            evaluate(model, part, "derivatives", output=model.output_form, domain=self.domain)
            .derivatives.double().cpu().numpy()  # type: ignore[union-attr]
            for part in x.split(BLOCK)
        ]  # fmt: skip
        return np.concatenate(blocks).reshape(n, self.outputs)
