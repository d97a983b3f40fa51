r"""The command line; torch is imported only by the commands that need it."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path

import typer

import limbeck as lb
from limbeck.cli import compress, condense, normalize, results
from limbeck.cli.command import BROKEN_PIPE, FAULT, INTERRUPTED, USER, as_command, say
from limbeck.cli.files import IMPORTED_FILES
from limbeck.errors import LimbeckError

__all__ = ["app", "main"]

app = typer.Typer(
    help="limbeck turns a cumbersome model into a convenient one that does the same job.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"limbeck {lb.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


for verb in (compress.compress, condense.condense, normalize.normalize):
    app.command()(as_command(verb))
for estimate in (normalize.logz, condense.evidence):
    app.command()(as_command(estimate, without=("export",)))
app.command()(as_command(compress.label))
for command in (results.report, results.export, results.info):
    app.command()(command)


def main() -> None:
    r"""Run a command and exit: 0 on success, else an exit code of `limbeck.cli.command`.

    An error is printed in one line.
    """
    try:
        with warnings.catch_warnings():  # each is printed as one line, without its place
            warnings.showwarning = lambda message, *_, **__: say(f"note: {_one_line(message)}")
            result = app(standalone_mode=False, prog_name="limbeck")
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except (BrokenPipeError, SystemExit) as error:  # `limbeck … | head`; rich exits
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except (typer.Abort, KeyboardInterrupt):
        say("stopped")
        code = INTERRUPTED
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        message, code = _message_and_code(error)
        if message:
            say(message)
    sys.exit(code)


def _message_and_code(error: Exception) -> tuple[str, int]:
    r"""An error in one line, and its exit code: the user's error or limbeck's."""
    if hasattr(error, "format_message"):  # click's, under any name
        message, ctx = error.format_message(), getattr(error, "ctx", None)
        help_ = f" (see {getattr(ctx, 'command_path', 'limbeck')} --help)"
        # without arguments, help has been shown
        return f"{message.rstrip('.')}{help_}" if message else "", USER
    if isinstance(error, LimbeckError):
        cause = _in_users_file(error.__cause__)
        return _one_line(error) + (f" ({cause})" if cause else ""), USER
    if message := _in_users_file(error):
        return f"{message} (--debug shows more)", USER
    message = f"{type(error).__name__}: {_one_line(error)}"
    if isinstance(error, OSError | MemoryError):
        return message, USER
    return f"unexpected {message}; this is a bug in limbeck; --debug shows the traceback", FAULT


def _in_users_file(error: BaseException | None) -> str | None:
    r"""Where an error comes from, and what it is, if code of the user raised it."""
    for frame in reversed(traceback.extract_tb(getattr(error, "__traceback__", None))):
        if str(Path(frame.filename).resolve()) in IMPORTED_FILES:
            place = f"{frame.filename}, line {frame.lineno}"
            return f"{place}: {type(error).__name__}: {_one_line(error)}"
    return None


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
