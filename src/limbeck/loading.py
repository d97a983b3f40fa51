r"""`load`: read any saved result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from limbeck.errors import ArgumentError
from limbeck.training import result


def load(
    folder: str | Path,
    student: nn.Module | None = None,
    *,
    predict: Callable[..., Any] | None = None,
) -> result.Result:
    r"""Read a saved result; one of `compress` or `condense` can predict again.

    Arguments:
        folder: A folder that `save` wrote.
        student: A new instance of a module of your own, whose weights are replaced. Default: None,
            for limbeck's models.
        predict: Your own function of (draw, x), for a result of `condense`. Default: None, for
            limbeck's ready-made models.
    """
    from limbeck.compression import compressed
    from limbeck.condensation import condensed

    if (Path(folder) / condensed.ABOUT).exists():
        return condensed.Condensed.load(folder, student, predict=predict)
    if predict is not None:
        raise ArgumentError("predict", f"a function for {folder}, no result of condense", "None")
    if (Path(folder) / compressed.ABOUT).exists():
        return compressed.Compressed.load(folder, student)
    return result.load(folder, student)
