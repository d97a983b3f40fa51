r"""Quantiles of distributions that are known by their tails alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from limbeck.core.checks import number

__all__ = ["bisected", "end_of", "tail_of"]

HALVINGS = 100
r"""Enough for any bracket: what is left of it is far below the digits of a float64 number."""


def tail_of(level: float) -> float:
    r"""The probability on either side of a central interval.

    >>> tail_of(0.5)
    0.25
    """
    return (1 - number("level", level, "a number between 0 and 1", lambda p: 0 < p < 1)) / 2


@torch.no_grad()
def bisected(
    holds: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, whole: bool = False
) -> Tensor:
    r"""The smallest numbers between low and high from which on a condition holds.

    Arguments:
        holds: Whether it holds at each of the numbers; once it does, it does from there on.
        low: Numbers at which it does not hold yet.
        high: Numbers at which it holds.
        whole: Whether to look at whole numbers only.

    >>> bisected(lambda x: x**2 >= 2, torch.tensor(0.0), torch.tensor(2.0))
    tensor(1.4142)
    """
    low, high = torch.broadcast_tensors(low, high)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        middle = middle.floor() if whole else middle
        between = (middle > low) & (middle < high)
        if not bool(between.any()):
            break
        found = holds(middle)
        low = torch.where(between & ~found, middle, low)
        high = torch.where(between & found, middle, high)
    return high


def end_of(
    tail: Callable[[Tensor, bool], Tensor],
    mass: float,
    upper: bool,
    low: Tensor,
    high: Tensor,
    whole: bool = False,
) -> Tensor:
    r"""An end of a central interval, by bisection.

    Arguments:
        tail: P(Y ≤ y), or P(Y > y) if its second argument is true.
        mass: The probability beyond the end.
        upper: Whether it is the upper end.
        low: Numbers below the end.
        high: Numbers that are not.
        whole: Whether Y is a whole number.
    """

    def passed(y: Tensor) -> Tensor:
        found = tail(y, upper)
        return found <= mass if upper else found >= mass

    return bisected(passed, low, high, whole)
