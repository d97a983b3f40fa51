r"""JSON that is read from files: within limits, and checked field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limbeck.errors import ArgumentError, CheckpointError
from limbeck.records import read_fields, read_record

MAX_BYTES = 2**28  # of a JSON file: a history of millions of evaluations


def encode(value: object) -> bytes:
    r"""A value as a JSON file; a dataclass as its fields."""
    return (json.dumps(value, indent=1, default=vars) + "\n").encode()


def decode(content: bytes | bytearray, path: Path) -> Any:
    r"""The value of a JSON file; its path is for errors."""
    if len(content) > MAX_BYTES:
        raise damaged(path, f"has {len(content):,} bytes, more than limbeck writes")
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"cannot be read as JSON ({error or type(error).__name__})") from error


def check(hint: Any, value: Any, path: Path) -> Any:
    r"""A value of a JSON file as a dataclass or a dict of fields and their types has it."""
    try:
        if isinstance(hint, Mapping):
            return read_fields(value, hint, path.name)
        return read_record(hint, value, path.name)
    except ArgumentError as error:
        raise damaged(path, f"is not as limbeck writes it ({error})") from error


def damaged(path: Path | str, what: str) -> CheckpointError:
    r"""The error about a file that is not as limbeck has written it."""
    advice = "it is damaged or was changed: restore it from a copy, or make it again"
    return CheckpointError(f"folder: {path} {what}; {advice}")
