r"""What one draw looks like: its variables, their shapes and names; and the arrays they are in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X
from limbeck.errors import ArgumentError

__all__ = ["Array", "Structure", "as_array", "as_parts", "as_tensor", "choose", "group"]

Array: TypeAlias = np.ndarray[Any, Any] | Tensor
ACCEPTED = "an array of real numbers"


def part_name(name: str, argument: str = "posterior") -> str:
    r"""How an error names a variable; '' is a bare array."""
    return f"{argument}[{name!r}]" if name else argument


def as_array(value: object, argument: str) -> Array:
    r"""The numbers of one variable, not copied: of a tensor, or of whatever NumPy can read."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_complex():
            raise ArgumentError(argument, f"a {value.layout} tensor of {value.dtype}", ACCEPTED)
        return value.detach()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as reason:
        received = f"a {type(value).__name__} that is no array ({reason})"
        raise ArgumentError(argument, received, ACCEPTED) from None
    if np.ma.is_masked(value):
        raise ArgumentError(argument, "masked values", ACCEPTED)
    if array.dtype.kind not in "biuf":
        received = f"a {type(value).__name__}" if array.ndim == 0 else f"values of {array.dtype}"
        raise ArgumentError(argument, received, ACCEPTED)
    return array


def is_whole(array: Array) -> bool:
    r"""Whether these are integers or booleans."""
    if isinstance(array, Tensor):
        return not array.is_floating_point()
    return array.dtype.kind != "f"


def common_dtype(arrays: Iterable[Array]) -> torch.dtype:
    r"""The floating type that holds them all; torch's default one if all are whole numbers."""
    common = None
    for array in arrays:
        if is_whole(array):
            continue
        if isinstance(array, Tensor):
            dtype = array.dtype
        else:
            dtype = {2: torch.float16, 4: torch.float32}.get(array.itemsize, torch.float64)
        common = dtype if common is None else torch.promote_types(common, dtype)
    return common or torch.get_default_dtype()


def as_tensor(array: Array, dtype: torch.dtype, device: torch.device) -> Tensor:
    r"""The same numbers as a tensor, in the same memory where torch can use it."""
    if isinstance(array, Tensor):
        return array.to(device, dtype)
    # Torch has no long doubles and hardly any unsigned integers, and needs memory that is
    # writable, aligned, in the machine's byte order and with strides that go forward.
    narrow = array.dtype.kind == "f" and array.itemsize <= 8
    kind = array.dtype.newbyteorder("=") if narrow else np.dtype(np.float64)
    usable = np.require(array, kind, ["A", "W"])
    if any(stride < 0 or stride % usable.itemsize for stride in usable.strides):
        usable = usable.copy()
    return torch.from_numpy(usable).to(device, dtype)


def as_parts(draws: X) -> dict[str, Tensor]:
    r"""Draws as tensors by name; vectors have the name ''."""
    return {"": draws} if isinstance(draws, Tensor) else draws


@dataclass(frozen=True)
class Structure:
    r"""Names and shapes, and the way between draws that have them and rows of numbers.

    The name of a vector is "". Leading axes are kept. Only shapes are read, so that both ways can
    be compiled and mapped.

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
        r"""The number of values of each variable in one draw."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def dim(self) -> int:
        r"""The number of values in one draw."""
        return sum(self.sizes)

    def flatten(self, draws: X) -> Tensor:
        r"""Draws, a tensor (..., dim) or by name tensors (..., *shape), as rows (..., dim)."""
        parts = as_parts(draws)
        if parts.keys() != set(self.names):
            received = "a bare tensor" if "" in parts else f"draws of {', '.join(parts)}"
            raise ArgumentError("draws", received, f"draws of {self}")
        rows = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            part, leading = parts[name], parts[name].ndim - len(shape)
            if leading < 0 or part.shape[leading:] != shape:
                received = f"shape {tuple(part.shape)}" + (f" of {name!r}" if name else "")
                raise ArgumentError("draws", received, f"shape (..., {', '.join(map(str, shape))})")
            rows.append(part.reshape((*part.shape[:leading], math.prod(shape))))
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
        r"""The name of a number of a row, as 'alpha[3]'."""
        name, place = self.place(index)
        return f"{name or 'draw'}{list(place)}" if place else name

    def spec(self) -> dict[str, Any]:
        r"""The structure as JSON can hold it."""
        return {"names": list(self.names), "shapes": [list(shape) for shape in self.shapes]}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Structure:
        r"""The structure that `spec` describes."""
        return cls(tuple(spec["names"]), tuple(tuple(shape) for shape in spec["shapes"]))

    def __str__(self) -> str:
        if self.vector:
            return f"a vector of {self.dim}"
        pairs = zip(self.names, self.shapes, strict=True)
        return ", ".join(f"{name} {shape}" for name, shape in pairs)


def choose(known: Iterable[str], var_names: str | Sequence[str] | None) -> list[str]:
    r"""The selected names, in their order; '~' before all of them leaves them out.

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


def group(value: object) -> dict[str, Any] | None:
    r"""The variables of a dict or an xarray data set, or those under "posterior", as of ArviZ."""
    variables = _variables_of(value)
    if isinstance(value, Mapping) or hasattr(value, "__getitem__"):
        try:
            inner = _variables_of(value["posterior"])
        except Exception:  # objects have their own ways to say that there is no such thing
            inner = None
        variables = variables if inner is None else inner
    if variables is None:
        return None
    by_name = {name: variables[name] for name in variables}
    groups = [name for name, variable in by_name.items() if _variables_of(variable) is not None]
    if not by_name or groups or not all(isinstance(name, str) and name for name in by_name):
        outer: Iterable[Any] = value if isinstance(value, Iterable) else ()
        names = ", ".join(map(repr, by_name)) or ", ".join(map(repr, outer)) or "nothing"
        received = f"a {type(value).__name__} of {names}"
        raise ArgumentError("posterior", received, "arrays by name, or such under 'posterior'")
    return by_name


def _variables_of(value: object) -> Mapping[str, Any] | None:
    data = getattr(value, "data_vars", None)
    data = data if isinstance(data, Mapping) else value
    return data if isinstance(data, Mapping) else None
