r"""Export of students: ONNX, torch.export, C or plain NumPy, checked, with a model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from limbeck.arguments import Choice, Flag, PathLike, Text, UserObject, checked_arguments
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError, shown
from limbeck.export.c_header import c_file
from limbeck.export.card import card, card_path
from limbeck.export.numpy_predictor import numpy_files
from limbeck.export.portable import CHECKS, TOLERANCE, Portable, not_foreign, of_result, portable
from limbeck.export.table_onnx import COLUMNS
from limbeck.export.torch_files import onnx_file, program_file
from limbeck.storage import folders
from limbeck.storage.files import write_bytes

__all__ = ["TOLERANCE", "Portable", "card", "export", "of_result", "portable"]

# by format: the suffix of its files, and the function that gives them for a path, with the largest
# difference from torch
FORMATS: dict[str, tuple[str, Callable[[Portable, Path], tuple[dict[Path, bytes], Any]]]] = {
    "onnx": (".onnx", onnx_file), "pt2": (".pt2", program_file), "c": (".h", c_file),
    "numpy": (".npz", numpy_files),
}  # fmt: skip
_card_text = card  # `export` has an argument of that name


@checked_arguments
def export(
    thing: UserObject[object],
    path: PathLike,
    format: Annotated[str, Choice("auto", *FORMATS)] = "auto",
    *,
    input_shape: UserObject[int | Sequence[int] | None] = None,
    predict: UserObject[Callable[..., object] | None] = None,
    columns: Annotated[str, Choice(*COLUMNS)] = "named",
    report: UserObject[object] = None,
    title: Text | None = None,
    card: Flag = True,
) -> Path:
    r"""Write a student for use without limbeck, after comparing it with torch.

    Returns the path of the file or folder.

    Arguments:
        thing: A result, the folder of a saved one, a fitted estimator of limbeck's, or a module.
        path: `name.onnx` for ONNX, `name.pt2` for torch.export, `name.h` for a C header, `name.npz`
            (with `name.py`) or a folder (with predict.py and weights.npz) for plain NumPy.
        format: "onnx", "pt2", "c" or "numpy". Default: "auto", by the path. In a folder the first
            three write student.onnx, student.pt2 or student.h.
        input_shape: The shape of one row, if the module does not define it. Default: None.
        predict: Your own function of (draw, x), for the folder of a condensed bag, in which it is
            not saved. Default: None, for ready-made models.
        columns: How the ONNX file of a table takes its columns: "named", one input for each, or
            "encoded", all numbers in one and all codes of categories in another. Default: "named".
        report: The result of `result.report(...)`, for the card. Default: None.
        title: The card's title. Default: the student's kind.
        card: Whether to write a model card (Markdown) beside it. Default: True.
    """
    path = Path(path)
    kind, folder = kind_of(path, format), path if _is_folder(path) else None
    if kind != "numpy" and folder is not None:
        path = path / f"student{FORMATS[kind][0]}"
    if card:
        not_foreign(card_path(path, kind))
    model = portable(thing, input_shape, predict)
    if columns == "encoded":
        if kind != "onnx" or model.table is None:
            raise ArgumentError("columns", shown(columns), "'named', but for a table as ONNX")
        model = replace(model, columns=columns)
    content, worst = FORMATS[kind][1](model, path)
    what, _, tolerance = CHECKS[kind]
    if worst is not None and not worst < tolerance:
        reason = f"disagrees with torch by {worst:.2g}, and was not written"
        raise LimbeckError(f"export: the {what} {reason}")
    written = tuple(content)
    if card:
        if hasattr(report, "shipped"):
            report = report.shipped({file.name: len(part) for file, part in content.items()})
        text = _card_text(model, path, kind, worst, report=report, title=title)
        content[card_path(path, kind)] = text.encode()
    try:
        if folder is not None:
            parts = {file.name: part for file, part in content.items()}
            folders.write(folder, "export", parts, keep=None)
        for file, part in content.items() if folder is None else ():
            write_bytes(file, part)
    except CheckpointError as error:
        reason = f"{folder or path} cannot be written ({error.__cause__ or error})"
        raise LimbeckError(f"export: {reason}") from error
    result: Any = getattr(thing, "result_", thing)  # of an estimator
    if isinstance(getattr(result, "exported", None), tuple):
        result.exported = written
    return path


def kind_of(path: Path, format: str = "auto", argument: str = "path") -> str:
    r"""The format for a path; a name of another format than the one requested is refused."""
    if _is_folder(path):
        return "numpy" if format == "auto" else format
    by_name = {suffix: name for name, (suffix, _) in FORMATS.items()}.get(path.suffix)
    if format == "auto" and by_name is None:
        expected = "a name that ends in .onnx, .pt2, .h or .npz, or a folder for NumPy"
        raise ArgumentError(argument, str(path), expected)
    if format not in ("auto", by_name) and (by_name or format != "numpy"):
        received = f"{path}, and the format {format}"
        raise ArgumentError(argument, received, f"a name that ends in {FORMATS[format][0]}")
    return format if by_name is None else by_name


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix
