r"""Targets: unnormalised densities, as normalize, bounds, bridge and AIS see them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from limbeck.models.supports import Support

__all__ = ["Path", "Target"]


@runtime_checkable
class Target(Protocol):
    r"""An unnormalised density p̃(x) = Z p(x) that chains can run on.

    A target may also have

    * `start(n, generator)`: events (n, *shape) to start chains from; else the support gives them;
    * `path()`: a `Path` from a distribution with a known normaliser, for annealing;
    * `exact = False`: its `advance` leaves the density invariant only approximately, and what
      needs samples of the target is then marked as doubtful.

    Attributes:
        support: Where x lives.
    """

    support: Support

    def log_unnormalized(self, x: Tensor) -> Tensor:
        r"""log p̃(x), (n,), of a batch of events (n, *shape)."""

    def advance(
        self, x: Tensor, sweeps: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        r"""Chains (n, *shape) moved on by so many sweeps, each of which leaves p invariant.

        It gives a new tensor and leaves x as it is.
        """


class Path(Protocol):
    r"""Densities p_β from one that can be sampled and normalised (β = 0) to the target (β = 1).

    Attributes:
        support: Where x lives.
        log_z: The logarithm of the normaliser at β = 0.
    """

    support: Support
    log_z: float

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent events (n, *shape) of the density at β = 0."""

    def log_unnormalized(self, x: Tensor, beta: float) -> Tensor:
        r"""log p̃_β(x), (n,)."""

    def advance(
        self,
        x: Tensor,
        beta: float,
        generator: torch.Generator | None = None,
        *,
        reverse: bool = False,
    ) -> Tensor:
        r"""One sweep that leaves p_β invariant; `reverse` gives the time-reversed kernel."""

    def climb(
        self, x: Tensor, before: float, after: float, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""log p̃_after(x) − log p̃_before(x), (n,), and x advanced by a sweep under p_after.

        The two share most of their work in models such as the RBM.
        """
