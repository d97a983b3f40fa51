r"""Stored draws of a posterior: their structure, checks and diagnostics."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import integer
from limbeck.arrays import Array, X, as_dict, as_tensor, random
from limbeck.errors import ArgumentError, shown
from limbeck.records import read_record
from limbeck.samplers.diagnostics import disagreement, effective_size, r_hat
from limbeck.storage.files import plain
from limbeck.text import listed

DIAGNOSED_NUMBERS = 10**8  # of more numbers, some coordinates stand for all
Device: TypeAlias = torch.device | str | None


def is_whole(array: Array) -> bool:
    r"""Whether these are integers or booleans."""
    return not as_tensor(array[:0]).is_floating_point()


def common_dtype(arrays: Iterable[Array]) -> torch.dtype:
    r"""The floating type that holds them all; torch's default one if all are whole numbers."""
    dtypes = [as_tensor(array[:0]).dtype for array in arrays if not is_whole(array)]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()


@dataclass(frozen=True)
class Structure:
    r"""Names and shapes of variables, and conversion between draws and rows of numbers.

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
        if not pairs or len(self.names) != len(self.shapes) or len(pairs) < len(self.names):
            received = f"the names {list(self.names)} for {len(self.shapes)} shapes"
            raise ArgumentError("structure", received, "a different name for each shape")
        if "" in pairs and (len(pairs) > 1 or len(pairs[""]) != 1):
            raise ArgumentError("structure", str(pairs), "one vector, or variables with names")

    @classmethod
    def of(cls, draws: Mapping[str, Any], leading: int = 1) -> Structure:
        r"""The structure of arrays by name, without the axes that come first."""
        return cls(tuple(draws), tuple(tuple(part.shape[leading:]) for part in draws.values()))

    @property
    def vector(self) -> bool:
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
        parts = as_dict(draws)
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
        return {"names": list(self.names), "shapes": [list(shape) for shape in self.shapes]}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Structure:
        r"""The structure that a spec describes, which may have other fields too."""
        known = {name: spec.get(name) for name in ("names", "shapes")}
        structure = read_record(cls, known, "structure")
        for size in itertools.chain(*structure.shapes):
            integer("structure.shapes", size, "sizes from 0", least=0)
        return structure

    def __str__(self) -> str:
        if self.vector:
            return f"a vector of {self.dim}"
        pairs = zip(self.names, self.shapes, strict=True)
        return ", ".join(f"{name} {shape}" for name, shape in pairs)


class Diagnostics(NamedTuple):
    r"""R̂ and effective sizes, coordinate by coordinate, and reasons to distrust the draws."""

    names: list[str]  # as 'alpha[3]'
    r_hat: Tensor  # of chains cut in halves; NaN where chains are too short
    ess: Tensor  # of all chains together
    reasons: list[str]  # a sentence each

    def record(self) -> dict[str, Any]:
        r"""The same as JSON can hold it; what is not finite is None."""
        lists = {"r_hat": self.r_hat.tolist(), "ess": self.ess.tolist()}
        record: dict[str, Any] = plain(self._asdict() | lists)
        return record


class Draws:
    r"""Draws by chain, stored in their original form and converted when they are selected.

    Parts are arrays (chain, draw, ...) by name, or one (chain, draw, dim) under ''. A draw's number
    is that of its chain times `per_chain` plus that within the chain.

    >>> draws = Draws({"alpha": torch.zeros(4, 100, 3), "sigma": torch.ones(4, 100)})
    >>> draws.count, draws.take([0, 399])["alpha"].shape, draws.take(7)["sigma"]
    (400, torch.Size([2, 3]), tensor(1.))
    """

    def __init__(
        self,
        parts: Mapping[str, Array],
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.parts = dict(parts)
        arrays = list(self.parts.values())
        self.structure = Structure.of(self.parts, leading=2)
        self.chains, self.per_chain = map(int, arrays[0].shape[:2])
        self.count = self.chains * self.per_chain
        self.dtype = dtype or common_dtype(arrays)
        places = (array.device for array in arrays if isinstance(array, Tensor))
        self.device = device or next(places, torch.device("cpu"))
        self.notes = tuple(notes)

    @classmethod
    def one_chain(cls, draws: X) -> Draws:
        r"""Draws (n, ...) as they were taken, as one chain."""
        return cls({name: part[None] for name, part in as_dict(draws).items()})

    def __len__(self) -> int:
        return self.count

    def take(self, index: int | Sequence[int] | np.ndarray | Tensor) -> X:
        r"""Draws by number, in the structure: (m, ...) each, or one draw for a single number."""
        index = torch.as_tensor(index)
        if index.is_floating_point() and index.numel():
            raise ArgumentError("index", f"numbers of {index.dtype}", "whole numbers, or booleans")
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index.long()
        places: Any = np.divmod(index.cpu().numpy(), self.per_chain)
        chosen = {name: as_tensor(part[places]) for name, part in self.parts.items()}
        return self.structure.pack(
            {name: part.to(self.device, self.dtype) for name, part in chosen.items()}
        )

    def in_time(self, index: Tensor) -> Tensor:
        r"""The numbers of draws by their places in time: all chains at a time, then at the next."""
        return index % self.chains * self.per_chain + index // self.chains

    def over_time(self, count: int, generator: torch.Generator | None) -> X:
        r"""So many draws, evenly spread over time: those of a stream of the same chains."""
        return self.take(self.in_time(strata(self.count, count, generator)))

    def blocks(self, size: int) -> Iterator[X]:
        r"""All draws in order, at most so many at once."""
        for start in range(0, self.count, size):
            yield self.take(torch.arange(start, min(start + size, self.count)))

    def series(self, index: int) -> Tensor:
        r"""One number of all draws, (chains, per_chain)."""
        name, place = self.structure.place(index)
        at: Any = (slice(None), slice(None), *place)
        return as_tensor(self.parts[name][at]).to(self.device, self.dtype)

    @property
    def flat(self) -> Tensor:
        r"""All draws as rows of numbers, (count, dim): a view of a single variable, if possible."""
        rows = [
            as_tensor(part).to(self.device, self.dtype).reshape(self.count, size)
            for part, size in zip(self.parts.values(), self.structure.sizes, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)

    def to(self, device: Device = None, dtype: torch.dtype | None = None) -> Draws:
        r"""The same draws, which are given on a device and of a floating type."""
        device = torch.device(device or self.device)
        return Draws(self.parts, dtype or self.dtype, device, self.notes)

    def diagnostics(self, most: int = 1000) -> Diagnostics:
        r"""R̂ and effective sizes of at most so many coordinates, evenly spread."""
        most = min(most, max(1, DIAGNOSED_NUMBERS // self.count))
        coordinates = spread(self.structure.dim, most)
        names = [self.structure.label(index) for index in coordinates]
        r_hats, sizes = torch.empty(2, len(names), dtype=torch.float64)
        stuck: dict[int, str] = {}  # chains that never moved where others did, with the coordinate
        for place, index in enumerate(coordinates):
            series = self.series(index)
            r_hats[place], sizes[place] = r_hat(series), effective_size(series)
            still = (series == series[:, :1]).all(1)
            integers = is_whole(self.parts[self.structure.place(index)[0]])
            if not integers and self.per_chain >= 4 and not still.all():
                stuck = dict.fromkeys(still.nonzero()[:, 0].tolist(), names[place]) | stuck
        reasons = []
        if stuck:
            reasons.append(
                f"{len(stuck)} of {self.chains} chains are stuck (all draws of "
                f"{stuck[min(stuck)]} are the same there): {listed(sorted(stuck))}"
            )
        if reason := disagreement(names, r_hats):
            reasons.append(f"{reason}: the chains disagree, or are too short to tell")
        return Diagnostics(names, r_hats, sizes, reasons)

    def __repr__(self) -> str:
        return f"Draws({self.chains:,} chains of {self.per_chain:,}: {self.structure})"


def strata(count: int, parts: int, generator: torch.Generator | None) -> Tensor:
    r"""One number of each of `parts` even pieces of 0 … count − 1, at random."""
    places = torch.arange(parts, dtype=torch.float64)
    places += random(torch.rand, (parts,), places, generator)
    return (places * (count / parts)).long().clamp_max(count - 1)


def spread(dim: int, most: int) -> list[int]:
    r"""At most so many of `dim` coordinates, evenly spread."""
    return np.linspace(0, dim - 1, max(1, min(dim, most))).round().astype(int).tolist()


def bad_rows(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Of each variable (m, ...), which of the m draws are not finite, on the CPU."""
    return {
        name: (~part.isfinite()).reshape(len(part), part[0].numel()).any(1).cpu()
        for name, part in parts.items()
    }


def whole_notes(parts: Mapping[str, Array], dtype: torch.dtype) -> list[str]:
    r"""Notes about variables of whole numbers."""
    whole = [name or "the posterior" for name, array in parts.items() if is_whole(array)]
    kind = str(dtype).removeprefix("torch.")
    return [f"{name} is of whole numbers, which become {kind}" for name in whole]


def choose(known: Iterable[str], var_names: str | Sequence[str] | None) -> list[str]:
    r"""The selected names, in their order; '~' before all of them leaves them out."""
    known = list(known)
    if var_names is None:
        return known
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    if known == [""]:
        raise ArgumentError("var_names", shown(names), "None for draws without names")
    out = [name[1:] for name in names if name not in known and str(name).startswith("~")]
    if out and len(out) < len(names):
        expected = "names to take, or names to leave out by '~'"
        raise ArgumentError("var_names", shown(names), expected)
    for name in out or names:
        if name not in known:
            raise ArgumentError.unknown("var_names", name, known)
    chosen = [name for name in known if name not in out] if out else list(dict.fromkeys(names))
    if not chosen:
        raise ArgumentError("var_names", shown(names), f"at least one of {', '.join(known)}")
    return chosen


def group(
    value: object, name: str = "posterior", argument: str = "posterior"
) -> dict[str, Any] | None:
    r"""The variables of a dict or an xarray data set, or those under a name, as of ArviZ."""
    by_name = None
    with contextlib.suppress(Exception):  # of objects' own ways to say that there is no such thing
        by_name = _variables_of(value[name])  # type: ignore[index]
    by_name = _variables_of(value) if by_name is None else by_name
    if by_name is None:
        return None
    nested = any(_variables_of(variable) is not None for variable in by_name.values())
    if not by_name or nested or not all(isinstance(name, str) and name for name in by_name):
        outer: Iterable[Any] = value if isinstance(value, Iterable) else ()
        names = ", ".join(map(repr, by_name)) or ", ".join(map(repr, outer)) or "nothing"
        received = f"a {type(value).__name__} of {names}"
        raise ArgumentError(argument, received, f"arrays by name, or such under {name!r}")
    return by_name


def _variables_of(value: object) -> dict[str, Any] | None:
    data = getattr(value, "data_vars", None)
    data = data if isinstance(data, Mapping) else value
    return {name: data[name] for name in data} if isinstance(data, Mapping) else None
