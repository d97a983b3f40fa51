r"""`limbeck export`: a result's student, for elsewhere."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from limbeck.cli.errors import Debug

__all__ = ["export", "restored"]


def export(
    result: Annotated[Path, typer.Argument(help="A folder that one of limbeck's commands wrote.")],
    path: Annotated[
        Path, typer.Argument(help="A name that ends in .onnx, .pt2 or .npz, or a folder.")
    ],
    kind: Annotated[
        str, typer.Option("--format", help="auto (by the name), onnx, pt2 or numpy.")
    ] = "auto",
    debug: Annotated[bool, Debug] = False,
) -> None:
    r"""Write a result's student as ONNX, as a torch program, or as plain NumPy."""
    from limbeck.cli.folder import result_folder
    from limbeck.export import export as exported

    folder = result_folder(result)
    told = exported(restored(folder), path, format=kind, report=_measured(folder))
    typer.echo(str(told))


def _measured(folder: Path) -> Any:
    r"""The saved report on a student, for its model card."""
    from limbeck import results
    from limbeck.compression.fidelity.report import Fidelity
    from limbeck.predictive.agreement import Agreement

    content = results.read(folder).content
    if (fidelity := content.get("fidelity")) is not None:
        return Fidelity.from_dict(fidelity)
    return Agreement(**content["agreement"]) if content.get("agreement") else None


def restored(folder: Path) -> Any:
    r"""A saved result with its student; a module of the user's own is found by its name."""
    import limbeck as lb
    from limbeck.cli import config, references
    from limbeck.cli.folder import CONFIG, STUDENT
    from limbeck.errors import ArgumentError, LimbeckError

    if not (folder / STUDENT).is_dir():
        accepted = "a result of compress, condense or normalize"
        raise ArgumentError("result", f"{folder}, which holds no student", accepted)
    options = config.read(folder / CONFIG) if (folder / CONFIG).exists() else {}
    name = options.get("student")
    own = None
    if isinstance(name, str) and references.is_reference(name):
        own = copy.deepcopy(references.load(name, "student"))
    try:
        return lb.load(folder / STUDENT, own)
    except ArgumentError as error:
        if error.argument != "student":
            raise
        raise LimbeckError(
            f"result: the student in {folder} calls your own function, which is not saved with it; "
            f"export it as it is made: limbeck {options.get('command', 'condense')} --config "
            f"{folder / CONFIG} --export FILE"
        ) from error
