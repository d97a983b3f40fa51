r"""limbeck: knowledge distillation in the wide sense.

It turns a cumbersome model into a convenient one that does the same job.
"""

from limbeck import inputs, losses
from limbeck.core.batch import Batch
from limbeck.core.evaluation import evaluate
from limbeck.core.result import Result, load
from limbeck.core.schedule import Constant, Cosine, Linear, Logarithmic, RobbinsMonro
from limbeck.core.stored import Stored
from limbeck.core.teacher import Opaque, Teacher
from limbeck.core.update import GradientUpdate
from limbeck.distillation import distill, steps
from limbeck.errors import (
    ArgumentError,
    CheckpointError,
    InexactTeacherError,
    LimbeckError,
    NotDifferentiableError,
)
from limbeck.models import MLP, BatchedMLP, Ensemble

__version__ = "0.1.0.dev0"

__all__ = [
    "MLP",
    "ArgumentError",
    "Batch",
    "BatchedMLP",
    "CheckpointError",
    "Constant",
    "Cosine",
    "Ensemble",
    "GradientUpdate",
    "InexactTeacherError",
    "LimbeckError",
    "Linear",
    "Logarithmic",
    "NotDifferentiableError",
    "Opaque",
    "Result",
    "RobbinsMonro",
    "Stored",
    "Teacher",
    "distill",
    "evaluate",
    "inputs",
    "load",
    "losses",
    "steps",
]
