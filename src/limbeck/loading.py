r"""`load`: read any saved result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from limbeck.arguments import PathLike, UserObject, checked_arguments
from limbeck.errors import ArgumentError
from limbeck.training import result


@checked_arguments
def load(
    folder: PathLike,
    student: nn.Module | None = None,
    *,
    predict: UserObject[Callable[..., Any] | None] = None,
) -> result.Result:
    r"""Read a saved result; one of `compress` or `condense` can predict again.

    Arguments:
        folder: A folder that `save` or one of limbeck's commands wrote.
        student: A new instance of a module of your own, whose weights are replaced. Default: None,
            for limbeck's models.
        predict: Your own function of (draw, x), for a result of `condense`. Default: None, for
            limbeck's ready-made models.
    """
    from limbeck.compression import compressed
    from limbeck.condensation import condensed

    saved = result.read_files(folder)
    if condensed.ABOUT in saved.names:
        return condensed.Condensed.from_files(saved, student, predict=predict)
    if predict is not None:
        raise ArgumentError("predict", f"a function for {folder}, no result of condense", "None")
    if compressed.ABOUT in saved.names:
        return compressed.Compressed.from_files(saved, student)
    return result.from_files(saved, student)
