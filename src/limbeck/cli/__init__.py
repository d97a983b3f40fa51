r"""The command line; torch is imported only by the commands that need it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from limbeck.cli import compress, condense, export, info, normalize
from limbeck.cli.errors import guarded
from limbeck.cli.options import Common, Training, command

__all__ = ["app", "main"]

app = typer.Typer(
    help="limbeck turns a cumbersome model into a convenient one that does the same job.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        import limbeck

        typer.echo(f"limbeck {limbeck.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(export.demo)
for verb in (compress.compress, condense.condense, normalize.normalize, normalize.logz):
    command(app, Common, Training)(verb)
for other in (export.report, export.export, info.info):
    app.command()(other)


def main() -> None:
    r"""Run a command and exit: 0 if all is well, else a code of `limbeck.cli.errors`."""
    sys.exit(guarded(lambda: app(standalone_mode=False, prog_name="limbeck")))
