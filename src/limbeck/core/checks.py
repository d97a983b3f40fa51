r"""Numbers that an argument must be: checked once, with an error that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import SupportsIndex

from limbeck.errors import ArgumentError

__all__ = ["number", "whole_number"]


def number(argument: str, value: object, accepted: str, holds: Callable[[float], bool]) -> float:
    r"""A finite number for which a condition holds.

    >>> number("swap", 0.5, "a probability", lambda p: 0 <= p <= 1)
    0.5
    """
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError(argument, repr(value), accepted) from None
    if isinstance(value, str) or not math.isfinite(result) or not holds(result):
        raise ArgumentError(argument, repr(value), accepted)
    return result


def whole_number(argument: str, value: object, accepted: str, least: int) -> int:
    r"""An integer (of any integer type, not bool) that is not below the least one."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or int(value) < least:
        raise ArgumentError(argument, repr(value), accepted)
    return int(value)
