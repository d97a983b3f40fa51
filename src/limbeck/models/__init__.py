r"""Students and teachers of limbeck's own."""

from limbeck.models.batched import BatchedMLP
from limbeck.models.deep_nade import DeepNADE
from limbeck.models.ensemble import Ensemble
from limbeck.models.made import MADE
from limbeck.models.mlp import MLP
from limbeck.models.nade import NADE

__all__ = ["MADE", "MLP", "NADE", "BatchedMLP", "DeepNADE", "Ensemble"]
