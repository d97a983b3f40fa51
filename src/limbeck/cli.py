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
    chapter: Annotated[str, typer.Argument(help="What to reproduce: chapter-4.")],
    data: Annotated[
        Path | None, typer.Option(help="The folder with the data; else LIMBECK_DATA names it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("reproduction"),
    device: Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda.")] = "auto",
    seeds: Annotated[int, typer.Option(help="Distillations of each student.", min=1)] = 1,
    hidden: Annotated[
        list[int] | None, typer.Option(help="Hidden units; give it again for more.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each distillation.", min=1)] = 30_000,
    samples: Annotated[int, typer.Option(help="Samples of each kind.", min=1)] = 10_000,
    burn_in: Annotated[int, typer.Option(help="Sweeps of chains before use.", min=0)] = 2000,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    r"""Run the source text's experiments again, beside the numbers that it printed."""
    from limbeck.errors import ArgumentError
    from limbeck.reproduction.chapter4 import Settings
    from limbeck.reproduction.output import report

    if chapter != "chapter-4":
        raise ArgumentError.unknown("chapter", chapter, ["chapter-4"])
    settings = Settings(
        hidden=tuple(hidden) if hidden else Settings.hidden,
        seeds=tuple(range(seeds)),
        steps=steps,
        samples=samples,
        burn_in=burn_in,
    )
    report(data, out, settings, device=device, progress=not quiet)


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
