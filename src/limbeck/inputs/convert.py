r"""Anything that can serve as inputs, as a source."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils import data

from limbeck.errors import ArgumentError
from limbeck.inputs.base import Inputs
from limbeck.inputs.dataset import Dataset
from limbeck.inputs.generated import Function, Samples
from limbeck.inputs.loader import Loader

__all__ = ["as_inputs"]

ACCEPTED = (
    "an input source of limbeck.inputs, a tensor, an array, a dict of these, a numeric data frame, "
    "a torch Dataset or DataLoader, a model with a method sample, or a function of n"
)

ARRAYS = (Tensor, np.ndarray, dict, list, tuple, data.Dataset)
ARRAY_METHODS = ("__array__", "to_numpy", "toarray")


def as_inputs(value: Any, argument: str = "inputs") -> Inputs:
    r"""The source that a value stands for.

    Arguments:
        value: A source, which is given back; data (Dataset); a torch data set or loader (Dataset,
            Loader); a model with a method `sample` (Samples); a function of n (Function).
        argument: What errors call the value.

    >>> type(as_inputs([[1.0], [2.0]])).__name__
    'Dataset'
    """
    if isinstance(value, Inputs):
        return value
    if isinstance(value, type):
        raise ArgumentError(argument, f"the class {value.__name__}", "an object of the class")
    if isinstance(value, list | tuple) and any(isinstance(v, Inputs) for v in value):
        raise ArgumentError(argument, "several sources", "one: limbeck.inputs.Mix(sources)")
    if isinstance(value, data.DataLoader | data.IterableDataset):
        return Loader(value)
    if isinstance(value, ARRAYS) or any(hasattr(value, name) for name in ARRAY_METHODS):
        return _dataset(value, argument)
    if callable(getattr(value, "sample", None)):
        return Samples(value)
    if isinstance(value, nn.Module):
        received = f"the module {type(value).__name__}, which has no method sample"
        raise ArgumentError(argument, received, ACCEPTED)
    if callable(value):
        return Function(value)
    raise ArgumentError(argument, f"a {type(value).__name__}", ACCEPTED)


def _dataset(value: Any, argument: str) -> Dataset:
    try:
        return Dataset(value)
    except ArgumentError as error:
        name = argument + error.argument.removeprefix("X")
        raise ArgumentError(name, error.received, error.expected) from None
