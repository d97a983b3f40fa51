r"""limbeck's own students and teachers."""

from limbeck.models.deep_nade import DeepNADE
from limbeck.models.ensemble import Ensemble
from limbeck.models.flow import Flow
from limbeck.models.made import MADE
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mlp import MLP, BatchedMLP
from limbeck.models.nade import NADE
from limbeck.models.preprocessed import Preprocessed
from limbeck.models.symmetrized import Symmetrized
from limbeck.models.table_encoder import TableEncoder
from limbeck.models.tree import Trees

__all__ = [
    "MADE", "MLP", "NADE", "BatchedMLP", "DeepNADE", "Ensemble", "Flow", "GaussianMixture",
    "Preprocessed", "Symmetrized", "TableEncoder", "Trees",
]  # fmt: skip

# models that may be made from the description in a file
BY_NAME: dict[str, type] = {name: globals()[name] for name in __all__}
