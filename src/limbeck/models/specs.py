r"""Any of limbeck's models from its spec; nothing else is ever constructed."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from limbeck import models
from limbeck.errors import ArgumentError


def from_spec(spec: object, most: int | None = None) -> nn.Module:
    r"""A model of the same shape, freshly initialised.

    Arguments:
        spec: What the model's `spec()` gave.
        most: How many numbers it may have, as `count_numbers` tells of a file's tensors; a spec
            that claims more is refused before anything is allocated. Default: any number.
    """
    name = spec.get("type") if isinstance(spec, Mapping) else None
    if not isinstance(name, str) or name not in models.BY_NAME:
        expected = f"a spec of one of {', '.join(models.BY_NAME)}"
        raise ArgumentError("spec", reprlib.repr(spec), expected)
    kind: Any = models.BY_NAME[name]
    model: nn.Module = kind.from_spec(spec, most)
    return model
