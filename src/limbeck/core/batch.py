r"""What travels through the loop: inputs, with labels, weights and row numbers beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from limbeck.errors import ArgumentError

__all__ = [
    "Batch",
    "X",
    "as_batch",
    "floats",
    "input_dtype",
    "leaves",
    "map_tensors",
    "part_of",
    "rows",
]

X: TypeAlias = Tensor | dict[str, Tensor]
r"""Inputs: a tensor (n, ...), or a dict of such tensors (a table, a structured input)."""


class Batch(NamedTuple):
    r"""A batch of inputs and what belongs to each of them.

    Attributes:
        x: Inputs, a tensor (n, ...) or a dict of tensors (n, ...).
        y: Labels (n, ...), if the user has any.
        weight: Importance weights (n,); the objective is the mean of weight times loss.
        index: Rows (n,) of the data set that x came from, by which stored targets are found.
    """

    x: X
    y: Tensor | None = None
    weight: Tensor | None = None
    index: Tensor | None = None  # type: ignore[assignment]  # tuple.index is not missed here


def as_batch(value: Any) -> Batch:
    r"""A batch of what an input source gave: a Batch, or bare x."""
    if isinstance(value, Batch):
        return value
    if isinstance(value, Tensor) or (
        isinstance(value, dict) and value and all(isinstance(v, Tensor) for v in value.values())
    ):
        return Batch(value)
    received = f"a draw of type {type(value).__name__}"
    raise ArgumentError("inputs", received, "a Batch, a tensor or a dict of tensors")


def rows(x: X) -> int:
    r"""The number of examples in x.

    >>> import torch
    >>> rows({"age": torch.zeros(3), "pixels": torch.zeros(3, 8, 8)})
    3
    """
    first = x if isinstance(x, Tensor) else next(iter(x.values()))
    return first.shape[0]


def floats(x: X) -> dict[str, Tensor]:
    r"""The parts of x that can be differentiated, by name ('' for a bare tensor)."""
    parts = {"": x} if isinstance(x, Tensor) else x
    return {name: part for name, part in parts.items() if part.is_floating_point()}


def input_dtype(module: nn.Module) -> torch.dtype | None:
    r"""The floating type that a module takes inputs in; None where it does not tell.

    It is that of its parameters, or its `input_dtype` where it takes more digits and narrows them
    itself.
    """
    floating = (p.dtype for p in module.parameters() if p.is_floating_point())
    return getattr(module, "input_dtype", None) or next(floating, None)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    r"""Apply a function to every tensor of nested dicts, tuples and lists; keep everything else."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_tensors(function, value) for value in tree)
    return tree


def part_of(tree: Any, start: int, size: int) -> Any:
    r"""The examples from `start` on, at most `size` of them, of every tensor."""
    return map_tensors(lambda tensor: tensor[start : start + size], tree)


def leaves(tree: Any) -> list[Tensor]:
    r"""The tensors of nested dicts, tuples and lists, in a fixed order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return []
