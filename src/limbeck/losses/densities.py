r"""Losses on densities: a tractable student against an unnormalised teacher (chapter 4)."""

from __future__ import annotations

import math

from torch import Tensor

from limbeck.arrays import Batch
from limbeck.errors import ArgumentError
from limbeck.evaluation import View
from limbeck.losses.base import Drawn, Loss, Probe

__all__ = ["kl", "log_density_error", "reverse_kl", "score_matching"]


class _LogDensities(Loss):
    r"""A loss on the log densities of both models."""

    asks = frozenset({"values"})
    needs = "density"
    affine = False
    bias = "log densities are not averages over draws"


class kl(Loss):  # noqa: N801 - losses are written as functions of their settings
    r"""KL(p ‖ f) up to a constant: −log f(x) at inputs x drawn from the teacher."""

    name = "kl"
    needs = "density"

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        return -student.log_density()


class log_density_error(_LogDensities):  # noqa: N801
    r"""½(log f(x) − log p̃(x) + c)² at inputs drawn from the teacher.

    Its minimum is at f = p for every c ≤ log Z, since it equals
    E⁰ + (log Z − c)·KL(p ‖ f) + ½(log Z − c)²; as c → −∞ it becomes the KL divergence.

    Arguments:
        c: At most log Z; for discrete x the largest known log p̃(x) will do. Default: 0.
    """

    name = "log_density_error"

    def __init__(self, c: float = 0.0) -> None:
        if not math.isfinite(c):
            raise ArgumentError("c", repr(c), "a finite number, at most log Z")
        self.c = float(c)

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        return (student.log_density() - teacher.log_density() + self.c).square() / 2

    def __repr__(self) -> str:
        return f"log_density_error(c={self.c:g})"


class reverse_kl(_LogDensities):  # noqa: N801
    r"""KL(f ‖ p) up to log Z, at inputs x that are samples of the student itself.

    The value at an example is r(x) = log f(x) − log p̃(x), whose mean is KL(f ‖ p) − log Z. Since
    the samples depend on the parameters, the gradient is REINFORCE's, (r(x) − b) ∂log f(x), where
    b is the mean of r over the other examples of the batch, 0 in a batch of one.
    """

    name = "reverse_kl"
    storable = False

    def bind(self, probe: Probe) -> None:
        if probe.batch.index is not None:
            expected = "samples of the student itself: limbeck.inputs.Samples(student)"
            raise ArgumentError("inputs", "rows of a data set, for reverse_kl", expected)

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        log_f = student.log_density()
        r = (log_f - teacher.log_density()).detach()
        others = len(r) - 1
        advantage = (r - r.mean()) * (len(r) / others) if others else r
        surrogate = advantage * log_f
        return r + surrogate - surrogate.detach()


class score_matching(_LogDensities):  # noqa: N801
    r"""½‖∂log f(x) − ∂log p̃(x)‖², for continuous x whose density is positive everywhere."""

    name = "score_matching"
    differentiates = True
    asks = frozenset({"derivatives"})
    domain = "density"

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Drawn = None) -> Tensor:
        residual = student.derivatives("density") - teacher.derivatives("density")  # (n, 1, D)
        return residual.square().sum((1, 2)) / 2
