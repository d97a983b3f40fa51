r"""Result folders: `result.json` holds the content, `arrays.npz` the arrays that pictures need.

Files are written completely or not at all, `result.json` last: a folder that has it is complete.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from limbeck.arguments import choice
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.storage import files

__all__ = ["FORMAT", "VERBS", "Saved", "as_saved", "check_content", "read", "write"]

FORMAT = "limbeck-result-1"
VERBS = ("compress", "condense", "normalize", "logz")
CONTENT, ARRAYS = "result.json", "arrays.npz"

EMPTY: dict[str, Any] = {  # the fields of every result, with their defaults
    "title": "", "command": "", "summary": "", "circumstances": {}, "seed": None, "seconds": None,
    "settings": {}, "models": [], "history": {}, "verdicts": [], "notes": [],
}  # fmt: skip


class Saved(NamedTuple):
    r"""A saved result."""

    content: dict[str, Any]  # of `result.json`
    arrays: dict[str, np.ndarray]  # of `arrays.npz`, by name


def write(
    folder: str | Path, content: Mapping[str, Any], arrays: Mapping[str, object] | None = None
) -> Path:
    r"""Write a result; numbers that are not finite become null.

    Arguments:
        folder: The folder to write to, made if needed; other files in it are left alone.
        content: The result, as from `limbeck.report.records.to_record`.
        arrays: Arrays that pictures need, by name: numbers or strings. Default: None.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", f"{folder}, a file", "a folder, new or there already")
    complete = check_content(files.plain({"format": FORMAT, **content}), folder)
    plain = {name: _as_array(name, value) for name, value in (arrays or {}).items()}
    with files.replacing(folder / ARRAYS) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **plain)  # type: ignore[arg-type]
    files.write_text(folder / CONTENT, json.dumps(complete, indent=1, ensure_ascii=False) + "\n")
    return folder


def read(folder: str | Path) -> Saved:
    r"""Read a result that `write` wrote."""
    folder = Path(folder)
    path, arrays = folder / CONTENT, folder / ARRAYS
    expected = f"a folder with {CONTENT}, as limbeck's commands write it"
    if not folder.is_dir():
        raise ArgumentError("folder", f"{folder}, which is no folder", expected)
    if not path.is_file():
        received = f"{folder}, without {CONTENT}"
        if (folder / "UNFINISHED").exists():
            received = f"{folder}, whose run is not finished"
            expected += "; run the same command again to continue"
        raise ArgumentError("folder", received, expected)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"folder: {path} cannot be read ({error})") from error
    content = check_content(content, folder)
    if not arrays.exists():
        return Saved(content, {})
    try:
        with np.load(arrays, allow_pickle=False) as archive:
            return Saved(content, {name: archive[name] for name in archive.files})
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise CheckpointError(f"folder: {arrays} cannot be read ({error})") from error


def as_saved(saved: object) -> Saved:
    r"""A saved result, or the one in a folder."""
    if not isinstance(saved, str | Path | Saved):
        expected = "a saved result, as limbeck.storage.read gives it"
        raise ArgumentError("saved", f"a {type(saved).__name__}", expected)
    return saved if isinstance(saved, Saved) else read(saved)


def check_content(content: object, folder: str | Path) -> dict[str, Any]:
    r"""The content of a result with defaults for missing fields; refuse what is none."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        kind = content.get("format") if isinstance(content, dict) else type(content).__name__
        expected = f"{FORMAT!r}, as limbeck writes it"
        raise ArgumentError("folder", f"{folder} with the format {kind!r}", expected)
    choice("verb", content.get("verb"), VERBS)
    content = {**EMPTY, **content}
    types: dict[type, str] = {dict: "names and values", list: "a list", str: "words"}
    for name, default in EMPTY.items():
        if default is not None and not isinstance(content[name], type(default)):
            raise ArgumentError(name, f"a {type(content[name]).__name__}", types[type(default)])
    return content


def _as_array(name: str, value: object) -> np.ndarray:
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if array.dtype.kind not in "biufU":
        received = f"an array of {array.dtype}"
        raise ArgumentError(f"arrays[{name!r}]", received, "numbers, truth values or words")
    return array
