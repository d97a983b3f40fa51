r"""The other update of stepwise EM in the source text, which interpolates parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.distributions.gaussians import Moments, expectations, maximised


class ParameterEM(StepwiseEM):
    r"""θ ← (1 − γ)θ + γθ', where θ' is fitted to the minibatch by iterations of EM, from θ.

    Arguments:
        iterations: Iterations of EM on the minibatch.
        options: As of `StepwiseEM`.
    """

    def __init__(self, iterations: int, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self.iterations = iterations
        self.param_groups[0]["iterations"] = iterations

    def _expect(self, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Any]:
        losses, sums = super()._expect(x, weight)
        moments, least = self._moments, self._fixed["least"]
        for iteration in range(self.iterations):
            if iteration:
                _, sums = expectations(x, weight, moments, self.matrices)
            moments = maximised(sums, moments, self.kind, least)
        return losses, moments

    def _state_of(self, moments: Moments) -> Any:
        return moments

    def _moments_of(self, state: Any, before: Moments) -> Moments:
        moments: Moments = state
        return moments
