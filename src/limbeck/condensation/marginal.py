r"""Predictions of a condensed posterior: right at each input, without the joint over inputs."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from limbeck.condensation.teachers import outside
from limbeck.distributions.base import Distribution, Shape
from limbeck.errors import PseudoDrawWarning

__all__ = ["JOINT", "PARAMETERS", "WarnOnce", "marginal"]

JOINT = (
    "sample: a condensed posterior draws each input independently. The samples of each single "
    "input are right; sums, differences, maxima and other joint quantities of several inputs are "
    "not, since what the inputs share through one posterior draw is lost. For these, predict all "
    "inputs with each of the posterior's own draws"
)

PARAMETERS = (
    "draws: pseudo-draws are trained to predict well together and are no draws of the posterior. "
    "Their means, spreads and intervals are not those of the parameters. For these, use the "
    "posterior's own draws"
)


class WarnOnce:
    r"""A warning that comes at most once for a bag or a result, however often it is used."""

    def __init__(self) -> None:
        self.given: set[str] = set()

    def __call__(self, message: str) -> None:
        if message not in self.given:
            self.given.add(message)
            hint = "filter lb.PseudoDrawWarning to silence this"
            warnings.warn(f"{message} ({hint}).", PseudoDrawWarning, stacklevel=outside())


class _Marginal:
    r"""What is added to a distribution: joint samples at several inputs are warned of."""

    once: WarnOnce | None = None

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        own: Any = self
        if self.once is not None and own.batch_shape.numel() > 1:
            self.once(JOINT)
        found: Tensor = super().sample(shape, generator)  # type: ignore[misc]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        own: Any = self
        return type(self).__bases__[1], tuple(own)


@cache
def _kind(base: Any) -> Any:
    r"""The same kind of distribution, by the same name, with the warning."""
    about = {"__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (_Marginal, base), about)


def marginal(found: Any, once: WarnOnce) -> Any:
    r"""A distribution that warns before it is sampled at several inputs; anything else as it is.

    Arguments:
        found: What a student gave.
        once: Whose warning it is.
    """
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if traced or torch._C._are_functorch_transforms_active():
        return found
    if not isinstance(found, Distribution) or isinstance(found, _Marginal):
        return found
    base: Any = type(found)
    own: Any = found
    tagged = _kind(base)(*own)
    tagged.once = once
    return tagged
