r"""What an engine is: it runs one step of an update on a plan."""

from __future__ import annotations

from typing import Any, Protocol

from limbeck.core.objective import Plan

__all__ = ["Engine"]


class Engine(Protocol):
    r"""Runs steps.

    Attributes:
        name: "eager", "compiled" or "accelerate", as in results.
        processes: The number of processes that take each step together.
        compile_seconds: Wall-clock seconds of compilation, over all sittings.
    """

    @property
    def name(self) -> str: ...

    @property
    def processes(self) -> int: ...

    @property
    def compile_seconds(self) -> float: ...

    def step(self, plan: Plan) -> None:
        r"""Run one step; its effects are in the student and in the update's progress."""

    def state(self) -> dict[str, Any]:
        r"""What a checkpoint holds, so that a resumed run takes its steps in the same way."""

    def load(self, state: dict[str, Any]) -> None:
        r"""Go on from what `state` gave; an empty dict is the state of a checkpoint without one."""
