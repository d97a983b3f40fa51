r"""The user's arrays as tensors: checked once, and never converted behind the user's back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.core.batch import X
from limbeck.errors import ArgumentError

__all__ = ["Part", "as_part", "as_parts", "cast", "cast_parts", "check_rows", "label"]

ACCEPTED = "an array of integers, booleans or finite floating-point numbers with one row or more"
KINDS = "biuf"  # NumPy's codes of bool, signed, unsigned, floating


class Part(NamedTuple):
    r"""One array of the user's data.

    Attributes:
        values: The array (N, ...).
        typed: Whether it came as a tensor, whose floating type is the user's own choice.
    """

    values: Tensor
    typed: bool


def label(argument: str, name: str) -> str:
    r"""How an error names one part of an argument; the name '' stands for a bare tensor."""
    return f"{argument}[{name!r}]" if name else argument


def as_parts(value: Any, argument: str) -> dict[str, Part]:
    r"""All parts of x by name, with equal numbers of rows; a bare tensor has the name ''."""
    if not isinstance(value, dict):
        return {"": as_part(value, argument)}
    if not value or not all(isinstance(name, str) and name for name in value):
        keys = "an empty dict" if not value else f"a dict with the keys {list(value)!r}"
        raise ArgumentError(argument, keys, "a dict of arrays, with names for keys")
    parts = {name: as_part(array, label(argument, name)) for name, array in value.items()}
    first = next(iter(parts))
    rows = len(parts[first].values)
    for name, part in parts.items():
        check_rows(part.values, rows, label(argument, name), label(argument, first))
    return parts


def as_part(value: Any, argument: str) -> Part:
    r"""A checked tensor of one array: a tensor, NumPy array, list, numeric data frame."""
    if isinstance(value, list | tuple) and value and all(isinstance(v, Tensor) for v in value):
        if len({v.shape for v in value}) > 1:
            raise ArgumentError(argument, "tensors of different shapes", ACCEPTED)
        value = torch.stack(list(value))
    if isinstance(value, Tensor):
        part = Part(value.detach(), typed=True)
    else:
        part = Part(_from_array(value, argument), typed=False)
    _check(part.values, argument)
    return part


def cast_parts(
    parts: dict[str, Part], device: torch.device, dtype: torch.dtype | None, argument: str
) -> X:
    r"""Inputs on the device in the student's floating type: a tensor, or a dict if it was one."""
    tensors = {n: cast(part, device, dtype, label(argument, n)) for n, part in parts.items()}
    return tensors.get("", tensors)


def cast(part: Part, device: torch.device, dtype: torch.dtype | None, argument: str) -> Tensor:
    r"""The part on the device; floating arrays become `dtype`, floating tensors must be it."""
    values = part.values
    if dtype is None or not values.is_floating_point() or values.dtype == dtype:
        return values.to(device)
    if part.typed:
        raise ArgumentError(
            argument,
            f"a tensor of {values.dtype}",
            f"{dtype}, the student's floating type: convert the tensor or the student with .to()",
        )
    result = values.to(dtype)
    if not bool(torch.isfinite(result).all()):
        largest = float(values.abs().max())
        raise ArgumentError(
            argument, f"values of up to {largest:g}", f"values within the range of {dtype}"
        )
    return result.to(device)


def check_rows(values: Tensor, rows: int, argument: str, of: str) -> None:
    r"""Refuse a tensor that has not as many rows as something else."""
    if values.ndim == 0 or len(values) != rows:
        received = f"{len(values)} rows" if values.ndim else "a single number"
        raise ArgumentError(argument, received, f"as many rows as {of}: {rows}")


def _check(values: Tensor, argument: str) -> None:
    if values.layout != torch.strided:
        raise ArgumentError(argument, f"a tensor of layout {values.layout}", "a dense tensor")
    if values.is_complex():
        raise ArgumentError(argument, f"complex numbers ({values.dtype})", ACCEPTED)
    if values.ndim == 0:
        raise ArgumentError(argument, "a single number", ACCEPTED)
    if values.numel() == 0:
        raise ArgumentError(argument, f"no data (shape {tuple(values.shape)})", ACCEPTED)
    if values.is_floating_point() and not bool((finite := torch.isfinite(values)).all()):
        bad = ~finite.reshape(len(values), -1)
        first = int(bad.any(1).nonzero()[0])
        raise ArgumentError(
            argument,
            f"{int(bad.sum())} NaN or infinite values, the first in row {first}",
            "finite numbers: drop or fill in the others",
        )


def _from_array(value: Any, argument: str) -> Tensor:
    if hasattr(value, "toarray"):
        raise ArgumentError(
            argument, f"a sparse {type(value).__name__}", "a dense array: call .toarray()"
        )
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentError(argument, "an array with masked values", ACCEPTED)
    if hasattr(value, "to_numpy") and hasattr(value, "columns"):
        array = _from_table(value, argument)
    else:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as reason:
            received = f"a {type(value).__name__} that is no array ({reason})"
            raise ArgumentError(argument, received, ACCEPTED) from None
    if array.dtype.kind == "c":
        raise ArgumentError(argument, f"complex numbers ({array.dtype})", ACCEPTED)
    if array.dtype.kind not in KINDS:
        what = "strings" if array.dtype.kind in "SU" else f"values of dtype {array.dtype}"
        received = what if array.ndim else f"a {type(value).__name__}"
        raise ArgumentError(argument, received, f"{ACCEPTED}; encode categories as integers")
    # Torch can neither take foreign byte orders, negative strides and long doubles, nor warn-free
    # read-only memory, and computes little with wide unsigned integers.
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ArgumentError(argument, "integers above 2**63 - 1", "integers that int64 holds")
    narrow = {"u2": np.int32, "u4": np.int64, "u8": np.int64, "f12": np.float64, "f16": np.float64}
    dtype = narrow.get(array.dtype.str[1:], array.dtype.newbyteorder("="))
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _from_table(table: Any, argument: str) -> np.ndarray[Any, Any]:
    array = np.asarray(table.to_numpy())
    if array.dtype.kind in KINDS:
        return array
    kinds = [getattr(dtype, "kind", "O") for dtype in getattr(table, "dtypes", [])]
    other = [name for name, kind in zip(table.columns, kinds, strict=False) if kind not in KINDS]
    if kinds and not other:  # numbers and booleans, or numbers with missing values
        return np.asarray(table.to_numpy(dtype=np.float64, na_value=np.nan))
    raise ArgumentError(
        argument,
        f"a table with columns that are not numbers: {', '.join(map(repr, other)) or 'unknown'}",
        "numeric columns only; a mixed table needs encoding first, as limbeck.Table does",
    )
