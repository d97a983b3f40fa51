r"""Batches of draws as the user's iterator gives them: told apart from what is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from limbeck.draws.arrays import Array, as_array, part_name
from limbeck.draws.checking import bad_rows
from limbeck.draws.structure import Structure
from limbeck.errors import ArgumentError

__all__ = ["check_finite", "read_batch"]

ACCEPTED = "a tensor (m, dim), or a dict of tensors (m, ...)"


def read_batch(
    raw: Any, number: int, like: Structure | None, choose: Callable[[Sequence[str]], list[str]]
) -> dict[str, Array]:
    r"""The variables (m, ...) of one batch.

    Arguments:
        raw: What the iterator gave.
        number: The number of the batch, from 1.
        like: The structure that draws must have; None at the first batch.
        choose: Picks among the names of the first batch.
    """
    if raw is None or isinstance(raw, tuple | str):
        raise ArgumentError(_where("", number), f"a {type(raw).__name__}", ACCEPTED)
    walkers = getattr(raw, "coords", None)
    raw = walkers if isinstance(walkers, np.ndarray) else raw  # emcee gives states
    given = raw if isinstance(raw, Mapping) else {"": raw}
    names = choose(list(given)) if like is None else like.names
    arrays: dict[str, Array] = {}
    for name in names:
        if name not in given:
            held = f"only {', '.join(map(repr, given))}" if isinstance(raw, Mapping) else "no names"
            raise ArgumentError(_where(name, number), held, f"draws of {like}")
        arrays[name] = array = as_array(given[name], _where(name, number))
        m = next(iter(arrays.values())).shape[:1]
        wrong = array.ndim == 0 or array.shape[:1] != m or (not name and array.ndim != 2)
        if wrong or array.shape[0] == 0:
            received = f"shape {tuple(array.shape)}" + " beside others" * (len(arrays) > 1)
            accepted = f"{ACCEPTED}, of one length m; a single draw as (1, ...)"
            raise ArgumentError(_where(name, number), received, accepted)
    found = Structure.of(arrays)
    for name, shape, wanted in zip(names, found.shapes, (like or found).shapes, strict=True):
        if shape != wanted:
            accepted = f"{wanted}, as in batch 1"
            raise ArgumentError(_where(name, number), f"draws of shape {shape}", accepted)
    return arrays


def check_finite(parts: Mapping[str, Tensor], number: int) -> None:
    r"""Refuse a batch with NaN or infinite numbers."""
    for name, bad in bad_rows(parts).items():
        if bad.any():
            received = f"NaN or infinite numbers in {int(bad.sum()):,} of {len(bad):,} draws"
            raise ArgumentError(_where(name, number), received, "finite draws")


def _where(name: str, number: int) -> str:
    return f"{part_name(name)} in batch {number}"
