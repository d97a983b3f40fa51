r"""Values of JSON as typed fields and dataclasses; an error names the field that is wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from limbeck.errors import ArgumentError, CheckpointError

T = TypeVar("T")
MAX_DEPTH = 16  # of lists and dicts inside each other; limbeck writes at most 8
WORDS = {
    bool: "true or false", int: "a whole number below 2**63", float: "a finite number",
    str: "a string", types.NoneType: "null", list: "a list", tuple: "a list", dict: "a dict",
}  # fmt: skip


@contextmanager
def of_file(path: object) -> Iterator[None]:
    r"""Within, an error about a field is an error about a file that limbeck wrote."""
    try:
        yield
    except ArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse_json(text: str | bytes, where: str) -> Any:
    r"""The value of a JSON text, nested at most `MAX_DEPTH` deep."""
    try:
        return check_depth(json.loads(text), where)
    except (ValueError, RecursionError) as error:  # ValueError: also of bytes that are no UTF-8
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ArgumentError(where, f"{len(text):,} bytes ({reason})", "JSON") from error


def check_depth(value: T, where: str, depth: int = MAX_DEPTH) -> T:
    r"""The same value, unless its lists and dicts are nested deeper."""
    level: list[Any] = [value]
    while level := [part for part in level if isinstance(part, list | tuple | Mapping)]:
        if (depth := depth - 1) < 0:
            raise ArgumentError(where, "lists or dicts nested too deep", f"{MAX_DEPTH} levels")
        lists = (part.values() if isinstance(part, Mapping) else part for part in level)
        level = [part for values in lists for part in values]
    return value


def read_record(kind: type[T], value: object, where: str) -> T:
    r"""A dataclass from the dict of its fields; those with a default may be left out."""
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    optional = {f.name for f in fields if f.default is not missing or f.default_factory != missing}
    return kind(**read_fields(value, {f.name: hints[f.name] for f in fields}, where, optional))


def read_fields(
    value: object, kinds: Mapping[str, Any], where: str, optional: Collection[str] = ()
) -> dict[str, Any]:
    r"""The fields of a dict, each of its own type; all others are refused."""
    if not isinstance(value, Mapping):
        raise ArgumentError(where, f"a {type(value).__name__}", "a dict")
    if unknown := [name for name in value if name not in kinds]:
        raise ArgumentError.unknown(where, unknown[0], kinds)
    if absent := [name for name in kinds if name not in value and name not in optional]:
        raise ArgumentError(f"{where}.{absent[0]}", "nothing", "a value")
    return {name: read_value(value[name], kinds[name], f"{where}.{name}") for name in value}


def read_value(value: object, kind: Any, where: str) -> Any:
    r"""A value of a type, or an error about it.

    The type is bool, int, float, str, None, Any, a Literal, a union, a list, a tuple (which comes
    from a list), a dict by strings, or a dataclass.
    """
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        exact = [part for part in parts if _matches(value, typing.get_origin(part) or part)]
        if exact:
            return read_value(value, exact[0], where)
        names = " or ".join(WORDS.get(typing.get_origin(part) or part, "a dict") for part in parts)
        raise ArgumentError(where, _shown(value), names)
    if origin is typing.Literal:
        if not isinstance(value, str) or value not in parts:
            raise ArgumentError(where, _shown(value), " or ".join(map(repr, parts)))
        return value
    if dataclasses.is_dataclass(kind):
        return read_record(typing.cast(type, kind), value, where)
    if not _matches(value, origin):
        raise ArgumentError(where, _shown(value), WORDS[origin])
    if origin is dict:
        assert isinstance(value, dict)
        return {name: read_value(v, parts[1], f"{where}.{name}") for name, v in value.items()}
    if origin in (list, tuple):
        assert isinstance(value, list | tuple)
        fixed = origin is tuple and parts[-1] is not ...
        if fixed and len(parts) != len(value):
            raise ArgumentError(where, f"{len(value)} values", f"{len(parts)} values")
        each = parts if fixed else parts[:1] * len(value)
        pairs = enumerate(zip(value, each, strict=True))
        return origin(read_value(v, part, f"{where}[{k}]") for k, (v, part) in pairs)
    return float(value) if origin is float else value  # type: ignore[arg-type]


def _matches(value: object, kind: Any) -> bool:
    if kind is Any or (kind is dict and isinstance(value, dict)):
        return True
    if kind in (list, tuple):
        return isinstance(value, list | tuple)
    if isinstance(value, bool) or kind not in (int, float):
        known = kind in (bool, str, types.NoneType)
        return isinstance(value, kind) if known else isinstance(value, Mapping)
    if isinstance(value, int):
        return abs(value) < 2**63
    return kind is float and isinstance(value, float) and math.isfinite(value)


def _shown(value: object) -> str:
    r"""A value in an error, which may be as long as a file."""
    if isinstance(value, list | tuple | Mapping):
        return f"a {type(value).__name__} of {len(value):,}"
    digits = isinstance(value, int) and abs(value) >= 2**63  # which may be too many to print
    text = "a whole number beyond 2**63" if digits else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
