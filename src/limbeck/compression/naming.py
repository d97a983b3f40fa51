r"""Errors in the user's words: what is called one thing inside is named as the user named it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from limbeck.errors import ArgumentError

__all__ = ["called"]


@contextmanager
def called(inside: str, outside: str) -> Iterator[None]:
    r"""Errors about one argument, or about a part of it such as df['age'], as about another.

    >>> with called("df", "X"):
    ...     raise ArgumentError("df['age']", "infinity", "finite numbers")
    Traceback (most recent call last):
    ...
    limbeck.errors.ArgumentError: X['age']: got infinity; accepted: finite numbers
    """
    try:
        yield
    except ArgumentError as error:
        name, rest = error.argument[: len(inside)], error.argument[len(inside) :]
        if inside == outside or name != inside or rest[:1] not in ("", "["):
            raise
        raise ArgumentError(outside + rest, error.received, error.accepted) from error
