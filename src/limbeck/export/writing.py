r"""`export`: any result or module, to a file of the kind that its name says, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError
from limbeck.export.card import card_path, write_card
from limbeck.export.numpy_predictor import numpy_files
from limbeck.export.onnx_file import onnx_file
from limbeck.export.placing import not_foreign
from limbeck.export.portable import portable
from limbeck.export.program import program_file

__all__ = ["FORMATS", "export"]

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
    report: Any = None,
    title: str | None = None,
    card: bool = True,
) -> Path:
    r"""Write a student for use without limbeck; it is run and compared with torch first.

    What was written is given back: the file, or the folder.

    Arguments:
        thing: A result of any verb, a fitted estimator of limbeck's, or a module.
        path: `name.onnx` for ONNX, `name.pt2` for torch.export, `name.npz` (with `name.py`) or a
            folder (with predict.py and weights.npz) for plain NumPy.
        format: "onnx", "pt2" or "numpy"; "auto" goes by the path. In a folder the first two write
            student.onnx or student.pt2.
        input_shape: Of a module that does not tell, the shape of one row, such as (784,).
        report: What `result.report(...)` gave, whose figures go into the card.
        title: The card's title.
        card: Whether to write a model card (Markdown) beside it.
    """
    path = Path(path)
    if format not in ("auto", *FORMATS):
        raise ArgumentError.unknown("format", format, ("auto", *FORMATS))
    folder = path.is_dir() or not path.suffix
    found = format
    if format == "auto":
        if not folder and path.suffix not in SUFFIXES:
            raise ArgumentError("path", str(path), ACCEPTED)
        found = "numpy" if folder else SUFFIXES[path.suffix]
    elif folder and format != "numpy":
        path = path / f"student.{format}"
    if card:
        not_foreign(card_path(path, found))
    leaving = portable(thing, input_shape)
    worst = FORMATS[found](leaving, path)
    if card:
        write_card(leaving, path, found, worst, report=report, title=title)
    return path
