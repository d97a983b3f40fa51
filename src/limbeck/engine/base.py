r"""What an engine is: it runs one step of an update on a plan."""

from __future__ import annotations

from typing import Protocol

from limbeck.core.objective import Plan

__all__ = ["Engine"]


class Engine(Protocol):
    r"""Runs steps.

    Attributes:
        name: "eager" or "compiled", as in results and checkpoints.
    """

    name: str

    def step(self, plan: Plan) -> None:
        r"""Run one step; its effects are in the student and in the update's progress."""
