r"""Checks of exported files: what they replace, and how far they differ from torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from limbeck.arrays import part_of
from limbeck.errors import ArgumentError, LimbeckError, first_line

TOLERANCE = 1e-5  # largest difference from torch, relative to the largest answer and one
CHECKS = {  # by format: what is written, what it is run with, and its tolerance
    "onnx": ("ONNX file", "onnxruntime", TOLERANCE),
    "pt2": ("program", "torch.export.load", TOLERANCE),
    "c": ("C header", "a C compiler", TOLERANCE),
    "numpy": ("NumPy predictor", "NumPy in double precision", 1e-6),
}
FREE = "the number of rows must stay free: x.shape[0] does, len(x) does not"
MARK = "limbeck wrote this file"  # the mark of text files that may be replaced


def not_foreign(path: Path) -> None:
    r"""Refuse to write over a text file that is not limbeck's."""
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        received = f"a place where {path} is, which limbeck did not write"
        raise ArgumentError("path", received, "another folder or name")


def relative_difference(answers: Tensor, expected: Tensor) -> float:
    r"""The largest difference, relative to the largest output and one; ∞ if shapes differ."""
    if answers.shape != expected.shape:
        return float("inf")
    if not answers.numel():
        return 0.0
    worst = (answers.double() - expected.double()).abs().max().item()
    return worst / (1 + expected.abs().max().item())


def largest_difference(run: Callable[[Any], Tensor], module: nn.Module, x: Any) -> float:
    r"""The `relative_difference` of a file from its module, at all rows and at one alone."""
    both = (x, part_of(x, 0, 1))
    return max(0.0, *(relative_difference(run(rows).cpu(), module(rows).cpu()) for rows in both))


@contextmanager
def exporting(name: str, what: str) -> Iterator[None]:
    r"""Without the exporter's warnings and log; its error is one line about a named student."""
    logs = map(logging.getLogger, ("torch.onnx", "onnx_ir", "onnxscript"))
    levels = {log: log.level for log in logs}
    try:
        for log in levels:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:  # of the exporter's many kinds
        reason = first_line(error.__cause__ or error)
        advice = f"; {FREE}" if "(batch)" in reason else ""
        message = f"export: torch cannot write {name} as {what} ({reason}){advice}"
        raise LimbeckError(message) from error
    finally:
        for log, level in levels.items():
            log.setLevel(level)
