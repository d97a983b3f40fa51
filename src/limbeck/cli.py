r"""The command line; torch is imported only by the commands that need it."""

from __future__ import annotations

import sys
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
    members: Annotated[int, typer.Option(help="Nets in the teacher ensemble.")] = 10,
    steps: Annotated[int, typer.Option(help="Steps of each distillation.")] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    r"""Compress an ensemble on scikit-learn's digits, by values, by derivatives and by both."""
    from limbeck.demo import run

    run(members=members, steps=steps, seed=seed, as_json=json, progress=not quiet)


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
