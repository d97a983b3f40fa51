r"""Where files go: whole or not at all, and never over what limbeck did not write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from limbeck.core.checkpoint import replacing
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError

__all__ = ["MARK", "apart", "in_place", "not_foreign", "suffixed"]

MARK = "limbeck wrote this file"
r"""By which text files that may be written anew are known."""


@contextmanager
def in_place(path: Path) -> Iterator[str]:
    r"""A name to write to; the file takes its place once it is whole."""
    try:
        with replacing(path) as temporary:
            yield temporary
    except CheckpointError as error:
        reason = error.__cause__ or error
        raise LimbeckError(f"export: {path} cannot be written ({reason})") from error


def suffixed(path: Path, suffix: str) -> None:
    r"""Refuse a path that is not a file of a kind."""
    if path.suffix != suffix:
        raise ArgumentError("path", str(path), f"a name that ends in {suffix}")
    if path.is_dir():
        raise ArgumentError("path", f"{path}, which is a folder", "a file, new or to be replaced")


def not_foreign(path: Path) -> None:
    r"""Refuse to write over a text file that is not limbeck's."""
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        received = f"a place where {path} is, which limbeck did not write"
        raise ArgumentError("path", received, "another folder or name")


def apart(found: Tensor, expected: Tensor) -> float:
    r"""The largest difference, relative to the largest answer and one; infinite if not alike."""
    if found.shape != expected.shape:
        return float("inf")
    if not found.numel():
        return 0.0
    worst = (found.double() - expected.double()).abs().max().item()
    return worst / (1 + expected.abs().max().item())
