r"""When to stop before the last step: on a plateau of a held-out measure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from limbeck.core.checks import whole_number

__all__ = ["Plateau"]


@dataclass
class Plateau:
    r"""Watches a measure that should fall.

    Arguments:
        patience: How many looks in a row may pass without a new best.
        improvement: By which fraction of its size the best must be beaten to count.
    """

    patience: int
    improvement: float = 1e-3
    best: float = field(default=math.inf, init=False)
    since: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        accepted = "a whole number from 1, or None"
        self.patience = whole_number("patience", self.patience, accepted, least=1)

    def look(self, measure: float) -> bool:
        r"""Take a new measure; say whether it is a new best."""
        margin = self.improvement * abs(self.best) if math.isfinite(self.best) else 0.0
        if measure < self.best - margin:
            self.best, self.since = measure, 0
            return True
        self.since += 1
        return False

    @property
    def reached(self) -> bool:
        return self.since >= self.patience
