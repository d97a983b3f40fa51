r"""Hill climbing: events of large log p̃, each a lower bound on log Z of a discrete target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.errors import ArgumentError
from limbeck.models.rbm import RBM, softplus
from limbeck.normalization.densities import place_of
from limbeck.samplers.chains import ChainTarget, Density, own_starts
from limbeck.supports import Discrete, Support

__all__ = ["Peak", "climb", "tops"]


class Peak(NamedTuple):
    r"""The highest point of all climbs.

    Attributes:
        value: log p̃(x), a lower bound on log Z.
        x: The event, (*shape).
    """

    value: float
    x: Tensor


@torch.no_grad()
def climb(
    target: ChainTarget,
    tries: int = 20,
    *,
    start: Tensor | None = None,
    sweeps: int = 10,
    seed: int = 0,
) -> Peak:
    r"""A large log p̃(x) of a discrete target, at an x that no change of one variable improves.

    Every try starts from an event and changes one variable after the other to its best value,
    until a whole round changes nothing. The events are the one of all first values (all zeros,
    the blank image), those of `start`, and states of the target's own chains after a few
    sweeps. An RBM climbs in float64, and first by alternate steps of all bits at once.

    Arguments:
        target: An RBM, or any target with a discrete support.
        tries: The number of chains to start from. Default: 20.
        start: Further events (n, *shape) to start from, such as data. Default: none.
        sweeps: Sweeps of the chains before the climb. Default: 10.
        seed: The seed of the chains. Default: 0.

    >>> value, x = climb(RBM([[1.0], [-3.0]], [0.5, 0.0], [0.0]))
    >>> x
    tensor([1., 0.])
    """
    support = getattr(target, "support", None)
    if not isinstance(support, Discrete):
        what = repr(support) if isinstance(support, Support) else f"a {type(target).__name__}"
        raise ArgumentError("target", what, "a target with a discrete support")
    tries = whole_number("tries", tries, "a whole number from 0", least=0)
    sweeps = whole_number("sweeps", sweeps, "a whole number from 0", least=0)
    device, dtype = place_of(target)
    generator = torch.Generator(device).manual_seed(whole_number("seed", seed, "a seed", least=0))
    x = support.decode(torch.zeros(1, *support.shape, device=device, dtype=dtype))
    if start is not None:
        x = torch.cat([x, support.check(start, "start").to(x)])
    if tries:
        chains = own_starts(target, tries, generator, device, dtype)
        x = torch.cat([x, target.advance(chains, sweeps, generator).to(x)])
    value, x = tops(target, x)
    top = int(value.nan_to_num(-math.inf, math.inf).argmax())
    if not math.isfinite(highest := value[top].item()):
        expected = "a target with a finite log p̃ near some event to start from"
        raise ArgumentError("target", f"{highest} as the largest log p̃(x)", expected)
    return Peak(highest, x[top].clone())


@torch.no_grad()
def tops(target: Density, x: Tensor, rounds: int = 1000) -> tuple[Tensor, Tensor]:
    r"""log p̃ (n,) where climbs from events (n, *shape) end, and the events there.

    Arguments:
        target: An RBM, or any target with a discrete support.
        x: Where the climbs start.
        rounds: The most rounds over all variables. Default: 1000, more than any climb takes.
    """
    if isinstance(target, RBM):
        return _climb_rbm(target, x, rounds)
    return _climb_any(target, x, rounds)


def _climb_any(target: Density, x: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    support = target.support
    assert isinstance(support, Discrete)

    def log_p(codes: Tensor) -> Tensor:
        return target.log_unnormalized(support.decode(codes).reshape(-1, *support.shape))

    def turn_each(codes: Tensor) -> Tensor:
        value, first = log_p(codes), codes
        for site in range(support.size):
            for turn in range(1, support.count):
                other = codes.clone()
                other[:, site] = (first[:, site] + turn) % support.count
                log = log_p(other)
                better = log > value + _noise(value)
                value = torch.where(better, log, value)
                codes = torch.where(better[:, None], other, codes)
        return codes

    codes = _until_still(turn_each, support.encode(x).flatten(1), rounds)
    return log_p(codes).double(), support.decode(codes).reshape(x.shape)


def _climb_rbm(rbm: RBM, x: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    W, a, b = (p.detach().double() for p in (rbm.W, rbm.a, rbm.b))

    def turn_all(x: Tensor) -> Tensor:
        # x·(a + Wq) + b·q + entropy(q) is at most log p̃(x), and equal at q = p(h | x): what
        # raises it at this q raises log p̃
        slope = a + torch.sigmoid(x @ W + b) @ W.T
        return torch.where(slope.abs() > 1e-9, (slope > 0).double(), x)

    def turn_each(x: Tensor) -> Tensor:
        x, activation = x.clone(), x @ W + b
        hidden = softplus(activation).sum(1)
        for i, (weights, bias) in enumerate(zip(W.unbind(), a.unbind(), strict=True)):
            change = 1 - 2 * x[:, i]  # of this bit, if it turns
            turned = torch.addcmul(activation, change[:, None], weights)
            turned_hidden = softplus(turned).sum(1)
            better = turned_hidden - hidden + change * bias > _noise(hidden)
            hidden = torch.where(better, turned_hidden, hidden)
            activation = torch.where(better[:, None], turned, activation)
            x[:, i] += better * change
        return x

    x = _until_still(turn_each, _until_still(turn_all, x.double(), rounds), rounds)
    return x @ a + softplus(x @ W + b).sum(1), x.to(rbm.W.dtype)


def _until_still(round_of: Callable[[Tensor], Tensor], x: Tensor, rounds: int) -> Tensor:
    r"""Rounds of the rows that still move."""
    x, rows = x.clone(), torch.arange(len(x), device=x.device)
    for _ in range(rounds):
        if not len(rows):
            break
        before = x[rows]
        x[rows] = after = round_of(before)
        rows = rows[(after != before).any(1)]
    return x


def _noise(value: Tensor) -> Tensor:
    r"""What rounding may add to log p̃; less is no gain, or a climb might go in circles."""
    return 8 * torch.finfo(value.dtype).eps * value.abs().nan_to_num(0, 0, 0).clamp_min(1)
