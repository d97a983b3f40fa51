r"""How a command fails: one line and an exit code; a traceback only if one is asked for."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from limbeck.errors import ArgumentError

__all__ = [
    "FAULT",
    "INTERRUPTED",
    "UNMET",
    "USER",
    "Debug",
    "guarded",
    "is_there",
    "noted",
    "say",
    "state",
]


def state(path: Path, wanted: str = "file") -> str:
    r"""Why a path is no file, or no folder, as it is wanted: it is the other one, or not there.

    What has nearly the same name is suggested.
    """
    if path.exists():
        return "a folder" if wanted == "file" else "a file"
    try:
        known = [each.name for each in path.parent.iterdir()]
    except OSError:
        known = []
    near = difflib.get_close_matches(path.name, known, n=1, cutoff=0.7)
    return "which is not there" + (f" (did you mean {path.with_name(near[0])}?)" if near else "")


def is_there(path: Path, argument: str, expected: str) -> None:
    r"""Refuse a path at which there is nothing."""
    if not path.exists():
        raise ArgumentError(argument, f"{path}, {state(path)}", expected)


FAULT, USER, UNMET, INTERRUPTED = 1, 2, 3, 130
r"""Exit codes: limbeck's own fault, the user's error, a requirement that is not met, Ctrl-C."""

_state = {"debug": False}


def _remember(debug: bool) -> bool:
    _state["debug"] = debug
    return debug


Debug = typer.Option(
    "--debug",
    callback=_remember,
    is_eager=True,
    help="Show a traceback if something fails.",
    rich_help_panel="What is printed",
)


def say(words: str) -> None:
    r"""A line to the user, beside the results."""
    typer.echo(f"limbeck: {words}", err=True)


def guarded(run: Callable[[], Any]) -> int:
    r"""The exit code of a command; whatever it raises is said in one line."""
    _state["debug"] = False
    try:
        with noted():
            code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # as of `limbeck … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except (typer.Abort, KeyboardInterrupt):
        say("stopped")
        return INTERRUPTED
    except Exception as error:
        if _state["debug"]:
            traceback.print_exc()
        words, code = _told(error)
        if words:
            say(words)
        return code
    return code if isinstance(code, int) else 0


def _told(error: Exception) -> tuple[str, int]:
    r"""An error in one line, and whose it is."""
    from limbeck.errors import LimbeckError

    if callable(shown := getattr(error, "format_message", None)):  # click's, under any name
        return _usage(shown(), error), USER
    if isinstance(error, LimbeckError):
        return _one_line(error), USER
    if place := _own_code(error):
        return f"{place}: {type(error).__name__}: {_one_line(error)} (--debug shows more)", USER
    if isinstance(error, OSError | MemoryError):
        return f"{type(error).__name__}: {_one_line(error)}", USER
    words = f"unexpected {type(error).__name__}: {_one_line(error)}"
    return f"{words}; this is a fault of limbeck, and --debug shows where", FAULT


def _usage(said: str, error: Any) -> str:
    r"""What click has to say, with the nearest option and where help is."""
    import difflib

    path = getattr(getattr(error, "ctx", None), "command_path", "limbeck")
    unknown = getattr(error, "option_name", None)
    if unknown is not None and said.lower().startswith("no such option"):
        known = [name for param in error.ctx.command.params for name in param.opts]
        near = difflib.get_close_matches(unknown, known, n=1)
        said = f"no such option: {unknown}" + (f" (did you mean {near[0]}?)" if near else "")
    # without arguments, help has been shown, and there is nothing to say
    return f"{said.rstrip('.')} (see {path} --help)" if said else ""


def _own_code(error: BaseException) -> str | None:
    r"""Where the user's own code raised an error, if it did."""
    from limbeck.cli.references import LOADED

    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if str(Path(frame.filename).resolve()) in LOADED:
            return f"{frame.filename}, line {frame.lineno}"
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def noted() -> Iterator[None]:
    r"""Warnings as lines for people, without the file and line of limbeck that they come from."""

    def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
        say(f"note: {_one_line(message)}")

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before
