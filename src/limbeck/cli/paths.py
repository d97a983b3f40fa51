r"""What is said of a path that cannot be used."""

from __future__ import annotations

import difflib
from pathlib import Path

from limbeck.errors import ArgumentError

__all__ = ["is_there", "state"]


def state(path: Path, wanted: str = "file") -> str:
    r"""Why a path is no file, or no folder, as it is wanted: it is the other one, or not there.

    What has nearly the same name is suggested.
    """
    if path.exists():
        return "a folder" if wanted == "file" else "a file"
    try:
        known = [each.name for each in path.parent.iterdir()]
    except OSError:
        known = []
    near = difflib.get_close_matches(path.name, known, n=1, cutoff=0.7)
    return "which is not there" + (f" (did you mean {path.with_name(near[0])}?)" if near else "")


def is_there(path: Path, argument: str, accepted: str) -> None:
    r"""Refuse a path at which there is nothing."""
    if not path.exists():
        raise ArgumentError(argument, f"{path}, {state(path)}", accepted)
