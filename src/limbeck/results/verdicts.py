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
    name: str, value: float | None, bound: float, *, most: bool = False, title: str | None = None
) -> dict[str, Any]:
    r"""The verdict on a figure that must be at least, or at most, so much.

    What is not known has not been met.

    Arguments:
        name: The figure's name.
        value: What it came to; None or NaN where that is not known.
        bound: What was required.
        most: Whether the bound is the most that it may be.
        title: What the figure is called in words.

    >>> required("agreement", 0.97, 0.98)["words"]
    'agreement is 0.97, below the 0.98 that was required'
    """
    if not math.isfinite(bound):
        raise ArgumentError(name, bound, "a finite number to compare with")
    title = name.replace("_", " ") if title is None else title
    if value is None or math.isnan(value):
        return verdict(name, False, f"{title} is not known; {bound:g} was required")
    held = value <= bound if most else value >= bound
    shown = f"{value:.4g}"
    if float(shown) == bound != value:  # rounding must not hide a failure
        shown = repr(float(value))
    side = ("at most" if most else "at least") if held else ("above" if most else "below")
    rest = f"{bound:g} as required" if held else f"the {bound:g} that was required"
    return verdict(name, held, f"{title} is {shown}, {side} {rest}")
