r"""The command line; torch is imported only by the commands that need it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app", "main"]

app = typer.Typer(
    help="limbeck turns a cumbersome model into a convenient one that does the same job.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def demo(
    part: Annotated[str, typer.Argument(help="What to show: all, compress or normalize.")] = "all",
    members: Annotated[int, typer.Option(help="Nets in the teacher ensemble.")] = 10,
    steps: Annotated[int, typer.Option(help="Steps of each distillation.")] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    r"""Compress an ensemble, and normalise an RBM, on scikit-learn's digits."""
    from limbeck.demo import run

    run(part, members=members, steps=steps, seed=seed, as_json=json, progress=not quiet)


@app.command()
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
) -> None:
    r"""Run the source text's experiments again, beside the numbers that it printed."""
    from limbeck.reproduction.command import reproduce
    from limbeck.reproduction.record import Asked

    reproduce(
        chapter, Asked(data, out, device, not quiet), seeds=seeds, cells=cells, hidden=hidden,
        steps_factor=steps_factor, parts=parts, steps=steps, samples=samples, burn_in=burn_in,
    )  # fmt: skip


@app.command()
def info() -> None:
    r"""Show the versions and devices that limbeck sees."""
    import platform

    import torch

    import limbeck

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    for name, value in {
        "limbeck": limbeck.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gpu": device,
    }.items():
        typer.echo(f"{name:8} {value}")


def main() -> None:
    r"""Run a command; a user's error is one line and exit code 2."""
    try:
        app()
    except Exception as error:
        from limbeck.errors import LimbeckError

        if not isinstance(error, LimbeckError):
            raise
        typer.echo(f"limbeck: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
