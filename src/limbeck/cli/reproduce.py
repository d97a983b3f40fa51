r"""`limbeck reproduce`: the source text's experiments again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limbeck.cli.errors import Debug

__all__ = ["reproduce"]


def reproduce(
    chapter: Annotated[str, typer.Argument(help="chapter-2, chapter-3 or chapter-4.")],
    data: Annotated[
        Path | None, typer.Option(help="The folder with the data; else LIMBECK_DATA names it.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where results go; chapter 2 goes on with what is there.")
    ] = Path("reproduction"),
    device: Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda.")] = "auto",
    seeds: Annotated[
        int | None,
        typer.Option(help="Students of each kind: 5 in chapter 2, data sets in 3, else 1.", min=1),
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(help="Chapter 2: cells such as mnist-all-ce or 'nade-*'; again for more."),
    ] = None,
    steps_factor: Annotated[
        float | None, typer.Option(help="Chapter 2: a factor on all numbers of steps.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="Chapter 2: what nets start at: lecun as in the text's code, or he."),
    ] = None,
    parts: Annotated[
        list[str] | None, typer.Option(help="Chapter 3: mixtures, logistic; else both.")
    ] = None,
    hidden: Annotated[
        list[int] | None, typer.Option(help="Chapter 4: hidden units; give it again for more.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Chapter 4: steps of each distillation.", min=1)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Chapter 4: samples of each kind.", min=1)
    ] = None,
    burn_in: Annotated[
        int | None, typer.Option(help="Chapter 4: sweeps of chains before use.", min=0)
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
    debug: Annotated[bool, Debug] = False,
) -> None:
    r"""Run the source text's experiments again, beside the numbers that it printed."""
    from limbeck.cli.lock import alone
    from limbeck.reproduction.command import reproduce as run
    from limbeck.reproduction.record import Asked

    with alone(out):
        run(
            chapter, Asked(data, out, device, not quiet), seeds=seeds, cells=cells, hidden=hidden,
            steps_factor=steps_factor, init=init, parts=parts, steps=steps, samples=samples,
            burn_in=burn_in,
        )  # fmt: skip
