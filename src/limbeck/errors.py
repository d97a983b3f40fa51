r"""Errors that the user can correct: they name the argument, what is expected and received."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LimbeckError(Exception):
    r"""Base class of limbeck's errors."""


class ArgumentError(LimbeckError, ValueError):
    r"""An argument that cannot be used.

    Arguments:
        argument: The name of the argument, as the user wrote it.
        received: The value, or a description of it.
        expected: What is accepted, as text that follows "expected".
    """

    def __init__(self, argument: str, received: object, expected: str) -> None:
        self.argument, self.received, self.expected = argument, received, expected
        super().__init__(f"{argument}: expected {expected}, got {received}")

    @classmethod
    def unknown(cls, argument: str, value: object, known: Iterable[str]) -> ArgumentError:
        r"""An unknown name, with the nearest known one suggested."""
        known = sorted(known)
        near = difflib.get_close_matches(str(value).lower(), [k.lower() for k in known], n=1)
        hint = next((k for k in known if near and k.lower() == near[0]), None)
        suggestion = f" (did you mean {hint!r}?)" if hint else ""
        return cls(argument, repr(value), ", ".join(map(repr, known)) + suggestion)


@contextmanager
def rename_argument(inside: str | None, outside: str, more: str = "") -> Iterator[None]:
    r"""Rename the argument in errors about it (None: any), or a part such as df['age']."""
    try:
        yield
    except ArgumentError as error:
        part = "" if inside is None else error.argument.removeprefix(inside)
        other = inside is not None and not error.argument.startswith(inside)
        if inside == outside or other or part[:1] not in ("", "["):
            raise
        raise ArgumentError(outside + part, error.received, error.expected + more) from error


class NotDifferentiableError(LimbeckError):
    r"""A loss needs input derivatives of a model that has none."""


class InexactTeacherError(LimbeckError):
    r"""A teacher that returns one draw at a time, with a loss that is biased for single draws."""


class CheckpointError(LimbeckError):
    r"""A checkpoint that cannot be read, does not belong to this run, or could not be written."""


class LimbeckWarning(UserWarning):
    r"""Base class of limbeck's own warning categories, by which they can be filtered."""


class HeldOutWarning(LimbeckWarning):
    r"""A student is clearly worse at new inputs than at those that it was trained on."""


class PseudoDrawWarning(LimbeckWarning):
    r"""A parameter, its uncertainty or a joint sample at several inputs is taken from pseudo-draws.

    These need the posterior's own draws; a condensed posterior predicts at single inputs.
    """
