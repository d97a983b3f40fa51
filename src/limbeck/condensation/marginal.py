r"""Predictions that are right at each input, and warn when they are sampled at several together."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from limbeck.condensation.teachers import user_stacklevel
from limbeck.distributions.base import Distribution, Shape
from limbeck.errors import PseudoDrawWarning

__all__ = ["WarnOnce", "marginal"]

JOINT = (
    "sample: a condensed posterior draws each input independently. The samples of each single "
    "input are right; sums, differences, maxima and other joint quantities of several inputs are "
    "not, since what the inputs share through one posterior draw is lost. For these, predict all "
    "inputs with each of the posterior's own draws"
)


class WarnOnce:
    r"""A warning that comes at most once for a bag or a result, however often it is used."""

    def __init__(self) -> None:
        self.messages: set[str] = set()

    def __call__(self, message: str) -> None:
        if message not in self.messages:
            self.messages.add(message)
            hint = "filter lb.PseudoDrawWarning to silence this"
            warnings.warn(f"{message} ({hint}).", PseudoDrawWarning, stacklevel=user_stacklevel())


class _Marginal:
    r"""Adds a warning of joint samples at several inputs to a distribution."""

    once: WarnOnce | None = None
    batch_shape: torch.Size

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        if self.once is not None and self.batch_shape.numel() > 1:
            self.once(JOINT)
        y: Tensor = super().sample(shape, generator)  # type: ignore[misc]
        return y

    def __reduce__(self) -> tuple[Any, ...]:
        fields: Any = self
        return type(self).__bases__[1], tuple(fields)


@cache
def _with_warning(base: type[Any]) -> type[Any]:
    r"""The same kind of distribution, by the same name, with the warning."""
    about = {"__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (_Marginal, base), about)


def marginal(prediction: Any, once: WarnOnce) -> Any:
    r"""A student's distribution, which warns when it is sampled at several inputs together."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    plain = not isinstance(prediction, Distribution) or isinstance(prediction, _Marginal)
    if plain or traced or torch._C._are_functorch_transforms_active():
        return prediction
    kind: Any = type(prediction)
    tagged = _with_warning(kind)(*prediction)
    tagged.once = once
    return tagged
