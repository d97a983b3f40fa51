r"""`load`: read any result that limbeck has saved."""

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
    r"""Read a saved result; one of `compress` or `condense` can predict again.

    Arguments:
        folder: A folder that `save` wrote.
        student: A new instance of a module of your own, whose weights are replaced. Default: None,
            for limbeck's models.
        predict: Your own function of (draw, x), for a result of `condense`. Default: None, for
            limbeck's ready-made models.
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
