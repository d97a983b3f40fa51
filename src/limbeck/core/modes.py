r"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    r"""A module in evaluation mode, and every layer of it back in its own mode afterwards.

    Modes are set directly: a module's own `train` or `eval` may do what cannot be undone.

    Arguments:
        model: A module; anything else has no mode, and is left as it is.
    """
    layers = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = False
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode
