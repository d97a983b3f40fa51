r"""Inputs one after another, where they are of one kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limbeck.core.batch import X
from limbeck.errors import ArgumentError

__all__ = ["check_alike", "join"]


def join(values: Sequence[X]) -> X:
    r"""The rows of all values, in order.

    >>> join([torch.zeros(2, 3), torch.ones(1, 3)]).shape
    torch.Size([3, 3])
    """
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat([value for value in values if isinstance(value, Tensor)])
    tables = [value for value in values if isinstance(value, dict)]
    return {name: torch.cat([table[name] for table in tables]) for name in first}


def check_alike(values: Sequence[X | None], names: Sequence[str], argument: str) -> None:
    r"""Refuse values whose parts, trailing shapes or types differ from those of the first."""
    kinds = [_kind(value) for value in values]
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            raise ArgumentError(
                argument,
                f"{names[0]} of {kinds[0]} and {name} of {kind}",
                "sources that give the same parts, shapes and types",
            )


def _kind(value: X | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_kind(value[name])}" for name in sorted(value)) + "}"
    sizes = ", ".join(map(str, ("n", *value.shape[1:])))
    return f"({sizes}) {str(value.dtype).removeprefix('torch.')}"
