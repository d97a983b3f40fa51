r"""Checks of numeric arguments, with errors that name the argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from typing import SupportsIndex

import numpy as np
from torch import Tensor

from limbeck.errors import ArgumentError


def number(argument: str, value: object, expected: str, holds: Callable[[float], bool]) -> float:
    r"""A finite number for which a condition holds."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        result = math.nan
    if isinstance(value, str) or not math.isfinite(result) or not holds(result):
        raise ArgumentError(argument, repr(value), expected)
    return result


def whole_number(argument: str, value: object, expected: str, least: int | None = None) -> int:
    r"""An integer of any integer type (not bool), or the exact one of a 0-d array or tensor."""
    item = value
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 0:
        item = value.item()
        item = int(item) if isinstance(item, float) and item.is_integer() else item
    not_whole = (bool, np.bool_, np.ndarray, Tensor)  # though some have an __index__
    if isinstance(item, not_whole) or not isinstance(item, SupportsIndex):
        raise ArgumentError(argument, repr(value), expected)
    result = operator.index(item)
    if least is not None and result < least:
        raise ArgumentError(argument, repr(value), expected)
    return result


def whole(argument: str, value: object) -> int:
    r"""A whole number from 1."""
    return whole_number(argument, value, "a whole number from 1", least=1)


def choice(argument: str, value: object, known: Collection[str]) -> None:
    r"""Refuse a value that is not one of the known names."""
    if value not in known:
        raise ArgumentError.unknown(argument, value, known)
