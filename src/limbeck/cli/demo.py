r"""`limbeck demo`: what limbeck does, on data that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limbeck.cli.errors import Debug

__all__ = ["demo"]


def demo(
    part: Annotated[
        str, typer.Argument(help="What to show: all, compress, condense or normalize.")
    ] = "all",
    members: Annotated[int, typer.Option(help="Nets in the teacher ensemble.", min=1)] = 10,
    steps: Annotated[int, typer.Option(help="Steps of each distillation.", min=1)] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
    out: Annotated[Path, typer.Option(help="Where pictures and pages go.")] = Path("limbeck-demo"),
    debug: Annotated[bool, Debug] = False,
) -> None:
    r"""See all of it on scikit-learn's digits, in a few minutes."""
    from limbeck.cli.lock import alone
    from limbeck.demo import run

    with alone(out):
        run(part, members, steps, seed, as_json=json, progress=not quiet, folder=out)
