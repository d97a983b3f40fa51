r"""The results of commands and reports: `result.json` has the content, `arrays.npz` the arrays."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from limbeck.arguments import FilePath, choice
from limbeck.errors import ArgumentError
from limbeck.records import damaged
from limbeck.storage import files, folders

__all__ = ["FORMAT", "VERBS", "Saved", "as_saved", "check_content", "read", "to_files", "write"]

FORMAT = "limbeck-result-1"
VERBS = ("compress", "condense", "normalize", "logz", "evidence")
CONTENT, ARRAYS = "result.json", "arrays.npz"
STUDENT_FILES = (  # which a student's `save` writes
    "student.safetensors", "training.json", "compression.json", "condensation.json",
)  # fmt: skip

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
        folder: The folder to write to, made if needed; a student in it stays, a report is removed.
        content: The result, as from `limbeck.report.records.to_record`.
        arrays: Arrays that pictures need, by name: numbers or strings. Default: None.
    """
    return folders.write(folder, "result", to_files(content, arrays, folder), STUDENT_FILES)


def to_files(
    content: Mapping[str, Any], arrays: Mapping[str, object] | None, folder: str | Path
) -> dict[str, bytes]:
    r"""The files of a result for a folder."""
    complete = check_content(files.plain({"format": FORMAT, **content}), folder)
    plain = {name: _as_array(name, value) for name, value in (arrays or {}).items()}
    archive = io.BytesIO()
    np.savez_compressed(archive, **plain)  # type: ignore[arg-type]
    text = json.dumps(complete, indent=1, ensure_ascii=False) + "\n"
    return {CONTENT: text.encode(), ARRAYS: archive.getvalue()}


def read(folder: str | Path) -> Saved:
    r"""Read a result that `write` wrote."""
    saved = folders.read(folder, "result", (CONTENT, ARRAYS))
    if CONTENT not in saved.names:
        expected = f"a folder with {CONTENT}, as limbeck's commands write it"
        raise ArgumentError("folder", f"{folder}, without {CONTENT}", expected)
    content = check_content(saved.json(CONTENT), folder)
    if ARRAYS not in saved.names:
        return Saved(content, {})
    try:
        with np.load(io.BytesIO(saved.content[ARRAYS]), allow_pickle=False) as archive:
            return Saved(content, {name: archive[name] for name in archive.files})
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise damaged(saved.path(ARRAYS), f"cannot be read ({error})") from error


def as_saved(saved: object) -> Saved:
    r"""A saved result, or the one in a folder."""
    expected = "a saved result, as limbeck.storage.read gives it, or its folder"
    return saved if isinstance(saved, Saved) else read(FilePath()("saved", saved, expected))


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
