r"""Students and teachers of limbeck's own."""

from limbeck.models.ensemble import Ensemble
from limbeck.models.mlp import MLP, BatchedMLP

__all__ = ["MLP", "BatchedMLP", "Ensemble"]
