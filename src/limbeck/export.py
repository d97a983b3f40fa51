r"""Taking a student elsewhere: ONNX, checked against torch."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limbeck.errors import ArgumentError, LimbeckError

__all__ = ["quietly", "to_onnx"]

TOLERANCE = 1e-5


def to_onnx(student: nn.Module, path: str | Path, input_shape: dict[str, list[int]] | None) -> Path:
    r"""Write a module of one tensor as an ONNX file with a free batch size.

    If onnxruntime is there, the file is run at random inputs and must agree with torch.

    Arguments:
        student: The module.
        path: The file, whose name ends in .onnx.
        input_shape: The shape of one input under the name "", as results keep it.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ArgumentError("path", str(path), "a name that ends in .onnx")
    if not input_shape or set(input_shape) != {""}:
        raise ArgumentError("student", f"inputs {input_shape}", "a student of one tensor, for ONNX")
    if importlib.util.find_spec("onnxscript") is None:
        raise LimbeckError("export: ONNX needs the extra: pip install 'limbeck[onnx]'")
    parameter = next(student.parameters())
    x = torch.randn(3, *input_shape[""], device=parameter.device, dtype=parameter.dtype)
    modes = [(module, module.training) for module in student.modules()]
    student.eval()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        batch = torch.export.Dim("batch")
        with quietly():
            torch.onnx.export(
                student, (x,), str(path), input_names=["x"], output_names=["y"], dynamo=True,
                dynamic_shapes=({0: batch},), external_data=False, verbose=False,
            )  # fmt: skip
    except Exception as error:  # of the exporter's many kinds
        cause = error.__cause__ or error
        reason = (str(cause).strip() or repr(cause)).splitlines()[0]
        raise LimbeckError(
            f"export: torch cannot write {type(student).__name__} as ONNX ({reason})"
        ) from error
    else:
        _check(student, path, x)
    finally:
        for module, training in modes:
            module.training = training
    return path


@contextmanager
def quietly() -> Iterator[None]:
    r"""Without what torch's exporter says about itself, in warnings and in its log."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _check(student: nn.Module, path: Path, x: torch.Tensor) -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        return
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = student(x).cpu()
    found = torch.as_tensor(session.run(None, {"x": x.cpu().numpy()})[0])
    worst = (found - expected).abs().max().item() / (1 + expected.abs().max().item())
    if not worst < TOLERANCE:
        path.unlink()
        raise LimbeckError(
            f"export: the ONNX file disagrees with torch by {worst:.2g}, and was removed"
        )
