r"""Samplers: parallel chains, one sweep per call; and diagnostics of their draws."""

from limbeck.samplers.diagnostics import (
    RunningDiagnostics,
    effective_size,
    pareto_k,
    r_hat,
    weights_effective_size,
)  # fmt: skip
from limbeck.samplers.gibbs import sweep
from limbeck.samplers.hmc import HMC
from limbeck.samplers.slice import Slice

__all__ = [
    "HMC", "RunningDiagnostics", "Slice", "effective_size", "pareto_k", "r_hat", "sweep",
    "weights_effective_size",
]  # fmt: skip
