r"""limbeck: knowledge distillation in the wide sense.

It turns a cumbersome model into a convenient one that does the same job.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limbeck import callbacks, inputs, losses, samplers
    from limbeck.compression.asking.cache import TeacherCache
    from limbeck.compression.asking.labelling import TeacherError
    from limbeck.compression.compress import compress
    from limbeck.compression.compressed import Compressed
    from limbeck.compression.estimators import DistilledClassifier, DistilledRegressor
    from limbeck.compression.fidelity.report import Fidelity
    from limbeck.compression.tables.table import Table
    from limbeck.core.batch import Batch
    from limbeck.core.evaluation import evaluate
    from limbeck.core.result import Result
    from limbeck.core.schedule import Constant, Cosine, Linear, Logarithmic, RobbinsMonro
    from limbeck.core.stored import Stored
    from limbeck.core.teacher import Opaque, Teacher
    from limbeck.core.update import GradientUpdate
    from limbeck.distillation import distill, steps
    from limbeck.draws.read import as_draws
    from limbeck.draws.stream import StreamEnded
    from limbeck.errors import (
        ArgumentError,
        CheckpointError,
        HeldOutWarning,
        InexactTeacherError,
        LimbeckError,
        LimbeckWarning,
        NotDifferentiableError,
        PseudoDrawWarning,
    )
    from limbeck.generative.chains import Chains
    from limbeck.generative.enumeration import exact_log_z
    from limbeck.generative.estimate import LogPartition
    from limbeck.generative.expectations import expected_statistics
    from limbeck.generative.free_energy import free_energy
    from limbeck.generative.log_partition import log_partition
    from limbeck.generative.normalize import normalize
    from limbeck.loading import load
    from limbeck.models import MLP, BatchedMLP, Ensemble, GaussianMixture, Preprocessed, Trees
    from limbeck.models.deep_nade import DeepNADE
    from limbeck.models.energy import Energy
    from limbeck.models.made import MADE
    from limbeck.models.nade import NADE
    from limbeck.models.rbm import RBM
    from limbeck.models.supports import Binary, Real, Spins, States
    from limbeck.predictive.condense import condense
    from limbeck.predictive.distributions import (
        Bernoulli,
        Categorical,
        Mixture,
        MultivariateNormal,
        Normal,
        Poisson,
    )
    from limbeck.predictive.ep import ep_logistic
    from limbeck.predictive.sample_bag import SampleBag
    from limbeck.predictive.stepwise_em import StepwiseEM

__version__ = "0.1.0.dev0"

__all__ = [
    "MADE",
    "MLP",
    "NADE",
    "RBM",
    "ArgumentError",
    "Batch",
    "BatchedMLP",
    "Bernoulli",
    "Binary",
    "Categorical",
    "Chains",
    "CheckpointError",
    "Compressed",
    "Constant",
    "Cosine",
    "DeepNADE",
    "DistilledClassifier",
    "DistilledRegressor",
    "Energy",
    "Ensemble",
    "Fidelity",
    "GaussianMixture",
    "GradientUpdate",
    "HeldOutWarning",
    "InexactTeacherError",
    "LimbeckError",
    "LimbeckWarning",
    "Linear",
    "LogPartition",
    "Logarithmic",
    "Mixture",
    "MultivariateNormal",
    "Normal",
    "NotDifferentiableError",
    "Opaque",
    "Poisson",
    "Preprocessed",
    "PseudoDrawWarning",
    "Real",
    "Result",
    "RobbinsMonro",
    "SampleBag",
    "Spins",
    "States",
    "StepwiseEM",
    "Stored",
    "StreamEnded",
    "Table",
    "Teacher",
    "TeacherCache",
    "TeacherError",
    "Trees",
    "as_draws",
    "callbacks",
    "compress",
    "condense",
    "distill",
    "ep_logistic",
    "evaluate",
    "exact_log_z",
    "expected_statistics",
    "free_energy",
    "inputs",
    "load",
    "log_partition",
    "losses",
    "normalize",
    "samplers",
    "steps",
]

_HOMES = {  # modules are imported when something of theirs is used, so that `--help` need not wait
    "ArgumentError": "limbeck.errors",
    "Batch": "limbeck.core.batch",
    "BatchedMLP": "limbeck.models",
    "Bernoulli": "limbeck.predictive.distributions",
    "Binary": "limbeck.models.supports",
    "Categorical": "limbeck.predictive.distributions",
    "Chains": "limbeck.generative.chains",
    "CheckpointError": "limbeck.errors",
    "Compressed": "limbeck.compression.compressed",
    "Constant": "limbeck.core.schedule",
    "Cosine": "limbeck.core.schedule",
    "DeepNADE": "limbeck.models.deep_nade",
    "DistilledClassifier": "limbeck.compression.estimators",
    "DistilledRegressor": "limbeck.compression.estimators",
    "Energy": "limbeck.models.energy",
    "Ensemble": "limbeck.models",
    "Fidelity": "limbeck.compression.fidelity.report",
    "GaussianMixture": "limbeck.models",
    "GradientUpdate": "limbeck.core.update",
    "HeldOutWarning": "limbeck.errors",
    "InexactTeacherError": "limbeck.errors",
    "LimbeckError": "limbeck.errors",
    "LimbeckWarning": "limbeck.errors",
    "Linear": "limbeck.core.schedule",
    "LogPartition": "limbeck.generative.estimate",
    "Logarithmic": "limbeck.core.schedule",
    "MADE": "limbeck.models.made",
    "MLP": "limbeck.models",
    "Mixture": "limbeck.predictive.distributions",
    "MultivariateNormal": "limbeck.predictive.distributions",
    "NADE": "limbeck.models.nade",
    "Normal": "limbeck.predictive.distributions",
    "NotDifferentiableError": "limbeck.errors",
    "Opaque": "limbeck.core.teacher",
    "Poisson": "limbeck.predictive.distributions",
    "Preprocessed": "limbeck.models",
    "PseudoDrawWarning": "limbeck.errors",
    "RBM": "limbeck.models.rbm",
    "Real": "limbeck.models.supports",
    "Result": "limbeck.core.result",
    "RobbinsMonro": "limbeck.core.schedule",
    "SampleBag": "limbeck.predictive.sample_bag",
    "Spins": "limbeck.models.supports",
    "States": "limbeck.models.supports",
    "StepwiseEM": "limbeck.predictive.stepwise_em",
    "Stored": "limbeck.core.stored",
    "StreamEnded": "limbeck.draws.stream",
    "Table": "limbeck.compression.tables.table",
    "Teacher": "limbeck.core.teacher",
    "TeacherCache": "limbeck.compression.asking.cache",
    "TeacherError": "limbeck.compression.asking.labelling",
    "Trees": "limbeck.models",
    "as_draws": "limbeck.draws.read",
    "callbacks": "limbeck.callbacks",
    "compress": "limbeck.compression.compress",
    "condense": "limbeck.predictive.condense",
    "distill": "limbeck.distillation",
    "ep_logistic": "limbeck.predictive.ep",
    "evaluate": "limbeck.core.evaluation",
    "exact_log_z": "limbeck.generative.enumeration",
    "expected_statistics": "limbeck.generative.expectations",
    "free_energy": "limbeck.generative.free_energy",
    "inputs": "limbeck.inputs",
    "load": "limbeck.loading",
    "log_partition": "limbeck.generative.log_partition",
    "losses": "limbeck.losses",
    "normalize": "limbeck.generative.normalize",
    "samplers": "limbeck.samplers",
    "steps": "limbeck.distillation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'limbeck' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if _HOMES[name] == f"limbeck.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
