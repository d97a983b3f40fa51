r"""Options that several commands share, and how a command takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from limbeck.cli.config import Config
from limbeck.cli.errors import Debug

__all__ = ["Common", "Target", "Training", "command"]

RESULT, SHOWN, TRAINING = "Result", "What is printed", "Training"

Target = Annotated[
    str, typer.Argument(help="An RBM's file (.npz, .mat, .safetensors), or module:name.")
]


@dataclass(frozen=True)
class Common:
    r"""What every command that makes a result takes."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", rich_help_panel=RESULT,
            help="The result's folder; by default one in this folder, called by the command.",
        ),
    ] = None  # fmt: skip
    config: Annotated[Path | None, Config] = None
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", rich_help_panel=RESULT,
            help="Replace a result of other settings that is there.",
        ),
    ] = False  # fmt: skip
    require: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=RESULT,
            help="A figure to hold, such as agreement=0.98 or rare_recall=0.9; exit code 3 if it "
            "does not. Again for more.",
        ),
    ] = None
    verdicts: Annotated[
        bool,
        typer.Option(rich_help_panel=RESULT, help="Whether a verdict that fails is exit code 3."),
    ] = True
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0
    device: Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda.")] = "auto"
    json: Annotated[
        bool, typer.Option("--json", rich_help_panel=SHOWN, help="Print the result as JSON.")
    ] = False
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", rich_help_panel=SHOWN, help="Print errors only, or JSON."),
    ] = False
    debug: Annotated[bool, Debug] = False


@dataclass(frozen=True)
class Training:
    r"""How a student is trained."""

    steps: Annotated[int | None, typer.Option(help="Steps.", min=1, rich_help_panel=TRAINING)] = (
        None
    )
    batch_size: Annotated[
        int | None, typer.Option(help="Inputs a step.", min=1, rich_help_panel=TRAINING)
    ] = None
    lr: Annotated[
        float | None, typer.Option(help="The learning rate.", rich_help_panel=TRAINING)
    ] = None
    optimizer: Annotated[
        str | None,
        typer.Option(help="A name in torch.optim, such as adam.", rich_help_panel=TRAINING),
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(help="cosine, constant, linear, logarithmic.", rich_help_panel=TRAINING),
    ] = None
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so many seconds.", rich_help_panel=TRAINING)
    ] = None
    engine: Annotated[
        str | None, typer.Option(help="auto, eager or compiled.", rich_help_panel=TRAINING)
    ] = None
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=TRAINING)
    ] = 30.0

    def given(self) -> dict[str, Any]:
        r"""What was said, as arguments of the verbs."""
        return {name: value for name, value in vars(self).items() if value is not None}


def command(app: typer.Typer, *groups: type, name: str | None = None) -> Callable[[Any], Any]:
    r"""Register a function as a command that takes its own options and those of the groups.

    The function is called with the context, then with an object of each group, then with its own
    options by name.

    Arguments:
        app: Where to.
        groups: Data classes of options.
        name: What the command is called; None is the function's own name.
    """

    def registered(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1 + len(groups) :]
        shared = [_parameters(group) for group in groups]

        def called(ctx: typer.Context, **values: Any) -> Any:
            taken = [
                group(**{parameter.name: values.pop(parameter.name) for parameter in parameters})
                for group, parameters in zip(groups, shared, strict=True)
            ]
            return function(ctx, *taken, **values)

        context = inspect.Parameter("ctx", CALLED, annotation=typer.Context)
        every = [context, *own, *(each for parameters in shared for each in parameters)]
        every = [each.replace(kind=CALLED) for each in every]
        called.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in every}
        called.__name__, called.__doc__ = function.__name__, function.__doc__
        app.command(name or function.__name__)(called)
        return function

    return registered


CALLED = inspect.Parameter.KEYWORD_ONLY


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(each.name, CALLED, default=each.default, annotation=hints[each.name])
        for each in fields(group)
    ]
