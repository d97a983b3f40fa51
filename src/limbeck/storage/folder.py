r"""A result folder: `result.json` says what was found, `arrays.npz` holds what is drawn of it.

Both are plain: JSON, and arrays of numbers without pickles. Each is written whole or not at all,
`result.json` last, so that a folder which has one is complete.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import files
from limbeck.storage.files import plain

__all__ = [
    "ARRAYS",
    "CONTENT",
    "FORMAT",
    "UNFINISHED",
    "VERBS",
    "Saved",
    "as_saved",
    "read",
    "write",
]

FORMAT = "limbeck-result-1"
VERBS = ("compress", "condense", "normalize", "logz")
CONTENT, ARRAYS, UNFINISHED = "result.json", "arrays.npz", "UNFINISHED"

EMPTY: dict[str, Any] = {
    "title": "",
    "command": "",
    "summary": "",
    "circumstances": {},
    "seed": None,
    "seconds": None,
    "settings": {},
    "models": [],
    "history": {},
    "verdicts": [],
    "notes": [],
}
r"""What every result has, and what stands there if nothing is known."""


class Saved(NamedTuple):
    r"""A result as it was saved.

    Attributes:
        content: What `result.json` holds.
        arrays: What `arrays.npz` holds, by name.
    """

    content: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write(
    folder: str | Path, content: Mapping[str, Any], arrays: Mapping[str, Any] | None = None
) -> Path:
    r"""Write a result; numbers that are not finite become null.

    Arguments:
        folder: Where to; it is made if it is not there, and other files in it are left alone.
        content: What was found; see `limbeck.report.records.described`.
        arrays: What pictures are drawn of, by name: numbers or words, never objects.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", f"{folder}, a file", "a folder, new or there already")
    known = checked(plain({"format": FORMAT, **content}), folder)
    kept = {name: _array(name, value) for name, value in (arrays or {}).items()}
    with files.replacing(folder / ARRAYS) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **kept)  # type: ignore[arg-type]
    files.write_text(folder / CONTENT, json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    return folder


def read(folder: str | Path) -> Saved:
    r"""Read what `write` wrote."""
    folder = Path(folder)
    path = folder / CONTENT
    expected = f"a folder with {CONTENT}, as limbeck's commands write it"
    if not folder.is_dir():
        raise ArgumentError("folder", f"{folder}, which is no folder", expected)
    if not path.is_file():
        if (folder / UNFINISHED).exists():
            received = f"{folder}, whose run is not finished"
            raise ArgumentError("folder", received, f"{expected}; the same command again goes on")
        raise ArgumentError("folder", f"{folder}, without {CONTENT}", expected)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"folder: {path} cannot be read ({error})") from error
    return Saved(checked(content, folder), _arrays(folder / ARRAYS))


def as_saved(saved: Any) -> Saved:
    r"""A saved result, or the one in a folder."""
    if isinstance(saved, str | Path):
        return read(saved)
    if isinstance(saved, Saved):
        return saved
    received = f"a {type(saved).__name__}"
    raise ArgumentError("saved", received, "a saved result, as limbeck.storage.read gives it")


def checked(content: Any, folder: Path) -> dict[str, Any]:
    r"""The content with all that every result has, if it is one of limbeck's."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        expected = f"{FORMAT!r}, as limbeck writes it"
        raise ArgumentError("folder", f"{folder} with the format {found!r}", expected)
    if content.get("verb") not in VERBS:
        raise ArgumentError.unknown("verb", content.get("verb"), VERBS)
    whole = {**EMPTY, **content}
    for name, empty in EMPTY.items():
        if empty is not None and not isinstance(whole[name], type(empty)):
            words = {"dict": "names and values", "list": "a list", "str": "words"}
            received = f"a {type(whole[name]).__name__}"
            raise ArgumentError(name, received, words[type(empty).__name__])
    return whole


def _array(name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    found = np.asarray(value)
    if found.dtype.kind not in "biufU":
        received = f"an array of {found.dtype}"
        raise ArgumentError(f"arrays[{name!r}]", received, "numbers, truth values or words")
    return found


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise CheckpointError(f"folder: {path} cannot be read ({error})") from error
