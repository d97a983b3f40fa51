r"""Tables of figures in Markdown, for `page.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["heading", "lines", "short"]


def heading(machine: dict[str, Any]) -> str:
    r"""The machine on which figures were measured."""
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    return f"### {machine['device']}, {threads}, torch {machine['torch']}"


def short(value: float) -> str:
    r"""A number with three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lines(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    r"""A Markdown table."""
    first, *rest = [f"| {' | '.join(each)} |" for each in (heads, *rows)]
    return [first, "|" + "---|" * len(heads), *rest]
