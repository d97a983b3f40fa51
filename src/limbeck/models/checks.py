r"""What all models check alike: sizes, types, input tensors and specs."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Self

import torch
from torch import Tensor, nn

from limbeck.arrays import DTYPES, dtype_name
from limbeck.errors import ArgumentError

Device = torch.device | str | None  # None is torch's default
Generator = torch.Generator | None  # None is torch's global one
Maybe = Tensor | None  # a tensor that may be left out
Pair = tuple[Tensor, Tensor]


def is_count(size: object) -> bool:
    r"""Whether something is a whole number from 1."""
    return isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 1


def flat(x: Tensor) -> Tensor:
    r"""(n, ...) as (n, features): plain Python on static shapes, so that tracers follow it."""
    if not isinstance(x, Tensor):
        raise ArgumentError("x", f"a {type(x).__name__}", "a tensor (n, ...)")
    if x.dim() == 0 or not x.is_floating_point():
        received = f"{x.dtype} of shape {tuple(x.shape)}"
        raise ArgumentError("x", received, "floating-point values (n, ...)")
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)


def matrix(x: object, width: int, argument: str = "x", *, vectors: bool = False) -> Tensor:
    r"""A tensor (n, width), whatever its values; `vectors` also takes (n,) where the width is 1."""
    vectors = vectors and width == 1
    if isinstance(x, Tensor) and vectors and x.ndim == 1:
        x = x.unsqueeze(1)
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != width:
        received = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        expected = f"a tensor of shape (n, {width})" + (" or (n,)" if vectors else "")
        raise ArgumentError(argument, received, expected)
    return x


def spec_fields(
    cls: type, spec: Mapping[str, Any], *names: str, optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    r"""The fields of a spec but its type, with dtype as torch has it; other specs are refused."""
    fields = dict(spec)
    if set(fields) - optional != {"type", *names} or fields.pop("type") != cls.__name__:
        raise ArgumentError("spec", dict(spec), f"what {cls.__name__}.spec() gives")
    if "dtype" in fields:
        if str(fields["dtype"]) not in DTYPES:
            raise ArgumentError.unknown("spec", fields["dtype"], DTYPES)
        fields["dtype"] = DTYPES[fields["dtype"]]
    return fields


class Specified(nn.Module):
    r"""A module that a spec describes, but for its weights: its `fields` are arguments."""

    fields: tuple[str, ...] = ()

    def spec(self) -> dict[str, Any]:
        r"""All but the weights, for JSON."""
        values = {name: getattr(self, name, None) for name in self.fields}
        if "dtype" in values:
            values["dtype"] = dtype_name(next(self.parameters()))
        lists = {k: list(v) for k, v in values.items() if isinstance(v, tuple)}
        return {"type": type(self).__name__, **values, **lists}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **options: Any) -> Self:
        r"""A module of the same shape, freshly initialised."""
        return cls(**spec_fields(cls, spec, *cls.fields), **options)
