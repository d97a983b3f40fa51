r"""A function of one draw over a few draws: `torch.vmap`, without what that does for any tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from limbeck.core.batch import X, map_tensors, rows
from limbeck.predictive.base import D, mapped

__all__ = ["over_draws"]

try:
    from torch._C._functorch import (
        _add_batch_dim,
        _remove_batch_dim,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
    )
except ImportError:  # what torch.vmap is made of has no promise to stay
    BARE = False
else:
    BARE = True


def over_draws(function: Callable[[X], D], draws: X) -> D:
    r"""What a function says of each draw: parameters (S, ...).

    The same operations as `torch.vmap` calls, so the same numbers and derivatives. But `vmap` takes
    ten times as long to look at arguments and results of unknown kinds as a small bag takes to
    predict; here both are known.

    Arguments:
        function: From one draw to a distribution whose parameters are tensors.
        draws: A tensor (S, ...), or by name such tensors.
    """
    if not BARE or torch.compiler.is_compiling():
        return torch.vmap(function)(draws)
    _load()
    count = rows(draws)
    level = _vmap_increment_nesting(count, "error")
    try:
        found = function(map_tensors(lambda part: _add_batch_dim(part, 0, level), draws))
        return mapped(found, lambda value, dims: _remove_batch_dim(value, level, count, 0))
    finally:
        _vmap_decrement_nesting()


@cache
def _load() -> None:
    r"""Let torch load the rules that it maps some operations by, which its own `vmap` does."""
    torch.vmap(torch.clone)(torch.zeros(1))
