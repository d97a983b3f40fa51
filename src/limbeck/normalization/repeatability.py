r"""Whether log densities depend on their events alone: no dropout, noise or batch statistics."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from limbeck.errors import ArgumentError

__all__ = ["EVENTS", "check_repeatable", "compare", "recorded_warnings"]

ABOUT_CODE = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
    SyntaxWarning,
)
r"""Kinds of warnings that say nothing about numbers."""


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    r"""A list that holds, afterwards, what was warned of: one text for each place in the code.

    The warnings themselves are raised again at the end, once for each place, and meet the filters
    that are set outside. A filter that hides a warning does not hide it from the list.
    """
    texts: list[str] = []
    raised: dict[tuple[type[Warning], str, int], warnings.WarningMessage] = {}
    try:
        with warnings.catch_warnings(record=True) as every:
            warnings.simplefilter("always")
            yield texts
    except BaseException:
        with contextlib.suppress(Warning):  # the error is more important than what came before
            _raise_again(every)
        raise
    for each in every:
        raised.setdefault((each.category, each.filename, each.lineno), each)
    texts += [
        f"a warning was raised while the estimate ran: {str(each.message).strip().rstrip('.')}"
        for each in raised.values()
        if not issubclass(each.category, ABOUT_CODE) and not _of_the_compiler(each.filename)
    ]
    _raise_again(list(raised.values()))


def _raise_again(every: list[warnings.WarningMessage]) -> None:
    for each in every:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _of_the_compiler(filename: str) -> bool:
    r"""Whether it comes from torch's own compiler, which warns of speed."""
    return "/torch/_" in filename.replace("\\", "/")


EVENTS = 128
r"""Events at which log densities are evaluated again."""

ROUNDING = {"cpu": 1e-5}
r"""Differences, relative to the largest value, that rounding explains; on a GPU the order of a sum
may change from call to call, and 1e-4 is taken."""

BATCH_ROUNDING, BATCH_SPREAD = 1e-4, 0.02
r"""The same for two batches of different size, and a share of the values' standard deviation."""

ACCEPTED = (
    "the same value for the same event: switch dropout and noise off; a module that is the target "
    "or its fn= is put into eval mode, but one that a function uses needs .eval() from you"
)


@torch.no_grad()
def check_repeatable(log_density: Callable[[Tensor], Tensor], x: Tensor, argument: str) -> Tensor:
    r"""Refuse log densities that change from call to call, or with the rest of the batch.

    Arguments:
        log_density: log p̃ (n,) of events (n, *shape).
        x: Events to evaluate twice; the first of them a third time, in a smaller batch.
        argument: The argument to name in the error.

    Returns:
        The values at x.
    """
    x = x[:EVENTS]
    first = log_density(x)
    compare(first, log_density(x), argument)
    few = max(1, len(x) // 8)
    part = log_density(x[:few])
    finite = first[first.isfinite()].double()
    spread = float(finite.std()) if len(finite) > 1 else 0.0
    limit = BATCH_ROUNDING * _scale(first) + BATCH_SPREAD * spread
    if (gap := _gap(first[:few], part)) > limit:
        received = (
            f"log densities that depend on the other events of a batch (by up to {gap:.3g}: "
            f"{few} events alone, and among {len(x)})"
        )
        raise ArgumentError(argument, received, f"{ACCEPTED}, and so does batch normalization")
    return first


def compare(first: Tensor, again: Tensor, argument: str) -> None:
    r"""Refuse two evaluations of the same events that differ by more than rounding."""
    gap = _gap(first, again)
    if gap > ROUNDING.get(first.device.type, 1e-4) * _scale(first):
        received = f"log densities that differ between two evaluations, by up to {gap:.3g}"
        raise ArgumentError(argument, received, ACCEPTED)


def _gap(one: Tensor, other: Tensor) -> float:
    r"""The largest difference; none where both are NaN or the same infinity."""
    same = (one == other) | (one.isnan() & other.isnan())
    gap = torch.where(same, 0.0, (one.double() - other.double()).abs())
    return float(gap.nan_to_num(math.inf, math.inf).amax()) if gap.numel() else 0.0


def _scale(values: Tensor) -> float:
    finite = values[values.isfinite()].double().abs()
    return max(1.0, float(finite.max())) if len(finite) else 1.0
