r"""limbeck: knowledge distillation in the wide sense.

It turns a cumbersome model into a convenient one that does the same job.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limbeck import export, inputs, losses, samplers
    from limbeck.arrays import Batch
    from limbeck.compression.compress import compress
    from limbeck.compression.compressed import Compressed
    from limbeck.compression.estimators import DistilledClassifier, DistilledRegressor
    from limbeck.compression.fidelity.report import Fidelity
    from limbeck.condensation.condense import condense
    from limbeck.condensation.condensed import Condensed
    from limbeck.condensation.logistic import ep_logistic
    from limbeck.condensation.sample_bag import SampleBag
    from limbeck.condensation.stepwise_em import StepwiseEM
    from limbeck.distributions import (
        Bernoulli,
        Categorical,
        Mixture,
        MultivariateNormal,
        Normal,
        Poisson,
    )
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
    from limbeck.evaluation import evaluate
    from limbeck.loading import load
    from limbeck.models import MLP, BatchedMLP, Ensemble, GaussianMixture, Preprocessed, Trees
    from limbeck.models.deep_nade import DeepNADE
    from limbeck.models.energy import Energy
    from limbeck.models.made import MADE
    from limbeck.models.nade import NADE
    from limbeck.models.rbm import RBM
    from limbeck.normalization.annealing import AIS
    from limbeck.normalization.bridge import Bridge
    from limbeck.normalization.estimate import LogPartition
    from limbeck.normalization.importance import Importance, expected_statistics, free_energy
    from limbeck.normalization.log_partition import Exact, exact_log_z, log_partition
    from limbeck.normalization.normalize import normalize
    from limbeck.posteriors.read import as_draws
    from limbeck.posteriors.stream import StreamEnded
    from limbeck.samplers.chains import Chains
    from limbeck.supports import Binary, Real, Spins, States
    from limbeck.tables.table import Table
    from limbeck.teachers.base import Opaque, Teacher
    from limbeck.teachers.cache import TeacherCache
    from limbeck.teachers.query import TeacherError
    from limbeck.teachers.stored import Stored
    from limbeck.training import callbacks, schedules
    from limbeck.training.distill import distill, steps
    from limbeck.training.result import Result
    from limbeck.training.update import GradientUpdate

__version__ = "0.1.0.dev0"

__all__ = [
    "AIS",
    "MADE",
    "MLP",
    "NADE",
    "RBM",
    "ArgumentError",
    "Batch",
    "BatchedMLP",
    "Bernoulli",
    "Binary",
    "Bridge",
    "Categorical",
    "Chains",
    "CheckpointError",
    "Compressed",
    "Condensed",
    "DeepNADE",
    "DistilledClassifier",
    "DistilledRegressor",
    "Energy",
    "Ensemble",
    "Exact",
    "Fidelity",
    "GaussianMixture",
    "GradientUpdate",
    "HeldOutWarning",
    "Importance",
    "InexactTeacherError",
    "LimbeckError",
    "LimbeckWarning",
    "LogPartition",
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
    "export",
    "free_energy",
    "inputs",
    "load",
    "log_partition",
    "losses",
    "normalize",
    "samplers",
    "schedules",
    "steps",
]

_HOMES = {  # modules are imported when something of theirs is used, so that `--help` need not wait
    "AIS": "limbeck.normalization.annealing",
    "ArgumentError": "limbeck.errors",
    "Batch": "limbeck.arrays",
    "BatchedMLP": "limbeck.models",
    "Bernoulli": "limbeck.distributions",
    "Binary": "limbeck.supports",
    "Bridge": "limbeck.normalization.bridge",
    "Categorical": "limbeck.distributions",
    "Chains": "limbeck.samplers.chains",
    "CheckpointError": "limbeck.errors",
    "Compressed": "limbeck.compression.compressed",
    "Condensed": "limbeck.condensation.condensed",
    "DeepNADE": "limbeck.models.deep_nade",
    "DistilledClassifier": "limbeck.compression.estimators",
    "DistilledRegressor": "limbeck.compression.estimators",
    "Energy": "limbeck.models.energy",
    "Ensemble": "limbeck.models",
    "Exact": "limbeck.normalization.log_partition",
    "Fidelity": "limbeck.compression.fidelity.report",
    "GaussianMixture": "limbeck.models",
    "GradientUpdate": "limbeck.training.update",
    "HeldOutWarning": "limbeck.errors",
    "Importance": "limbeck.normalization.importance",
    "InexactTeacherError": "limbeck.errors",
    "LimbeckError": "limbeck.errors",
    "LimbeckWarning": "limbeck.errors",
    "LogPartition": "limbeck.normalization.estimate",
    "MADE": "limbeck.models.made",
    "MLP": "limbeck.models",
    "Mixture": "limbeck.distributions",
    "MultivariateNormal": "limbeck.distributions",
    "NADE": "limbeck.models.nade",
    "Normal": "limbeck.distributions",
    "NotDifferentiableError": "limbeck.errors",
    "Opaque": "limbeck.teachers.base",
    "Poisson": "limbeck.distributions",
    "Preprocessed": "limbeck.models",
    "PseudoDrawWarning": "limbeck.errors",
    "RBM": "limbeck.models.rbm",
    "Real": "limbeck.supports",
    "Result": "limbeck.training.result",
    "SampleBag": "limbeck.condensation.sample_bag",
    "Spins": "limbeck.supports",
    "States": "limbeck.supports",
    "StepwiseEM": "limbeck.condensation.stepwise_em",
    "Stored": "limbeck.teachers.stored",
    "StreamEnded": "limbeck.posteriors.stream",
    "Table": "limbeck.tables.table",
    "Teacher": "limbeck.teachers.base",
    "TeacherCache": "limbeck.teachers.cache",
    "TeacherError": "limbeck.teachers.query",
    "Trees": "limbeck.models",
    "as_draws": "limbeck.posteriors.read",
    "callbacks": "limbeck.training.callbacks",
    "compress": "limbeck.compression.compress",
    "condense": "limbeck.condensation.condense",
    "distill": "limbeck.training.distill",
    "ep_logistic": "limbeck.condensation.logistic",
    "evaluate": "limbeck.evaluation",
    "export": "limbeck.export",
    "exact_log_z": "limbeck.normalization.log_partition",
    "expected_statistics": "limbeck.normalization.importance",
    "free_energy": "limbeck.normalization.importance",
    "inputs": "limbeck.inputs",
    "load": "limbeck.loading",
    "log_partition": "limbeck.normalization.log_partition",
    "losses": "limbeck.losses",
    "normalize": "limbeck.normalization.normalize",
    "samplers": "limbeck.samplers",
    "schedules": "limbeck.training.schedules",
    "steps": "limbeck.training.distill",
}

_MODULES = {"callbacks", "export", "inputs", "losses", "samplers", "schedules"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'limbeck' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if name in _MODULES else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
