r"""What one draw looks like: its variables, their shapes and names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X
from limbeck.errors import ArgumentError

__all__ = ["Found", "Structure", "as_parts", "choose", "group"]


def as_parts(draws: X) -> dict[str, Tensor]:
    r"""Draws as tensors by name; vectors have the name ''."""
    return {"": draws} if isinstance(draws, Tensor) else draws


@dataclass(frozen=True)
class Structure:
    r"""Names and shapes, and the way between draws that have them and rows of numbers.

    Whatever axes come first (draws; chains and draws; none under `vmap`) are kept. Nothing but
    shapes is looked at, so that both ways can be compiled and mapped.

    Arguments:
        names: Names of the variables, in the order of the numbers in a row; ("",) for a vector.
        shapes: The shape of each variable in one draw.

    >>> structure = Structure(("alpha", "sigma"), ((2, 2), ()))
    >>> structure.dim, structure.label(2), structure.label(4)
    (5, 'alpha[1, 0]', 'sigma')
    >>> draws = structure.unflatten(torch.arange(10.0).reshape(2, 5))
    >>> draws["alpha"].shape, draws["sigma"]
    (torch.Size([2, 2, 2]), tensor([4., 9.]))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        pairs = dict(zip(self.names, self.shapes, strict=False))
        alone = "" not in pairs or (len(pairs) == 1 and len(pairs[""]) == 1)
        if not pairs or len(self.names) != len(self.shapes) or len(pairs) < len(self.names):
            received = f"the names {list(self.names)} for {len(self.shapes)} shapes"
            raise ArgumentError("structure", received, "a different name for each shape")
        if not alone:
            raise ArgumentError("structure", str(pairs), "one vector, or variables with names")

    @classmethod
    def of(cls, draws: Mapping[str, Any], leading: int = 1) -> Structure:
        r"""The structure of arrays by name, without the axes that come first."""
        return cls(tuple(draws), tuple(tuple(part.shape[leading:]) for part in draws.values()))

    @property
    def vector(self) -> bool:
        r"""Whether a draw is a bare vector."""
        return self.names == ("",)

    @property
    def sizes(self) -> list[int]:
        r"""How many numbers each variable has in one draw."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def dim(self) -> int:
        r"""How many numbers there are in one draw."""
        return sum(self.sizes)

    def flatten(self, draws: X) -> Tensor:
        r"""Draws as rows of numbers.

        Arguments:
            draws: A tensor (..., dim), or by name tensors (..., *shape).

        Returns:
            A tensor (..., dim).
        """
        rows = [
            part.reshape((*part.shape[: part.ndim - len(shape)], math.prod(shape)))
            for part, shape in self._parts(draws)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def unflatten(self, flat: Tensor) -> X:
        r"""Rows of numbers (..., dim) as draws: the inverse of `flatten`."""
        if flat.shape[-1:] != (self.dim,):
            raise ArgumentError("flat", f"shape {tuple(flat.shape)}", f"shape (..., {self.dim})")
        if self.vector:
            return flat
        parts = zip(self.names, self.shapes, flat.split(self.sizes, -1), strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)) for name, shape, part in parts}

    def pack(self, parts: Mapping[str, Tensor]) -> X:
        r"""Tensors by name as draws: a vector's single tensor, bare, or a dict."""
        return parts[""] if self.vector else dict(parts)

    def place(self, index: int) -> tuple[str, tuple[int, ...]]:
        r"""The variable that a number of a row belongs to, and its place in there."""
        for name, shape, size in zip(self.names, self.shapes, self.sizes, strict=True):
            if index < size:
                return name, tuple(map(int, np.unravel_index(index, shape)))
            index -= size
        raise IndexError(index)

    def label(self, index: int) -> str:
        r"""What people call a number of a row."""
        name, place = self.place(index)
        return f"{name or 'draw'}{list(place)}" if place else name

    def spec(self) -> dict[str, Any]:
        r"""The structure as JSON can hold it."""
        return {"names": list(self.names), "shapes": [list(shape) for shape in self.shapes]}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Structure:
        r"""The structure that `spec` describes."""
        return cls(tuple(spec["names"]), tuple(tuple(shape) for shape in spec["shapes"]))

    def _parts(self, draws: X) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        parts = as_parts(draws)
        if parts.keys() != set(self.names):
            received = "a bare tensor" if "" in parts else f"draws of {', '.join(parts)}"
            raise ArgumentError("draws", received, f"draws of {self}")
        for name, shape in zip(self.names, self.shapes, strict=True):
            part = parts[name]
            if part.ndim < len(shape) or part.shape[part.ndim - len(shape) :] != shape:
                received = f"shape {tuple(part.shape)}" + (f" of {name!r}" if name else "")
                raise ArgumentError("draws", received, f"shape (..., {', '.join(map(str, shape))})")
            yield part, shape

    def __str__(self) -> str:
        if self.vector:
            return f"a vector of {self.dim}"
        pairs = zip(self.names, self.shapes, strict=True)
        return ", ".join(f"{name} {shape}" for name, shape in pairs)


class Found(NamedTuple):
    r"""What was found in a posterior.

    Attributes:
        variables: Those that are wanted, by name; a bare array has the name ''.
        layout: How their axes are to be read.
        notes: What there is to tell the user.
    """

    variables: Mapping[str, Any]
    layout: str
    notes: Sequence[str] = ()


def choose(known: Iterable[str], var_names: str | Sequence[str] | None) -> list[str]:
    r"""The names that are wanted, in the order in which they are.

    Arguments:
        known: All names; only '' for a bare array.
        var_names: Names to take; or, with '~' before each, to leave out; None takes all.

    >>> choose(["alpha", "beta", "mu"], "~mu"), choose(["alpha", "beta"], ["beta", "alpha"])
    (['alpha', 'beta'], ['beta', 'alpha'])
    """
    known = list(known)
    if var_names is None:
        return known
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    if known == [""]:
        raise ArgumentError("var_names", repr(names), "None for draws without names")
    out = [name[1:] for name in names if name not in known and str(name).startswith("~")]
    if out and len(out) < len(names):
        raise ArgumentError("var_names", repr(names), "names to take, or names to leave out by '~'")
    for name in out or names:
        if name not in known:
            raise ArgumentError.unknown("var_names", name, known)
    chosen = [name for name in known if name not in out] if out else list(dict.fromkeys(names))
    if not chosen:
        raise ArgumentError("var_names", repr(names), f"at least one of {', '.join(known)}")
    return chosen


def group(value: Any) -> dict[str, Any] | None:
    r"""The variables of a dict, an xarray data set, or what has them under "posterior".

    ArviZ's InferenceData and xarray's DataTree are such. None is said of anything else.
    """
    inner = _posterior_of(value)
    variables = _variables_of(value if inner is None else inner)
    if variables is None:
        return None
    found = {name: variables[name] for name in variables}
    groups = [name for name, variable in found.items() if _variables_of(variable) is not None]
    if not found or groups or not all(isinstance(name, str) and name for name in found):
        held = ", ".join(map(repr, found)) or ", ".join(map(repr, value)) or "nothing"
        received = f"a {type(value).__name__} of {held}"
        raise ArgumentError("posterior", received, "arrays by name, or such under 'posterior'")
    return found


def _variables_of(value: Any) -> Mapping[str, Any] | None:
    own = getattr(value, "data_vars", None)
    own = own if isinstance(own, Mapping) else value
    return own if isinstance(own, Mapping) else None


def _posterior_of(value: Any) -> Any:
    if not hasattr(value, "__getitem__"):
        return None
    try:
        inner = value["posterior"]
    except Exception:  # objects have their own ways to say that there is no such thing
        return None
    return None if _variables_of(inner) is None else inner
