r"""`export`: any result or module, to a file of the kind that its name says, with a model card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError
from limbeck.export.card import card_path, write_card
from limbeck.export.numpy_predictor import numpy_files, places
from limbeck.export.onnx_file import onnx_file
from limbeck.export.portable import not_foreign, portable
from limbeck.export.program import program_file

__all__ = ["FORMATS", "export", "kind_of"]

FORMATS: dict[str, Any] = {"onnx": onnx_file, "pt2": program_file, "numpy": numpy_files}
r"""What writes each format."""

SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".npz": "numpy"}

ACCEPTED = "a name that ends in .onnx, .pt2 or .npz, or a folder for NumPy"


def export(
    thing: Any,
    path: str | Path,
    format: str = "auto",
    *,
    input_shape: Any = None,
    predict: Callable[..., Any] | None = None,
    report: Any = None,
    title: str | None = None,
    card: bool = True,
) -> Path:
    r"""Write a student for use without limbeck; it is run and compared with torch first.

    What was written is given back: the file, or the folder.

    Arguments:
        thing: A result of any verb, or the folder that one was saved in, a fitted estimator of
            limbeck's, or a module.
        path: `name.onnx` for ONNX, `name.pt2` for torch.export, `name.npz` (with `name.py`) or a
            folder (with predict.py and weights.npz) for plain NumPy.
        format: "onnx", "pt2" or "numpy"; "auto" goes by the path. In a folder the first two write
            student.onnx or student.pt2.
        input_shape: Of a module that does not tell, the shape of one row, such as (784,).
        predict: Of the folder of a condensed bag, your own function of (draw, x), which is not
            saved with it; ready-made models are known.
        report: What `result.report(...)` gave, whose figures go into the card.
        title: The card's title.
        card: Whether to write a model card (Markdown) beside it.
    """
    path = Path(path)
    found = kind_of(path, format)
    if found != "numpy" and _folder(path):
        path = path / f"student.{found}"
    if card:
        not_foreign(card_path(path, found))
    leaving = portable(thing, input_shape, predict)
    worst = FORMATS[found](leaving, path)
    files = places(path) if found == "numpy" else (path,)
    result = getattr(thing, "result_", thing)  # of an estimator
    if isinstance(getattr(result, "exported", None), tuple):
        result.exported = files
    report = report.shipped(files) if hasattr(report, "shipped") else report
    if card:
        write_card(leaving, path, found, worst, report=report, title=title)
    return path


def kind_of(path: Path, format: str = "auto", argument: str = "path") -> str:
    r"""What is written at a path; a name that says another format than is asked for is refused.

    Arguments:
        path: A file, or a folder.
        format: "auto" or one of `FORMATS`.
        argument: What errors call the path.
    """
    if format not in ("auto", *FORMATS):
        raise ArgumentError.unknown("format", format, ("auto", *FORMATS))
    said = None if _folder(path) else SUFFIXES.get(path.suffix)
    if format == "auto":
        if said is None and not _folder(path):
            raise ArgumentError(argument, str(path), ACCEPTED)
        return said or "numpy"
    if said not in (None, format):
        ending = next(each for each, kind in SUFFIXES.items() if kind == format)
        received = f"{path}, and the format {format}"
        raise ArgumentError(argument, received, f"a name that ends in {ending}")
    return format


def _folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix
