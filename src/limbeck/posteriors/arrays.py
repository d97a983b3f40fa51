r"""The user's numbers where they are: checked by type, turned into tensors when they are taken."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from limbeck.errors import ArgumentError

__all__ = ["Array", "as_array", "as_tensor", "common_dtype", "is_whole", "part_name"]

Array: TypeAlias = np.ndarray[Any, Any] | Tensor
r"""Anything that is sliced and indexed alike; files may be behind NumPy's."""

ACCEPTED = "an array of real numbers"
FLOATS = {2: torch.float16, 4: torch.float32}


def part_name(name: str, argument: str = "posterior") -> str:
    r"""How an error names a variable; '' is a bare array."""
    return f"{argument}[{name!r}]" if name else argument


def as_array(value: Any, argument: str) -> Array:
    r"""The numbers of one variable, in the memory in which they are.

    Arguments:
        value: A tensor, a NumPy array, or whatever NumPy can look at (`__array__`: JAX, xarray).
        argument: What errors call it.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_complex():
            raise ArgumentError(argument, f"a {value.layout} tensor of {value.dtype}", ACCEPTED)
        return value.detach()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as reason:
        what = f"a {type(value).__name__} that is no array ({reason})"
        raise ArgumentError(argument, what, ACCEPTED) from None
    if np.ma.is_masked(value):
        raise ArgumentError(argument, "masked values", ACCEPTED)
    if array.dtype.kind not in "biuf":
        what = f"a {type(value).__name__}" if array.ndim == 0 else f"values of {array.dtype}"
        raise ArgumentError(argument, what, ACCEPTED)
    return array


def is_whole(array: Array) -> bool:
    r"""Whether these are integers or truth values."""
    if isinstance(array, Tensor):
        return not array.is_floating_point()
    return array.dtype.kind != "f"


def common_dtype(arrays: list[Array]) -> torch.dtype:
    r"""The floating type that holds them all; torch's default one if all are whole numbers."""
    found = None
    for array in arrays:
        if not is_whole(array):
            own = (
                array.dtype
                if isinstance(array, Tensor)
                else FLOATS.get(array.itemsize, torch.float64)
            )
            found = own if found is None else torch.promote_types(found, own)
    return found or torch.get_default_dtype()


def as_tensor(array: Array, dtype: torch.dtype, device: torch.device) -> Tensor:
    r"""The same numbers as a tensor, in the same memory where torch can use it."""
    if isinstance(array, Tensor):
        return array.to(device, dtype)
    # Torch has no long doubles and hardly any unsigned integers, and wants its memory writable,
    # aligned, in the machine's byte order and going forward.
    narrow = array.dtype.kind == "f" and array.itemsize <= 8
    kind = array.dtype.newbyteorder("=") if narrow else np.dtype(np.float64)
    usable = np.require(array, kind, ["A", "W"])
    if any(stride < 0 or stride % usable.itemsize for stride in usable.strides):
        usable = usable.copy()
    return torch.from_numpy(usable).to(device, dtype)
