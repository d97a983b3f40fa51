r"""Programs of torch.export (.pt2): loaded back and compared before they take their place."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arrays import map_tensors, part_of
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.evaluation import evaluating
from limbeck.export import onnx_file
from limbeck.export.onnx_file import plain
from limbeck.export.portable import Portable, apart, in_place, portable, suffixed

__all__ = ["program_file", "to_pt2"]

ABOUT = "limbeck.json"
r"""Where a program's file says what it is."""


def to_pt2(thing: Any, path: str | Path, input_shape: Any = None) -> Path:
    r"""Write a result or a module as a program of torch.export, with a free batch size.

    Whoever has torch reads it by `torch.export.load(path).module()`; limbeck is not needed, and
    never reads such files itself.

    Arguments:
        thing: As of `limbeck.export.export`, and so is input_shape.
        path: The file, whose name ends in .pt2.
        input_shape: Of a module that does not tell, the shape of one row.
    """
    program_file(portable(thing, input_shape), Path(path))
    return Path(path)


def program_file(leaving: Portable, path: Path) -> float:
    r"""Write a student as a program; how far it is from torch's own answers."""
    suffixed(path, ".pt2")
    if leaving.shape is None and leaving.table is None:
        received = f"a {leaving.name} of unknown inputs"
        raise ArgumentError("student", received, "a student of one tensor, or input_shape=")
    x = leaving.rows(onnx_file.CHECKED)
    module = plain(leaving.module)
    rows = torch.export.Dim("batch")
    dynamic = {name: {0: rows} for name in x} if isinstance(x, dict) else {0: rows}
    with evaluating(module), torch.no_grad(), in_place(path) as temporary:
        program = _traced(leaving, module, x, dynamic)
        _refuse_own(program, leaving)
        with onnx_file.quietly():
            about = json.dumps(_about(leaving), ensure_ascii=False, default=str)
            with open(temporary, "wb") as file:
                torch.export.save(program, file, extra_files={ABOUT: about})
            with open(temporary, "rb") as file:
                loaded = torch.export.load(file).module()
            worst = 0.0
            for some in (x, part_of(x, 0, 1)):
                worst = max(worst, apart(loaded(_fresh(some)), module(some)))
        if not worst < onnx_file.TOLERANCE or not zipfile.is_zipfile(temporary):
            raise LimbeckError(
                f"export: the program disagrees with torch by {worst:.2g}, and was not written"
            )
    return worst


def _traced(leaving: Portable, module: nn.Module, x: Any, dynamic: Any) -> Any:
    r"""The program of a module, by the first of torch's two ways of tracing that can do it."""
    first: Exception | None = None
    for strict in (False, True):
        try:
            with onnx_file.quietly():
                return torch.export.export(module, (x,), dynamic_shapes=(dynamic,), strict=strict)
        except Exception as error:  # of the exporter's many kinds
            first = first or error
    assert first is not None
    raise onnx_file.refused(leaving, "a program", first) from first


def _fresh(x: Any) -> Any:
    return map_tensors(Tensor.clone, x)


def _refuse_own(program: Any, leaving: Portable) -> None:
    r"""A program must run where limbeck is not."""
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("limbeck"):
            reason = f"it needs limbeck's own operation {node.target}"
            raise LimbeckError(f"export: torch cannot write {leaving.name} as a program ({reason})")


def _about(leaving: Portable) -> dict[str, Any]:
    return {
        "student": leaving.name,
        "form": leaving.form,
        "task": leaving.task,
        "classes": leaving.classes,
        "shape": None if leaving.shape is None else list(leaving.shape),
        "table": None if leaving.table is None else leaving.table.spec(),
    }
