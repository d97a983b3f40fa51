r"""`limbeck report`: a result's page, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limbeck.cli.errors import Debug

__all__ = ["report"]


def report(
    result: Annotated[Path, typer.Argument(help="A folder that one of limbeck's commands wrote.")],
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    debug: Annotated[bool, Debug] = False,
) -> None:
    r"""Make one page of a result: report.html, with report.md and report.json beside it."""
    from limbeck.cli.folder import result_folder

    folder = result_folder(result)
    from limbeck.report.page import write

    page = write(folder)
    typer.echo(str(page))
    if show:
        typer.launch(page.resolve().as_uri())
