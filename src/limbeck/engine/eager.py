r"""The plain engine: a step is Python that calls torch."""

from __future__ import annotations

from limbeck.core.objective import Plan
from limbeck.core.update import Update

__all__ = ["Eager"]


class Eager:
    r"""Runs each step as it is written."""

    name = "eager"

    def __init__(self, update: Update) -> None:
        self.update = update

    def step(self, plan: Plan) -> None:
        self.update.step(plan, False)
