r"""limbeck: knowledge distillation in the wide sense.

It turns a cumbersome model into a convenient one that does the same job.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {  # modules are imported when something of theirs is used, so that `--help` need not wait
    "ArgumentError": "limbeck.errors",
    "Batch": "limbeck.core.batch",
    "BatchedMLP": "limbeck.models",
    "CheckpointError": "limbeck.errors",
    "Constant": "limbeck.core.schedule",
    "Cosine": "limbeck.core.schedule",
    "Ensemble": "limbeck.models",
    "GradientUpdate": "limbeck.core.update",
    "InexactTeacherError": "limbeck.errors",
    "LimbeckError": "limbeck.errors",
    "Linear": "limbeck.core.schedule",
    "Logarithmic": "limbeck.core.schedule",
    "MLP": "limbeck.models",
    "NotDifferentiableError": "limbeck.errors",
    "Opaque": "limbeck.core.teacher",
    "Result": "limbeck.core.result",
    "RobbinsMonro": "limbeck.core.schedule",
    "Stored": "limbeck.core.stored",
    "Teacher": "limbeck.core.teacher",
    "distill": "limbeck.distillation",
    "evaluate": "limbeck.core.evaluation",
    "inputs": "limbeck.inputs",
    "load": "limbeck.core.result",
    "losses": "limbeck.losses",
    "steps": "limbeck.distillation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'limbeck' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if _HOMES[name] == f"limbeck.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
