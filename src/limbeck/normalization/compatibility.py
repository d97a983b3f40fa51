r"""Whether a target and a student fit together, before anything runs; and a student by default."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.models.nade import NADE
from limbeck.normalization.repeatability import EVENTS, check_repeatable
from limbeck.supports import Support

__all__ = ["check_student", "check_target", "default_student"]

LOOK = 8
r"""Events at which log densities are looked at."""

HIDDEN = (16, 500)
r"""The fewest and the most hidden units of a student by default."""


def check_target(target: Any, chains: bool = True) -> None:
    r"""Refuse a target that lacks something, or whose log density is no number at its starts.

    Nor may it have another value at the same event when it is evaluated again, in eval mode.

    Arguments:
        target: What should follow `limbeck.models.energy.Target`.
        chains: Whether chains must run on it.
    """
    wanted = ["log_unnormalized", *(["advance"] if chains else [])]
    missing = [name for name in wanted if not callable(getattr(target, name, None))]
    if not isinstance(getattr(target, "support", None), Support):
        missing.append("support")
    if missing:
        expected = "an lb.RBM, an lb.Energy, or anything with a support, log_unnormalized(x) and "
        expected += "advance(x, sweeps, generator)"
        if hasattr(target, "intercept_visible_"):  # scikit-learn's
            expected = "lb.RBM(m.components_.T, m.intercept_visible_, m.intercept_hidden_) of it"
        received = f"an object of type {type(target).__name__} without {' and '.join(missing)}"
        raise ArgumentError("target", received, expected)
    x = _events(target)
    with torch.no_grad(), evaluating(target):
        found = target.log_unnormalized(x[:LOOK])
    if not isinstance(found, Tensor) or found.shape != (LOOK,):
        kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        received = f"log densities {kind} of {LOOK} events"
        raise ArgumentError("target", received, f"a tensor of shape ({LOOK},)")
    if found.isnan().any():
        raise ArgumentError("target", "log densities that are NaN", "numbers, or −∞")
    with evaluating(target):
        check_repeatable(target.log_unnormalized, x, "target")


def check_student(student: Any, target: Any, samples: bool = False) -> None:
    r"""Refuse a student that is no density over the target's support.

    Arguments:
        student: What should be a module with `log_prob`.
        target: A target that has been checked.
        samples: Whether it must have `sample` too.
    """
    wanted = ["log_prob", *(["sample"] if samples else [])]
    missing = [name for name in wanted if not callable(getattr(student, name, None))]
    if not isinstance(student, nn.Module) or missing:
        kind = f"an object of type {type(student).__name__}"
        received = f"{kind} without {' and '.join(missing)}" if missing else kind
        raise ArgumentError("student", received, f"a torch module with {' and '.join(wanted)}")
    support = getattr(student, "support", None)
    if isinstance(support, Support) and support != target.support:
        expected = f"one over {target.support!r}, the target's support (support=target.support)"
        raise ArgumentError("student", f"one over {support!r}", expected)


def _events(target: Any) -> Tensor:
    r"""A few events of the support, where the target expects them."""
    held = [*target.parameters(), *target.buffers()] if isinstance(target, nn.Module) else []
    like = next((t for t in held if t.is_floating_point()), torch.empty(0))
    x: Tensor = target.support.start(EVENTS, torch.Generator().manual_seed(0))
    return x.to(like.device, like.dtype)


def default_student(target: Any, seed: int) -> NADE:
    r"""A NADE over the target's support, with as many hidden units as the target, if it has any."""
    support = target.support
    if not support.discrete:
        received = f"None, for a target over {support!r}"
        raise ArgumentError("student", received, _over_numbers(support.size))
    least, most = HIDDEN
    hidden = getattr(target, "hidden", None)
    if not isinstance(hidden, int):
        hidden = min(max(2 * support.size, least), most)
    held = target.parameters() if isinstance(target, nn.Module) else []
    dtype = next((p.dtype for p in held if p.is_floating_point()), None)
    generator = torch.Generator().manual_seed(seed)
    return NADE(support.size, hidden, support=support, dtype=dtype, generator=generator)


def _over_numbers(size: int) -> str:
    return f"a module with log_prob and sample, as lb.GaussianMixture(10, {size}) or a Flow({size})"
