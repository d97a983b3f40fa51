r"""Arrays, tensors and nests of them: a batch of inputs, its parts, and joining batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.distributions import Distribution

from limbeck.errors import ArgumentError, shown

Tree = TypeVar("Tree")
Default = TypeVar("Default")
Array: TypeAlias = np.ndarray[Any, Any] | Tensor
X: TypeAlias = Tensor | dict[str, Tensor]  # inputs (n, ...), or a dict of such (a table)


class Batch(NamedTuple):
    r"""Inputs x (n, ...), or a dict of such, with optional labels, weights and row numbers.

    y (n, ...) are labels; weight (n,) are importance weights, which multiply losses; index (n,) are
    the rows of the data set that x came from, by which stored targets are found.
    """

    x: X
    y: Tensor | None = None
    weight: Tensor | None = None
    index: Tensor | None = None  # type: ignore[assignment]  # tuple.index is not missed here


def as_batch(value: object) -> Batch:
    r"""A batch of what an input source gave: a Batch, or bare x."""
    if isinstance(value, Batch):
        return value
    parts = value.values() if isinstance(value, dict) and value else (value,)
    if all(isinstance(part, Tensor) for part in parts):
        return Batch(value)  # type: ignore[arg-type]
    received = f"a draw of type {type(value).__name__}"
    raise ArgumentError("inputs", received, "a Batch, a tensor or a dict of tensors")


def rows(x: X) -> int:
    r"""The number of examples in x."""
    return (x if isinstance(x, Tensor) else next(iter(x.values()))).shape[0]


def as_dict(x: X) -> dict[str, Tensor]:
    r"""The parts of x by name; a bare tensor has the name ''."""
    return {"": x} if isinstance(x, Tensor) else x


def floats(x: X) -> dict[str, Tensor]:
    r"""The parts of x that can be differentiated, by name."""
    return {name: part for name, part in as_dict(x).items() if part.is_floating_point()}


def float_tensor(model: object, default: Default) -> Tensor | Default:
    r"""The first floating-point tensor of a module or torch distribution: its device and type."""
    if isinstance(model, Tensor):
        return model if model.is_floating_point() else default
    parts: Iterable[object] = vars(model).values() if isinstance(model, Distribution) else ()
    if isinstance(model, nn.Module):
        parts = chain(model.parameters(), model.buffers())
    tensors = (float_tensor(part, None) for part in parts)
    return next((tensor for tensor in tensors if tensor is not None), default)


def safe_scale(scale: Tensor) -> Tensor:
    r"""What targets are divided by: the scale, or 1 where they are constant."""
    return torch.where(scale > 0, scale, 1.0)


def input_dtype(module: nn.Module) -> torch.dtype | None:
    r"""The floating type of a module's inputs: its `input_dtype`, or that of its parameters."""
    floating = (p.dtype for p in module.parameters() if p.is_floating_point())
    return getattr(module, "input_dtype", None) or next(floating, None)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    r"""Apply a function to every tensor of nested dicts, tuples and lists; keep everything else."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):  # torch 2.9 traces no tuple | list
        return type(tree)(map_tensors(function, value) for value in tree)
    return tree


def part_of(tree: Tree, start: int, size: int) -> Tree:
    r"""The examples from `start` on, at most `size` of them, of every tensor."""
    return map_tensors(lambda tensor: tensor[start : start + size], tree)


def leaves(tree: object) -> list[Tensor]:
    r"""The tensors of nested dicts, tuples and lists, in a fixed order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return []


ACCEPTED = "an array of integers, booleans or finite floating-point numbers with one row or more"
KINDS = "biuf"  # NumPy's codes of bool, signed, unsigned, floating


class Part(NamedTuple):
    r"""One array of the user's data."""

    values: Tensor  # (N, ...)
    typed: bool  # whether it was passed as a tensor, whose floating type is the user's choice


def label(argument: str, name: str) -> str:
    r"""One part of an argument in errors; the name '' stands for a bare tensor."""
    return f"{argument}[{name!r}]" if name else argument


def as_parts(value: object, argument: str) -> dict[str, Part]:
    r"""All parts of x by name, with equal numbers of rows; a bare tensor has the name ''."""
    if not isinstance(value, dict):
        return {"": as_part(value, argument)}
    if not value or not all(isinstance(name, str) and name for name in value):
        keys = f"a dict with the keys {list(value)!r}" if value else "an empty dict"
        raise ArgumentError(argument, keys, "a dict of arrays, with names for keys")
    parts = {name: as_part(array, label(argument, name)) for name, array in value.items()}
    first, count = next((name, len(part.values)) for name, part in parts.items())
    for name, part in parts.items():
        check_rows(part.values, count, label(argument, name), label(argument, first))
    return parts


def as_part(value: Any, argument: str) -> Part:
    r"""A checked tensor of one array: a tensor, NumPy array, list, numeric data frame."""
    if isinstance(value, list | tuple) and value and all(isinstance(v, Tensor) for v in value):
        if len({v.shape for v in value}) > 1:
            raise ArgumentError(argument, "tensors of different shapes", ACCEPTED)
        value = torch.stack(list(value))
    if hasattr(value, "to_numpy") and hasattr(value, "columns"):
        value = _from_table(value, argument)
    array, typed = as_array(value, argument), isinstance(value, Tensor)
    values = array if isinstance(array, Tensor) else as_tensor(array).contiguous()
    if values.ndim == 0 or values.numel() == 0:
        received = f"no data (shape {tuple(values.shape)})" if values.ndim else "a single number"
        raise ArgumentError(argument, received, ACCEPTED)
    if values.is_floating_point() and not bool((finite := torch.isfinite(values)).all()):
        bad = ~finite.reshape(len(values), -1)
        first = int(bad.any(1).nonzero()[0])
        received = f"{int(bad.sum())} NaN or infinite values, the first in row {first}"
        raise ArgumentError(argument, received, "finite numbers: drop or fill in the others")
    return Part(values, typed)


def as_numbers(value: Any, argument: str) -> Tensor:
    r"""Finite numbers of any shape: one, or an array of them."""
    single = not isinstance(value, list | tuple | dict) and getattr(value, "ndim", 0) == 0
    single = single and not hasattr(value, "toarray")
    return as_part([value], argument).values[0] if single else as_part(value, argument).values


def to_numpy(value: object) -> Any:
    r"""A tensor as an array, bfloat16 as float32, since NumPy lacks it; other values unchanged."""
    if not isinstance(value, Tensor):
        return value
    try:
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    except (NotImplementedError, TypeError) as error:  # it has no data, or a sparse layout
        raise ArgumentError("X", f"a tensor that is no array ({error})", "a dense one") from error


def as_plain_array(value: Any, argument: str) -> np.ndarray[Any, Any]:
    r"""An array of values of any kind, such as labels."""
    try:
        array = np.asarray(to_numpy(value))
    except Exception:  # of whatever the value is
        raise ArgumentError(argument, shown(value), "an array") from None
    if array.ndim == 0:
        raise ArgumentError(argument, shown(value), "an array")
    return array


def as_weights(value: Any, n: int, argument: str = "sample_weight") -> np.ndarray[Any, Any] | None:
    r"""Weights (n,) of rows, divided by their mean; None for None."""
    if value is None:
        return None
    expected = f"{n} finite numbers from 0, one for each row and not all of them 0"
    array = as_plain_array(value, argument)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.shape != (n,) or array.dtype.kind not in "biufO":
        raise ArgumentError(argument, f"shape {array.shape} of {array.dtype}", expected)
    try:
        weights = array.astype(np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(argument, shown(value), expected) from None
    if len(bad := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
        raise ArgumentError(argument, f"{weights[bad[0]]:g} in row {bad[0]}", expected)
    if not weights.any():
        raise ArgumentError(argument, "zeros alone", expected)
    weights = weights / weights.max()  # so that the sum is finite
    return np.asarray(weights / weights.mean())


def cast(part: Part, device: torch.device, dtype: torch.dtype | None, argument: str) -> Tensor:
    r"""The part on the device; floating arrays become `dtype`, floating tensors must be it."""
    values = part.values
    if dtype is None or not values.is_floating_point() or values.dtype == dtype:
        return values.to(device)
    if part.typed:
        expected = f"{dtype}, the student's floating type: convert one of them with .to()"
        raise ArgumentError(argument, f"a tensor of {values.dtype}", expected)
    result = values.to(dtype)
    if not bool(torch.isfinite(result).all()):
        received = f"values of up to {float(values.abs().max()):g}"
        raise ArgumentError(argument, received, f"values within the range of {dtype}")
    return result.to(device)


def check_rows(values: Tensor, rows: int, argument: str, of: str) -> None:
    r"""Refuse a tensor that does not have as many rows as something else."""
    if len(values) != rows:
        raise ArgumentError(argument, f"{len(values)} rows", f"as many rows as {of}: {rows}")


def per_row(values: object, n: int, argument: str) -> Tensor:
    r"""Real numbers (n,) that a user's function has returned, one for each row."""
    if isinstance(values, Tensor) and values.shape == (n,) and not values.is_complex():
        return values
    received = f"a {type(values).__name__} of shape {tuple(getattr(values, 'shape', ()))}"
    received += f", {values.dtype}" if isinstance(values, Tensor) else ""
    raise ArgumentError(argument, received, f"a tensor of shape ({n},), a real number for each")


def as_array(value: Any, argument: str) -> Array:
    r"""The numbers of a dense array, not copied: of a tensor, or of whatever NumPy can read."""
    if isinstance(value, Tensor):
        if value.is_meta:
            raise ArgumentError(argument, "a tensor on the device 'meta', without data", ACCEPTED)
        if value.layout != torch.strided:
            raise ArgumentError(argument, f"a tensor of layout {value.layout}", "a dense tensor")
        if value.is_complex():
            raise ArgumentError(argument, f"complex numbers ({value.dtype})", ACCEPTED)
        return value.detach()
    if hasattr(value, "toarray"):
        received = f"a sparse {type(value).__name__}"
        raise ArgumentError(argument, received, "a dense array: call .toarray()")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentError(argument, "an array with masked values", ACCEPTED)
    try:
        array = np.asarray(value)
    except Exception as reason:  # of whatever the value is
        received = f"a {type(value).__name__} that is no array ({reason})"
        raise ArgumentError(argument, received, ACCEPTED) from None
    if array.dtype.kind == "c":
        raise ArgumentError(argument, f"complex numbers ({array.dtype})", ACCEPTED)
    if array.dtype.kind not in KINDS:
        received = "strings" if array.dtype.kind in "SU" else f"values of dtype {array.dtype}"
        received = received if array.ndim else f"a {type(value).__name__}"
        raise ArgumentError(argument, received, f"{ACCEPTED}; encode categories as integers")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ArgumentError(argument, "integers above 2**63 - 1", "integers that int64 holds")
    return array


def as_tensor(array: Array) -> Tensor:
    r"""The same numbers as a tensor, in the same memory where torch can use it.

    Torch has no long doubles and no wide unsigned integers, and needs memory that is writable,
    aligned, in the machine's byte order and with strides that go forward.
    """
    if isinstance(array, Tensor):
        return array
    narrow = {"u2": np.int32, "u4": np.int64, "u8": np.int64, "f12": np.float64, "f16": np.float64}
    dtype = narrow.get(array.dtype.str[1:], array.dtype.newbyteorder("="))
    usable = np.require(array, dtype, ["A", "W"])
    if any(stride < 0 or stride % usable.itemsize for stride in usable.strides):
        usable = usable.copy()
    return torch.from_numpy(usable)


def _from_table(table: Any, argument: str) -> np.ndarray[Any, Any]:
    array = np.asarray(table.to_numpy())
    if array.dtype.kind in KINDS:
        return array
    kinds = [getattr(dtype, "kind", "O") for dtype in getattr(table, "dtypes", [])]
    other = [name for name, kind in zip(table.columns, kinds, strict=False) if kind not in KINDS]
    if kinds and not other:  # numbers and booleans, or numbers with missing values
        return np.asarray(table.to_numpy(dtype=np.float64, na_value=np.nan))
    names = ", ".join(map(repr, other)) or "unknown"
    expected = "numeric columns only; a mixed table needs encoding first, as limbeck.Table does"
    raise ArgumentError(argument, f"a table with columns that are not numbers: {names}", expected)


def join(values: Sequence[X]) -> X:
    r"""The rows of all values, in order."""
    if len(values) == 1:
        return values[0]
    tables = [as_dict(value) for value in values]
    joined = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    return joined.get("", joined)


def check_alike(values: Sequence[X | None], names: Sequence[str], argument: str) -> None:
    r"""Refuse values whose parts, trailing shapes or types differ from those of the first."""
    kinds = [_kind(value) for value in values]
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            received = f"{names[0]} of {kinds[0]} and {name} of {kind}"
            raise ArgumentError(argument, received, "the same parts, shapes and types from all")


def _kind(value: X | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_kind(value[name])}" for name in sorted(value)) + "}"
    return f"({', '.join(map(str, ('n', *value.shape[1:])))}) {dtype_name(value)}"


@contextmanager
def tensor_float(allowed: bool = True) -> Iterator[None]:
    r"""Float32 matrix products with tensor cores (TF32), or without, within a `with` block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


full_precision = partial(tensor_float, False)


def random(
    draw: Callable[..., Tensor], shape: tuple[int, ...], like: Tensor, generator: Generator | None
) -> Tensor:
    r"""Random numbers by `torch.rand` or `torch.randn`, drawn on the generator's device."""
    source = like.device if generator is None else generator.device
    return draw(shape, generator=generator, device=source, dtype=like.dtype).to(like.device)


def floating(dtype: torch.dtype | None) -> torch.dtype:
    r"""float32 or float64; None is torch's default type."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError("dtype", dtype, "torch.float32 or torch.float64")
    return dtype


def dtype_name(tensor: Tensor) -> str:
    r"""The name of a tensor's type as specs have it, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    r"""The tensors whose names begin with a prefix, without that prefix."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
