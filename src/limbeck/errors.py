r"""Errors that the user can correct: they name the argument, what is expected and received."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class LimbeckError(Exception):
    r"""Base class of limbeck's errors."""


def shown(value: object) -> str:
    r"""A value in an error: one line of at most 200 characters, without addresses."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of the user's own class
        text = " at 0x"
    if " at 0x" in text:
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:197]}..."


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

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.argument, str(self.received), self.expected)

    @classmethod
    def unknown(cls, argument: str, value: object, known: Iterable[str]) -> ArgumentError:
        r"""An unknown name, with the nearest known one suggested."""
        known = sorted(known)
        return cls(argument, shown(value), ", ".join(map(repr, known)) + suggestion(value, known))

    @classmethod
    def unknown_argument(cls, argument: str, known: Iterable[str], function: str) -> ArgumentError:
        r"""An argument that a function of limbeck does not have, with the nearest one suggested."""
        hint, listed = suggestion(argument, sorted(known)), f"help(limbeck.{function}) lists them"
        expected = f"an argument of {function.rpartition('.')[2]}{hint}; {listed}"
        return cls(argument, "an unknown name", expected)


def choice(argument: str, value: object, known: Collection[str]) -> None:
    r"""Refuse a value that is not one of the known names."""
    if not isinstance(value, str) or value not in known:
        raise ArgumentError.unknown(argument, value, known)


def suggestion(name: object, known: list[str]) -> str:
    r"""The known name that is most like another one, whatever their case, as text; "" if none."""
    names = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), names, n=1) if isinstance(name, str) else []
    return f" (did you mean {names[near[0]]!r}?)" if near else ""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    r"""Warn of something, at the user's own line."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "limbeck":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


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


def require_path(
    path: Path, argument: str, expected: str, kind: str = "any", endings: Collection[str] = ()
) -> str:
    r"""The ending of a path that exists, is of the kind ("file", "folder"), and has an ending."""
    ending = path.suffix.lower()
    expected += f": a name that ends in {', '.join(endings)}" if endings else ""
    if {"file": path.is_file, "folder": path.is_dir, "any": path.exists}[kind]():
        if endings and ending not in endings:
            raise ArgumentError(argument, str(path), expected)
        return ending
    problem = "a folder" if kind == "file" else "a file"
    if not path.exists():
        names = [entry.name for entry in path.parent.glob("*")]
        near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
        hint = f" (did you mean {path.with_name(near[0])}?)" if near else ""
        problem = f"which does not exist{hint}"
    raise ArgumentError(argument, f"{path}, {problem}", expected)


def first_line(error: BaseException) -> str:
    r"""The first line of an error's text, or its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def refuse_unreadable(argument: str, path: object, expected: str) -> Iterator[None]:
    r"""Context in which a file is refused by the errors of its reader, which are of many kinds."""
    try:
        yield
    except LimbeckError:
        raise
    except Exception as error:
        received = f"{path}, which cannot be read ({first_line(error)})"
        raise ArgumentError(argument, received, expected) from error


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
