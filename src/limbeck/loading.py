r"""`load`: any result that limbeck has written, as what it was."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from limbeck.core import result
from limbeck.core.result import Result

__all__ = ["load"]


def load(folder: str | Path, student: nn.Module | None = None) -> Result:
    r"""Read a result back; one of `compress` predicts again.

    Arguments:
        folder: What `save` wrote.
        student: An empty copy of a module of the user's own; limbeck's models need none.
    """
    from limbeck.compression.compressed import ABOUT, Compressed

    if (Path(folder) / ABOUT).exists():
        return Compressed.load(folder, student)
    return result.load(folder, student)
