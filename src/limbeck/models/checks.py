r"""Checks that models share: sizes, types, input tensors and specs."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from limbeck import arguments
from limbeck.arrays import dtype_name, strip_prefix
from limbeck.errors import ArgumentError
from limbeck.records import check_depth, read_fields
from limbeck.training.result import spec_of

Device = arguments.Device | None  # None is torch's default
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
    dense = isinstance(x, Tensor) and x.layout == torch.strided and not x.is_meta
    if not isinstance(x, Tensor) or not dense or x.ndim != 2 or x.shape[1] != width:
        received = f"shape {tuple(x.shape)}, {x.layout}" if isinstance(x, Tensor) else str(type(x))
        expected = f"a tensor of shape (n, {width})" + (" or (n,)" if vectors else "")
        raise ArgumentError(argument, received, expected)
    return x


DtypeName = Literal["float16", "bfloat16", "float32", "float64"]
Sizes = tuple[int, ...]
Inner = dict[str, Any]  # the spec of a module inside another


def count_numbers(tensors: Mapping[str, Tensor]) -> int:
    r"""How many numbers a model of a file's tensors may have: as many, and a million more.

    The million is for what a file does not hold, such as the indicators of categories.
    """
    return 2**20 + sum(tensor.numel() for tensor in tensors.values())


class Specified(nn.Module):
    r"""A module that a spec describes, but for its weights: its `fields` are arguments."""

    fields: ClassVar[Mapping[str, Any]] = {}  # their types
    optional: ClassVar[Sequence[str]] = ()  # those that files of before may lack

    @staticmethod
    def _least_size(fields: Mapping[str, Any]) -> int:
        r"""How many numbers a module with these fields has, at least, without those inside it."""
        return 0

    def spec(self) -> dict[str, Any]:
        r"""The settings without the weights, for JSON; modules inside must be limbeck's own."""
        values: dict[str, Any] = {"type": type(self).__name__}
        for name in self.fields:
            value = getattr(self, name, None)
            if isinstance(value, nn.ModuleList):
                value = [self._spec_of(name, part) for part in value]
            elif isinstance(value, nn.Module):
                value = self._spec_of(name, value)
            value = dtype_name(next(self.parameters())) if name == "dtype" else value
            values[name] = list(value) if isinstance(value, tuple) else value
        return values

    def _spec_of(self, name: str, part: nn.Module) -> dict[str, Any]:
        if (spec := spec_of(part)) is None:
            raise ArgumentError(name, f"a {type(part).__name__}", "one of limbeck's own models")
        return spec

    def extra_repr(self) -> str:
        values = ((name, getattr(self, name, None)) for name in self.fields)
        hidden = (Tensor, nn.Module, type(None))
        return ", ".join(f"{name}={v!r}" for name, v in values if not isinstance(v, hidden))

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        r"""Check tensors that are to be loaded, and make room for those that may be left out."""
        for name, module in self.named_children():
            if callable(make_room := getattr(module, "make_room", None)):
                make_room(strip_prefix(f"{name}.", tensors))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.make_room(strip_prefix(prefix, state))
        super()._load_from_state_dict(state, prefix, *rest)

    @classmethod
    def _make(cls, fields: dict[str, Any]) -> Self:
        r"""A module of the fields of a spec, and of further arguments."""
        return cls(**fields)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], most: int | None = None, **options: Any) -> Self:
        r"""A module of the same shape, freshly initialised, with at most so many numbers."""
        from limbeck.models import from_spec

        if not isinstance(spec, Mapping) or spec.get("type") != cls.__name__:
            raise ArgumentError("spec", reprlib.repr(spec), f"the result of {cls.__name__}.spec()")
        check_depth(spec, "spec")
        fields = {name: value for name, value in spec.items() if name != "type"}
        fields = read_fields(fields, cls.fields, "spec", cls.optional)
        if "dtype" in fields:
            fields["dtype"] = getattr(torch, fields["dtype"])
        if most is not None and (size := cls._least_size(fields)) > most:  # before allocation
            raise ArgumentError("spec", f"a model of {size:,} numbers", f"at most {most:,}")
        for name, value in fields.items():
            parts = value if isinstance(value, list) else [value]
            for place, part in enumerate(parts):
                if isinstance(part, dict):
                    parts[place] = from_spec(part, most)
                    numbers = sum(p.numel() for p in parts[place].parameters())
                    most = None if most is None else most - numbers
            fields[name] = parts if isinstance(value, list) else parts[0]
        return cls._make(fields | options)
