r"""JSON of files: within limits, as typed fields and dataclasses; errors name what is wrong."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NewType, TypeVar

from limbeck.errors import ArgumentError, CheckpointError

T = TypeVar("T")
AnyNumber = NewType("AnyNumber", float)  # which may be infinite or NaN, as losses may
MAX_BYTES = 2**28  # of a JSON file: a history of millions of evaluations
MAX_DEPTH = 16  # of lists and dicts inside each other; limbeck writes at most 8
WORDS = {
    bool: "true or false", int: "a whole number below 2**63", float: "a finite number",
    AnyNumber: "a number", str: "a string", types.NoneType: "null", list: "a list", tuple: "a list",
}  # fmt: skip


@contextmanager
def of_file(path: object) -> Iterator[None]:
    r"""Within, an error about a field is an error about a file that limbeck wrote."""
    try:
        yield
    except ArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_depth(value: T, where: str) -> T:
    r"""The same value, unless its lists and dicts are nested deeper than `MAX_DEPTH`."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        parts = [part for part in level if isinstance(part, list | tuple | Mapping)]
        values = (part.values() if isinstance(part, Mapping) else part for part in parts)
        if not (level := [inner for part in values for inner in part]):
            return value
    raise ArgumentError(where, "lists or dicts nested too deep", f"{MAX_DEPTH} levels")


_hints = functools.cache(typing.get_type_hints)  # it is slow


def read_record(kind: type[T], value: object, where: str) -> T:
    r"""A dataclass from the dict of its fields; those with a default may be left out."""
    hints, fields = _hints(kind), dataclasses.fields(kind)  # type: ignore[arg-type]
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


def read_value(value: Any, kind: Any, where: str) -> Any:
    r"""A value of a type, or an error about it.

    The type is bool, int, float, str, None, Any, a Literal, a union, a list, a tuple (which comes
    from a list), a NamedTuple of numbers, a dict by strings or integers, or a dataclass.
    """
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    union = parts if origin in (types.UnionType, typing.Union) else (kind,)
    kind = next((part for part in union if _matches(value, part)), None)
    if kind is None:
        known = (WORDS.get(typing.get_origin(part) or part) for part in union)
        literals = " or ".join(map(repr, parts)) if origin is typing.Literal else "a dict"
        raise ArgumentError(where, _shown(value), " or ".join(word or literals for word in known))
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return read_record(typing.cast(type, kind), value, where)
    if hasattr(origin, "_fields"):  # numbers, of which null is NaN
        kinds = types.GenericAlias(tuple, (AnyNumber | None,) * len(origin._fields))
        return origin(*(math.nan if v is None else v for v in read_value(value, kinds, where)))
    if origin is dict:
        read = {k: read_value(v, parts[1], f"{where}.{k}") for k, v in value.items()}
        return {int(k): v for k, v in read.items()} if parts[0] is int else read
    if origin in (list, tuple):
        if parts[:1] == (AnyNumber,) and all(type(item) is float for item in value):
            return value  # a long history
        each = parts[:1] * len(value) if origin is list or parts[-1] is ... else parts
        if len(each) != len(value):
            raise ArgumentError(where, f"{len(value)} values", f"{len(each)} values")
        pairs = enumerate(zip(value, each, strict=True))
        return origin(read_value(v, part, f"{where}[{k}]") for k, (v, part) in pairs)
    return float(value) if kind is float else value


def _matches(value: Any, kind: Any) -> bool:
    r"""Whether a value is of a type, whatever is inside it."""
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if origin in (list, tuple) or hasattr(origin, "_fields"):
        return isinstance(value, list | tuple)
    if origin is dict or dataclasses.is_dataclass(kind):
        return isinstance(value, Mapping)
    if kind in (int, float) and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    if kind is AnyNumber:
        return type(value) in (int, float)
    finite = not isinstance(value, float) or math.isfinite(value)
    return kind is Any or (isinstance(value, kind) and finite)


def _shown(value: object) -> str:
    r"""A value in an error, which may be as long as a file."""
    if isinstance(value, list | tuple | Mapping):
        return f"a {type(value).__name__} of {len(value):,}"
    digits = isinstance(value, int) and abs(value) >= 2**63  # which may be too many to print
    return "a whole number beyond 2**63" if digits else f"{value!r:.60}"


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
