r"""`limbeck export`, `limbeck report` and `limbeck demo`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.errors import Debug

__all__ = ["demo", "export", "report", "restored"]


def export(
    result: Annotated[Path, typer.Argument(help="A folder that one of limbeck's commands wrote.")],
    path: Annotated[
        Path, typer.Argument(help="A name that ends in .onnx, .pt2 or .npz, or a folder.")
    ],
    kind: Annotated[
        str, typer.Option("--format", help="auto (by the name), onnx, pt2 or numpy.")
    ] = "auto",
    predict: Annotated[
        str | None,
        typer.Option(
            help="Of a condensed bag: module:name of the function of (draw, x), if it is not found "
            "where it was."
        ),
    ] = None,
    debug: Annotated[bool, Debug] = False,
) -> None:
    r"""Write a result's student as ONNX, as a torch program, or as plain NumPy."""
    from limbeck.cli.folder import result_folder
    from limbeck.export import export as exported

    folder = result_folder(result)
    told = exported(restored(folder, predict), path, format=kind, report=_measured(folder))
    typer.echo(str(told))


def _measured(folder: Path) -> Any:
    r"""The saved report on a student, for its model card."""
    from limbeck import storage
    from limbeck.compression.fidelity.report import Fidelity
    from limbeck.condensation.agreement import Agreement

    content = storage.read(folder).content
    if (fidelity := content.get("fidelity")) is not None:
        return Fidelity.from_dict(fidelity)
    return Agreement(**content["agreement"]) if content.get("agreement") else None


def restored(folder: Path, predict: str | None = None) -> Any:
    r"""A saved result with its student; code of the user's own is found by its name.

    Arguments:
        folder: A result's folder.
        predict: `module:name` of the function that a bag calls, or one of limbeck's by name; None
            is as the result was made.
    """
    import limbeck as lb
    from limbeck.cli import config, references
    from limbeck.cli.condense import predict_of
    from limbeck.cli.folder import CONFIG, STUDENT
    from limbeck.errors import ArgumentError

    if not (folder / STUDENT).is_dir():
        expected = "a result of compress, condense or normalize"
        raise ArgumentError("result", f"{folder}, which holds no student", expected)
    options = config.read(folder / CONFIG) if (folder / CONFIG).exists() else {}
    own, name = None, options.get("student")
    if isinstance(name, str) and references.is_reference(name):
        own = copy.deepcopy(references.load(name, "student"))
    given = None if predict is None else predict_of(predict)
    try:
        try:
            return lb.load(folder / STUDENT, own, predict=given)
        except ArgumentError as error:
            if error.argument != "predict" or given is not None:
                raise
            return lb.load(folder / STUDENT, predict=_found(options.get("predict"), folder))
    except ArgumentError as error:
        if error.argument != "predict":
            raise
        raise ArgumentError("--predict", error.received, error.expected) from error


def _found(name: Any, folder: Path) -> Any:
    r"""The function that a bag was condensed with, by the name that it had then."""
    from limbeck.cli import references
    from limbeck.errors import ArgumentError, LimbeckError

    try:
        if isinstance(name, str) and references.is_reference(name):
            return references.load(name, "--predict")
        why = "and nothing says what it was"
    except ArgumentError as error:
        why = f"and {error.received}"
    raise LimbeckError(
        f"--predict: the student in {folder} calls your own function of (draw, x), which is not "
        f"saved with it, {why}; expected --predict module:name"
    )


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
    from limbeck.cli.folder import alone
    from limbeck.demo import run

    with alone(out):
        run(part, members, steps, seed, as_json=json, progress=not quiet, folder=out)
