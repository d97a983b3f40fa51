r"""A map-style torch Dataset read into arrays, each item once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from limbeck.errors import ArgumentError

__all__ = ["materialise", "split_item"]


def materialise(dataset: data.Dataset[Any], argument: str) -> tuple[Any, Any]:
    r"""X and y (None if there are no labels) of a data set whose items are x or (x, y)."""
    if isinstance(dataset, data.TensorDataset):
        return split_item(dataset.tensors, argument)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ArgumentError(
            argument, f"a {type(dataset).__name__} without a length", "a map-style data set"
        )
    items = [split_item(dataset[i], argument) for i in range(len(dataset))]
    if not items:
        raise ArgumentError(argument, "no data (a data set of length 0)", "one item or more")
    labelled = [y is not None for _, y in items]
    if any(labelled) and not all(labelled):
        raise ArgumentError(argument, "items with and without labels", "x, or (x, y), throughout")
    y = _stack([y for _, y in items], argument) if all(labelled) else None
    return _stack([x for x, _ in items], argument), y


def split_item(item: Any, argument: str) -> tuple[Any, Any]:
    r"""Inputs and labels of an item x, (x,) or (x, y); y is None without labels."""
    if not isinstance(item, tuple | list):
        return item, None
    if not 1 <= len(item) <= 2:
        raise ArgumentError(argument, f"items of {len(item)} things", "items x or (x, y)")
    return item[0], item[1] if len(item) == 2 else None


def _stack(values: list[Any], argument: str) -> Any:
    if isinstance(values[0], dict):
        return {key: _stack([value[key] for value in values], argument) for key in values[0]}
    try:
        if all(isinstance(value, Tensor) for value in values):
            return torch.stack(values)
        return np.stack([np.asarray(value) for value in values])
    except (RuntimeError, ValueError, TypeError) as reason:
        received = f"items that cannot be stacked ({reason})"
        raise ArgumentError(argument, received, "items of one shape") from None
