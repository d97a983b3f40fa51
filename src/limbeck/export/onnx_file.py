r"""ONNX files, run and compared with torch before they take their place."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.core.modes import evaluating
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.export.densities import plain
from limbeck.export.placing import apart, in_place, suffixed
from limbeck.export.portable import Portable

__all__ = ["CHECKED", "TOLERANCE", "onnx_file", "quietly", "refused", "to_onnx"]

TOLERANCE = 1e-5
r"""How far a file may be from torch, relative to the largest answer and one."""

FREE = "the number of rows must stay free: x.shape[0] does, len(x) does not"

CHECKED = 64
r"""Random rows at which a file is compared with torch."""


def to_onnx(student: nn.Module, path: str | Path, input_shape: dict[str, list[int]] | None) -> Path:
    r"""Write a module of one tensor as an ONNX file with a free batch size.

    If onnxruntime is there, the file is run at random inputs and must agree with torch.

    Arguments:
        student: The module.
        path: The file, whose name ends in .onnx.
        input_shape: The shape of one input under the name "", as results keep it.
    """
    if not input_shape or set(input_shape) != {""}:
        raise ArgumentError("student", f"inputs {input_shape}", "a student of one tensor, for ONNX")
    onnx_file(Portable(student, tuple(input_shape[""])), Path(path))
    return Path(path)


def onnx_file(leaving: Portable, path: Path) -> float | None:
    r"""Write a student as an ONNX file; how far it is from torch, None if that is not known."""
    suffixed(path, ".onnx")
    if leaving.table is not None:
        from limbeck.compression.tables.export import to_onnx as table_to_onnx

        assert leaving.student is not None
        assert leaving.task is not None
        output = "logits" if leaving.task == "multilabel" else "auto"
        table_to_onnx(leaving.student, leaving.table, path, leaving.classes, leaving.task, output)
        return TOLERANCE
    if importlib.util.find_spec("onnxscript") is None:
        raise LimbeckError("export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    x = leaving.rows(CHECKED)
    module = plain(leaving.module)
    with evaluating(module), torch.no_grad(), in_place(path) as temporary:
        try:
            with quietly():
                torch.onnx.export(
                    module, (x,), temporary, input_names=["x"], output_names=["y"], dynamo=True,
                    dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False,
                    verbose=False,
                )  # fmt: skip
        except Exception as error:  # of the exporter's many kinds
            raise refused(leaving, "ONNX", error) from error
        return _checked(module, temporary, x)


@contextmanager
def quietly() -> Iterator[None]:
    r"""Without what torch's exporter says about itself, in warnings and in its log."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def refused(leaving: Portable, what: str, error: Exception) -> LimbeckError:
    r"""Why torch cannot write a student, in one line."""
    cause = error.__cause__ or error
    reason = (str(cause).strip() or repr(cause)).splitlines()[0]
    advice = f"; {FREE}" if "(batch)" in reason else ""
    return LimbeckError(f"export: torch cannot write {leaving.name} as {what} ({reason}){advice}")


def _checked(module: nn.Module, file: str, x: Tensor) -> float | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    worst = 0.0
    try:
        session: Any = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        for rows in (x, x[:1]):  # at another batch size, too
            found = torch.as_tensor(session.run(None, {"x": rows.cpu().numpy()})[0])
            worst = max(worst, apart(found, module(rows).cpu()))
    except Exception as error:  # of onnxruntime's many kinds
        reason = " ".join(str(error).split())
        raise LimbeckError(f"export: onnxruntime cannot run the file ({reason}); {FREE}") from error
    if not worst < TOLERANCE:
        raise LimbeckError(
            f"export: the ONNX file disagrees with torch by {worst:.2g}, and was not written"
        )
    return worst
