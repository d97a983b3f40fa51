r"""The plain engine: a step is Python that calls torch."""

from __future__ import annotations

from typing import Any

from limbeck.core.objective import Plan
from limbeck.core.update import Update

__all__ = ["Eager"]


class Eager:
    r"""Runs each step as it is written."""

    name = "eager"
    processes = 1

    def __init__(self, update: Update) -> None:
        self.update = update
        self.compile_seconds = 0.0

    def step(self, plan: Plan) -> None:
        self.update.step(plan, False)

    def state(self) -> dict[str, Any]:
        return {"engine": self.name, "compile_seconds": self.compile_seconds}

    def load(self, state: dict[str, Any]) -> None:
        self.compile_seconds = state.get("compile_seconds", 0.0)
