r"""The verdict on a result: trustworthy, doubtful or unchecked, with reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    r"""Whether a result can be trusted.

    Attributes:
        doubts: The checks that failed, as text.
        unchecked: The checks that did not run, as text; they do not count as passed.
        assumption: What no check can detect, as text, such as modes that nothing reached.
    """

    doubts: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    assumption: str = ""

    @property
    def state(self) -> str:
        r"""One of "trustworthy", "doubtful" (a check failed), "unchecked" (one did not run)."""
        return "doubtful" if self.doubts else "unchecked" if self.unchecked else "trustworthy"

    @property
    def reasons(self) -> tuple[str, ...]:
        r"""Why it is not trustworthy, as text: first doubts, then what was not checked."""
        return self.doubts + self.unchecked

    @property
    def trustworthy(self) -> bool:
        return self.state == "trustworthy"

    def __bool__(self) -> bool:
        return self.trustworthy

    def __str__(self) -> str:
        return f"{self.state}: {'; '.join(self.reasons)}" if self.reasons else self.state
