r"""Which variables of a draw a function does not look at: often deterministics of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["unread", "unread_notes"]

SHOWN = 5
r"""Names that a note lists."""


class Watched(dict[str, Any]):
    r"""A dict that remembers which of its values were looked at.

    Attributes:
        read: Their names; all of them, once it has been gone through as a whole.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()


def unread(function: Callable[..., Any], draw: Any, *rest: Any) -> tuple[str, ...]:
    r"""The names of variables that a function of a draw does not look at.

    >>> unread(lambda draw, x: draw["beta"] * x, {"beta": 1.0, "mu": 2.0}, 3.0)
    ('mu',)
    """
    if not isinstance(draw, dict):
        return ()
    watched = Watched(draw)
    try:
        function(watched, *rest)
    except Exception:  # of a function that takes nothing but a plain dict
        return ()
    return tuple(name for name in draw if name not in watched.read) if watched.read else ()


def unread_notes(names: tuple[str, ...]) -> list[str]:
    r"""What to tell of variables that are not looked at."""
    if not names:
        return []
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    left_out = ", ".join(repr(f"~{name}") for name in names[:SHOWN])
    return [f"predict does not use {listed}: var_names=[{left_out}] leaves out what is not needed"]
