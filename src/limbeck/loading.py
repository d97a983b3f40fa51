r"""`load`: any result that limbeck has written, as what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from limbeck.errors import ArgumentError
from limbeck.training import result
from limbeck.training.result import Result

__all__ = ["load"]


def load(
    folder: str | Path,
    student: nn.Module | None = None,
    *,
    predict: Callable[..., Any] | None = None,
) -> Result:
    r"""Read a result back; one of `compress` or `condense` predicts again.

    Arguments:
        folder: What `save` wrote.
        student: An empty copy of a module of the user's own; limbeck's models need none.
        predict: Of a condensed bag, your own function of (draw, x); ready-made models are known.
    """
    from limbeck.compression.compressed import ABOUT as COMPRESSED
    from limbeck.compression.compressed import Compressed
    from limbeck.condensation.condensed import ABOUT as CONDENSED
    from limbeck.condensation.condensed import Condensed

    if (Path(folder) / CONDENSED).exists():
        return Condensed.load(folder, student, predict=predict)
    if predict is not None:
        received = f"a function for {folder}, which is no result of condense"
        raise ArgumentError("predict", received, "None")
    if (Path(folder) / COMPRESSED).exists():
        return Compressed.load(folder, student)
    return result.load(folder, student)
