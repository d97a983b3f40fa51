r"""Verdicts: what a result was held against, whether it held, and why in words."""

from __future__ import annotations

import math
from typing import Any

from limbeck.errors import ArgumentError

__all__ = ["required", "verdict"]


def verdict(name: str, held: bool, words: str) -> dict[str, Any]:
    r"""A verdict as results keep it.

    >>> verdict("draws", True, "the chains agree")
    {'name': 'draws', 'held': True, 'words': 'the chains agree'}
    """
    return {"name": name, "held": bool(held), "words": words}


def required(
    name: str,
    value: float | None,
    bound: float,
    *,
    most: bool = False,
    title: str | None = None,
    reason: str = "it could not be computed",
) -> dict[str, Any]:
    r"""The verdict on a figure that must be at least, or at most, so much.

    A figure that could not be computed is unchecked, which is not met.

    Arguments:
        name: The figure's name.
        value: What it came to; None or not finite where it could not be computed.
        bound: What was required.
        most: Whether the bound is the most that it may be.
        title: What the figure is called in words.
        reason: Why there is no value, for the case that there is none.

    >>> required("agreement", 0.97, 0.98)["words"]
    'agreement is 0.97, below the 0.98 that was required'
    """
    if not math.isfinite(bound):
        raise ArgumentError(name, bound, "a finite number to compare with")
    title = name.replace("_", " ") if title is None else title
    if value is None or not math.isfinite(value):
        return verdict(name, False, f"{title} is unchecked: {reason}; {bound:g} was required")
    held = value <= bound if most else value >= bound
    shown = f"{value:.4g}"
    if float(shown) == bound != value:  # rounding must not hide a failure
        shown = repr(float(value))
    side = ("at most" if most else "at least") if held else ("above" if most else "below")
    rest = f"{bound:g} as required" if held else f"the {bound:g} that was required"
    return verdict(name, held, f"{title} is {shown}, {side} {rest}")
