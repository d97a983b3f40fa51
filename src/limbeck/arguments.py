r"""Numbers that an argument must be: checked once, with an error that names it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import SupportsIndex

import numpy as np
from torch import Tensor

from limbeck.errors import ArgumentError

__all__ = ["number", "whole", "whole_number"]


def number(argument: str, value: object, expected: str, holds: Callable[[float], bool]) -> float:
    r"""A finite number for which a condition holds.

    >>> number("swap", 0.5, "a probability", lambda p: 0 <= p <= 1)
    0.5
    """
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError(argument, repr(value), expected) from None
    if isinstance(value, str) or not math.isfinite(result) or not holds(result):
        raise ArgumentError(argument, repr(value), expected)
    return result


def whole_number(argument: str, value: object, expected: str, least: int | None = None) -> int:
    r"""An integer of any integer type (not bool), or what a 0-d array or tensor holds exactly.

    Nothing is rounded. Use what is given back: the value may be an array.

    >>> import torch
    >>> whole_number("steps", torch.tensor(3), "a whole number from 1", least=1)
    3
    """
    held = value
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 0:
        held = value.item()
        held = int(held) if isinstance(held, float) and held.is_integer() else held
    # a tensor of one element and NumPy's bool have an __index__ too
    if isinstance(held, bool | np.bool_ | np.ndarray | Tensor) or not isinstance(
        held, SupportsIndex
    ):
        raise ArgumentError(argument, repr(value), expected)
    result = operator.index(held)
    if least is not None and result < least:
        raise ArgumentError(argument, repr(value), expected)
    return result


def whole(argument: str, value: object) -> int:
    r"""A whole number from 1."""
    return whole_number(argument, value, "a whole number from 1", least=1)
