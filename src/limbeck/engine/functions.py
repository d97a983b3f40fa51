r"""A student's own `torch.autograd.Function`s, whose derivatives the compiler would lose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Function

from limbeck.core.objective import Plan
from limbeck.core.update import Update

__all__ = ["functions_of"]


def functions_of(update: Update, plan: Plan) -> list[str]:
    r"""Names of the functions with a backward of their own that a step calls.

    Under `torch.func` the compiler traces a function's forward and differentiates that: it says
    nothing, and a straight-through estimator, say, would train on other gradients. Functions that
    hide themselves from the compiler, and so keep their derivatives, say `traceable = True`.
    """
    gradient = getattr(update, "gradient", None)
    if gradient is None:
        return []
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), _watched() as seen:
        gradient(plan)
    return sorted({each.__name__ for each in seen if not getattr(each, "traceable", False)})


@contextmanager
def _watched() -> Iterator[list[Any]]:
    r"""What functions are applied as long as it lasts."""
    seen: list[Any] = []
    usual = Function.__dict__["apply"]

    def apply(cls: Any, *arguments: Any, **named: Any) -> Any:
        seen.append(cls)
        return usual.__get__(None, cls)(*arguments, **named)

    Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        Function.apply = usual  # type: ignore[method-assign]
