r"""What a run wrote down: lists of equal length, one entry for each look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["History"]


class History(Mapping[str, list[float]]):
    r"""Columns by name: "step", "loss", "gradient_norm", and what else a run has.

    That is each of several loss terms, "held_out" inputs, and the user's metrics.
    Losses are means over the steps since the look before.
    """

    def __init__(self, columns: Mapping[str, list[float]] | None = None) -> None:
        self._columns = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, **entry: float) -> None:
        r"""Write one look down."""
        for name, value in entry.items():
            self._columns.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> list[float]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        looks = len(next(iter(self._columns.values()), []))
        return f"History({looks} looks at {', '.join(self._columns)})"
