r"""Samplers: chains that advance side by side, one call a sweep; and what their draws are worth."""

from limbeck.samplers.diagnostics import effective_size, pareto_k, r_hat, weights_effective_size
from limbeck.samplers.gibbs import sweep
from limbeck.samplers.running import Running
from limbeck.samplers.slice import Slice

__all__ = [
    "Running",
    "Slice",
    "effective_size",
    "pareto_k",
    "r_hat",
    "sweep",
    "weights_effective_size",
]
