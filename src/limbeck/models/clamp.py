r"""Targets of which some variables have fixed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arguments import Number, UserObject, checked_arguments, integer
from limbeck.arrays import float_tensor
from limbeck.errors import ArgumentError
from limbeck.models.energy import Energy
from limbeck.models.rbm import RBM
from limbeck.samplers.chains import Target
from limbeck.supports import Binary, Real, Spins, States, Support


@checked_arguments
def clamp(target: UserObject[Target], values: UserObject[Mapping[Any, float]]) -> RBM | Energy:
    r"""The unnormalised density of the other variables, where some have fixed values.

    Its log Z is the logarithm of the sum or integral of p̃ over the free variables, which stand in
    their order, as events (free,). The log Z of the target subtracted from it gives the log
    probability of the fixed values. Of an RBM it is another RBM; of any other target an `Energy`
    with samplers of its own, even if the target has an `advance`; `energy.fn.expand(x)` gives
    events (n, *shape) with the fixed values.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.samplers.chains.Target`.
        values: A dict from variables to values: a variable is its index, or a tuple of indices
            if events have several axes.

    >>> rbm = RBM([[1.0], [2.0], [0.0]], [0.0, 0.5, -1.0], [0.0])
    >>> rest = clamp(rbm, {1: 1})
    >>> whole, part = torch.tensor([[1.0, 1, 0]]), torch.tensor([[1.0, 0]])
    >>> torch.equal(rbm.log_unnormalized(whole), rest.log_unnormalized(part))
    True
    """
    support: Any = getattr(target, "support", None)
    if type(support) not in (Binary, Spins, States, Real):
        expected = "an lb.RBM, an lb.Energy, or another target over Binary, Spins, States or Real"
        raise ArgumentError("target", f"a {type(target).__name__} over {support!r}", expected)
    event, fixed = _fixed(support, values)
    free = int((~fixed).sum())
    if not free or free == support.size:
        received = "none" if free else "all"
        expected = "at least one fixed variable and one free one"
        raise ArgumentError("values", f"{received} of {support.size:,} variables", expected)
    if isinstance(target, RBM):
        x, fixed = event.to(target.W), fixed.to(target.W.device)
        with torch.no_grad():
            b = target.b + x[fixed] @ target.W[fixed]
            rest = RBM(target.W[~fixed], target.a[~fixed], b)
            rest.constant = target.constant + float((x * target.a)[fixed].sum())
        return rest
    filled = FixedVariables(target, event, fixed)
    shape = (support.count, free) if isinstance(support, States) else (free,)
    return Energy(filled, type(support)(*shape))


def _fixed(support: Support, values: Any) -> tuple[Tensor, Tensor]:
    r"""An event (size,) that has the fixed values, and which of its variables they are."""
    shape = support.shape
    if not isinstance(values, Mapping):
        raise ArgumentError("values", f"a {type(values).__name__}", "a dict from indices to values")
    event, fixed = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    for key, value in values.items():
        index = key if isinstance(key, tuple) else (key,)
        expected = f"{len(shape)} whole numbers below {shape}, an index of a variable"
        index = tuple(integer("values", i, expected, least=0) for i in index)
        if len(index) != len(shape) or any(i >= n for i, n in zip(index, shape, strict=True)):
            raise ArgumentError("values", f"the key {key!r}", expected)
        event[index], fixed[index] = Number()(f"values[{key!r}]", value), True
    event, fixed = event.flatten(), fixed.flatten()
    outside = fixed & ~support.contains(event)
    if outside.any():
        raise ArgumentError("values", f"{event[outside][0].item():g}", support.description)
    return event, fixed


class FixedVariables(nn.Module):
    r"""−log p̃ of a target at events (n, free), with the other variables at their fixed values."""

    def __init__(self, target: Target, event: Tensor, fixed: Tensor) -> None:
        super().__init__()
        self.target: Any = target
        self.event = nn.Buffer(event.to(float_tensor(target, torch.empty(0))))
        self.free = nn.Buffer((~fixed).nonzero()[:, 0].to(self.event.device))

    def expand(self, x: Tensor) -> Tensor:
        r"""Events (n, *shape) of the target."""
        rows = self.event.to(x).expand(len(x), -1)
        return rows.index_copy(1, self.free, x).unflatten(1, self.target.support.shape)

    def forward(self, x: Tensor) -> Tensor:
        return -self.target.log_unnormalized(self.expand(x))
