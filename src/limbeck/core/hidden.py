r"""Hidden layers of torch modules, read through hooks that compilers can see through."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from limbeck.core.batch import X
from limbeck.errors import ArgumentError

__all__ = ["close_taps", "hidden"]

TAPS = "_limbeck_taps"


def hidden(model: Callable[[X], Tensor], x: X, name: str) -> Tensor:
    r"""The output of a torch module's submodule at x; `close_taps` takes the hooks off again."""
    if not isinstance(model, nn.Module):
        raise ArgumentError("hints", f"a model of type {type(model).__name__}", "torch modules")
    taps = model.__dict__.setdefault(TAPS, {})
    if name not in taps:  # once: compilers see through a hook that is there, not through adding one
        named = dict(model.named_modules())
        if name not in named:
            raise ArgumentError.unknown("hints", name, [known for known in named if known])
        seen: list[Tensor] = []
        taps[name] = seen, named[name].register_forward_hook(lambda m, given, out: seen.append(out))
    seen = taps[name][0]
    seen.clear()
    model(x)
    return seen.pop()


def close_taps(model: object) -> None:
    r"""Take off the hooks by which hidden layers were read."""
    if isinstance(model, nn.Module):
        for _, hook in model.__dict__.pop(TAPS, {}).values():
            hook.remove()
