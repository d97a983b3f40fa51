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
    from limbeck.models import (
        MLP,
        BatchedMLP,
        Ensemble,
        GaussianMixture,
        Preprocessed,
        Symmetrized,
        Trees,
    )  # fmt: skip
    from limbeck.models.clamp import clamp
    from limbeck.models.deep_nade import DeepNADE
    from limbeck.models.energy import Energy
    from limbeck.models.made import MADE
    from limbeck.models.nade import NADE
    from limbeck.models.rbm import RBM
    from limbeck.normalization.annealing import AIS
    from limbeck.normalization.bridge import Bridge
    from limbeck.normalization.compare_evidence import EvidenceComparison, compare_evidence
    from limbeck.normalization.curve import FreeEnergyCurve, free_energy_curve
    from limbeck.normalization.estimate import LogPartition
    from limbeck.normalization.evidence import log_evidence
    from limbeck.normalization.importance import Importance, expected_statistics, free_energy
    from limbeck.normalization.log_partition import Exact, exact_log_z, log_partition
    from limbeck.normalization.normalize import normalize
    from limbeck.normalization.tempering import Tempering
    from limbeck.posteriors.programs import Program, from_numpyro, from_pymc
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
    "AIS", "MADE", "MLP", "NADE", "RBM", "ArgumentError", "Batch", "BatchedMLP", "Bernoulli",
    "Binary", "Bridge", "Categorical", "Chains", "CheckpointError", "Compressed", "Condensed",
    "DeepNADE", "DistilledClassifier", "DistilledRegressor", "Energy", "Ensemble",
    "EvidenceComparison", "Exact", "Fidelity", "FreeEnergyCurve", "GaussianMixture",
    "GradientUpdate", "HeldOutWarning", "Importance", "InexactTeacherError", "LimbeckError",
    "LimbeckWarning", "LogPartition", "Mixture", "MultivariateNormal", "Normal",
    "NotDifferentiableError", "Opaque", "Poisson", "Preprocessed", "Program", "PseudoDrawWarning",
    "Real", "Result", "SampleBag", "Spins", "States", "StepwiseEM", "Stored", "StreamEnded",
    "Symmetrized", "Table", "Teacher", "TeacherCache", "TeacherError", "Tempering", "Trees",
    "as_draws", "callbacks", "clamp", "compare_evidence", "compress", "condense", "distill",
    "ep_logistic", "evaluate", "exact_log_z", "expected_statistics", "export", "free_energy",
    "free_energy_curve", "from_numpyro", "from_pymc", "inputs", "load", "log_evidence",
    "log_partition", "losses", "normalize", "samplers", "schedules", "steps",
]  # fmt: skip

# modules are imported when something of theirs is used, so that `--help` need not wait
_MODULES = {name: f"limbeck.{name}" for name in ("export", "inputs", "losses", "samplers")}
_MODULES |= {name: f"limbeck.training.{name}" for name in ("callbacks", "schedules")}
_NAMES = {
    "arrays": "Batch", "compression.compress": "compress", "compression.compressed": "Compressed",
    "compression.estimators": "DistilledClassifier DistilledRegressor",
    "compression.fidelity.report": "Fidelity", "condensation.condense": "condense",
    "condensation.condensed": "Condensed", "condensation.logistic": "ep_logistic",
    "condensation.sample_bag": "SampleBag", "condensation.stepwise_em": "StepwiseEM",
    "distributions": "Bernoulli Categorical Mixture MultivariateNormal Normal Poisson",
    "errors": "ArgumentError CheckpointError HeldOutWarning InexactTeacherError LimbeckError"
    " LimbeckWarning NotDifferentiableError PseudoDrawWarning", "evaluation": "evaluate",
    "loading": "load", "models": "BatchedMLP Ensemble GaussianMixture MLP Preprocessed Symmetrized"
    " Trees",
    "models.clamp": "clamp", "models.deep_nade": "DeepNADE", "models.energy": "Energy",
    "models.made": "MADE",
    "models.nade": "NADE", "models.rbm": "RBM", "normalization.annealing": "AIS",
    "normalization.bridge": "Bridge",
    "normalization.compare_evidence": "EvidenceComparison compare_evidence",
    "normalization.curve": "FreeEnergyCurve free_energy_curve",
    "normalization.estimate": "LogPartition", "normalization.evidence": "log_evidence",
    "normalization.importance": "Importance expected_statistics free_energy",
    "normalization.log_partition": "Exact exact_log_z log_partition",
    "normalization.normalize": "normalize", "normalization.tempering": "Tempering",
    "posteriors.programs": "Program from_numpyro from_pymc", "posteriors.read": "as_draws",
    "posteriors.stream": "StreamEnded", "samplers.chains": "Chains",
    "supports": "Binary Real Spins States", "tables.table": "Table",
    "teachers.base": "Opaque Teacher", "teachers.cache": "TeacherCache",
    "teachers.query": "TeacherError", "teachers.stored": "Stored",
    "training.distill": "distill steps", "training.result": "Result",
    "training.update": "GradientUpdate",
}  # fmt: skip
_HOMES = {name: f"limbeck.{home}" for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'limbeck' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
