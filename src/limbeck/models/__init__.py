r"""limbeck's own students and teachers."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from limbeck.errors import ArgumentError
from limbeck.models.ensemble import Ensemble
from limbeck.models.flow import Flow
from limbeck.models.made import MADE
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mlp import MLP, BatchedMLP
from limbeck.models.nade import NADE, DeepNADE
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.symmetrized import Symmetrized
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees

__all__ = [
    "MADE", "MLP", "NADE", "BatchedMLP", "DeepNADE", "Ensemble", "Flow", "GaussianMixture",
    "Preprocessed", "Symmetrized", "TableEncoder", "Trees",
]  # fmt: skip

# models that may be made from the description in a file
BY_NAME: dict[str, Any] = {name: globals()[name] for name in __all__}


def from_spec(spec: object, most: int | None = None) -> Any:
    r"""The model that `spec()` described, freshly initialised; nothing else is ever constructed.

    A spec that claims more numbers than `most` is refused before anything is allocated.
    """
    name = spec.get("type") if isinstance(spec, Mapping) else None
    if not isinstance(name, str) or name not in BY_NAME:
        expected = f"a spec of one of {', '.join(BY_NAME)}"
        raise ArgumentError("spec", reprlib.repr(spec), expected)
    return BY_NAME[name].from_spec(spec, most)
