r"""JSON that is read from files: within limits, and checked field by field."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from limbeck.errors import CheckpointError

MAX_BYTES = 2**28  # of a JSON file: a history of millions of evaluations


fields_of = functools.cache(get_type_hints)  # it is slow


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


def check(hint: Any, value: Any, path: Path, field: str = "") -> Any:
    r"""A value of a JSON file as a type hint, a dataclass or a dict of fields and hints has it."""
    inside, (origin, parts) = f"{field}." if field else "", (get_origin(hint), get_args(hint))
    if isinstance(hint, Mapping):
        if not isinstance(value, dict) or value.keys() != hint.keys():
            names = value.keys() if isinstance(value, dict) else ()
            other = sorted(inside + name for name in hint.keys() ^ names)
            raise damaged(path, f"lacks a field, or has an unknown one: {', '.join(other[:5])}")
        return {name: check(hint[name], value[name], path, inside + name) for name in hint}
    if dataclasses.is_dataclass(hint):
        return hint(**check(fields_of(hint), value, path, field))  # type: ignore[operator,arg-type]
    if hint is Any or (value is None and type(None) in parts):
        return value
    if origin in (Union, types.UnionType):
        return check(parts[0], value, path, field)
    if origin is list and isinstance(value, list):
        if all(type(item) is parts[0] for item in value):  # long histories
            return value
        return [check(parts[0], item, path, f"{field}[{k}]") for k, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: check(parts[1], item, path, inside + key) for key, item in value.items()}
    accepted = (int, float) if hint is float else hint
    if (
        origin is not None
        or not isinstance(value, accepted)
        or isinstance(value, bool) > (hint is bool)
    ):
        name = getattr(origin or hint, "__name__", "")
        raise damaged(path, f"has {str(value)[:40]!r} as {field}; expected {name}")
    return value


def damaged(path: Path | str, what: str) -> CheckpointError:
    r"""The error about a file that is not as limbeck has written it."""
    advice = "it is damaged or was changed: restore it from a copy, or make it again"
    return CheckpointError(f"folder: {path} {what}; {advice}")
