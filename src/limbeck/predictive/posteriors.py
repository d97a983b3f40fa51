r"""Draws as they are condensed: placed, looked at, and taken one by one."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from limbeck.core.batch import X
from limbeck.draws.diagnostics import Diagnostics
from limbeck.draws.stored import Draws
from limbeck.draws.stream import Stream
from limbeck.draws.structure import Structure
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset
from limbeck.predictive.base import random

__all__ = [
    "DrawSource",
    "Picked",
    "Recorded",
    "bytes_of",
    "diagnosed",
    "few",
    "floating_type",
    "is_online",
    "outside",
    "placed",
    "strata",
]

FEW = 8
r"""Draws that a function is tried at."""

IN_MEMORY = 2**30
r"""Bytes of stored draws from which on they are used one by one and not averaged over."""


RECORDED = (1000, 2**26)
r"""Draws of a stream that are kept to compare with, at most; and their bytes, at most."""


class DrawSource(Protocol):
    r"""Where fresh draws come from: a `Stream`, or stored draws that are picked at random.

    Attributes:
        used: Draws that were handed out.
    """

    used: int

    @property
    def structure(self) -> Structure:
        r"""What one draw looks like."""

    def next(self, n: int) -> X:
        r"""The next n draws, (n, ...) each."""

    def state_dict(self) -> dict[str, Tensor]:
        r"""All that is needed to go on as if never interrupted."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Go on from where `state_dict` was taken."""


class Picked:
    r"""Stored draws at random, so that their mean is the average over all of them.

    Arguments:
        draws: The draws, which stay where they are: those that are picked are converted.
        seed: The generator's seed.
    """

    def __init__(self, draws: Draws, seed: int = 0) -> None:
        self.draws, self.structure = draws, draws.structure
        self.generator = torch.Generator().manual_seed(seed)
        self.used = 0

    def next(self, n: int) -> X:
        self.used += n
        return self.draws.take(torch.randint(self.draws.count, (n,), generator=self.generator))

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state(), "used": torch.tensor(self.used)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.used = int(state["used"])


class Recorded:
    r"""A stream of which some draws are kept, all with the same chance, in constant memory.

    By these a student is compared after training, without further draws of the chain.

    Arguments:
        stream: The stream.
        seed: Of the choice.
    """

    def __init__(self, stream: Stream, seed: int = 0) -> None:
        self.stream, self.used = stream, stream.used
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: Tensor | None = None  # (kept, dim)
        self.seen = 0

    @property
    def structure(self) -> Structure:
        return self.stream.structure

    def next(self, n: int) -> X:
        draws = self.stream.next(n)
        self.used = self.stream.used
        self._record(self.structure.flatten(draws))
        return draws

    def stored(self) -> Draws | None:
        r"""The draws that were kept; None if there were none."""
        if self.rows is None:
            return None
        parts = self.structure.unflatten(self.rows[: self.seen])
        named = {"": parts} if isinstance(parts, Tensor) else parts
        return Draws({name: part[None] for name, part in named.items()})

    def state_dict(self) -> dict[str, Tensor]:
        state = self.stream.state_dict() | {"record.generator": self.generator.get_state()}
        if self.rows is not None:
            state |= {"record.rows": self.rows.clone(), "record.seen": torch.tensor(self.seen)}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.stream.load_state_dict(state)
        self.used = self.stream.used
        if "record.generator" in state:
            self.generator.set_state(state["record.generator"].cpu())
        if "record.rows" in state:
            self.rows, self.seen = state["record.rows"].clone(), int(state["record.seen"])

    def _record(self, flat: Tensor) -> None:
        r"""Reservoir sampling: the i-th draw takes a random one of i places, if there is such."""
        n = len(flat)
        if self.rows is None:
            most, size = RECORDED
            count = max(2, min(most, size // max(1, flat[0].numel() * flat.element_size())))
            self.rows = flat.new_empty(count, flat.shape[1])
        number = torch.arange(self.seen, self.seen + n)
        place = torch.rand(n, dtype=torch.float64, generator=self.generator) * (number + 1)
        place = torch.where(number < len(self.rows), number, place.long())
        self.seen += n
        chosen = {int(place[i]): int(i) for i in (place < len(self.rows)).nonzero()[:, 0]}
        if chosen:
            self.rows[[*chosen]] = flat[[*chosen.values()]].detach()


def strata(count: int, parts: int, generator: torch.Generator | None) -> Tensor:
    r"""One number of each of `parts` even pieces of 0 … count − 1, at random.

    >>> strata(4, 8, torch.Generator().manual_seed(0)).tolist()
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    places = torch.arange(parts, dtype=torch.float64)
    places += random(torch.rand, (parts,), places, generator)
    return (places * (count / parts)).long().clamp_max(count - 1)


def is_online(online: bool | str, draws: Draws | Stream) -> bool:
    r"""Whether to use one draw an input: said by the user, or by what the draws are."""
    if online not in (True, False, "auto"):
        raise ArgumentError.unknown("online", online, ("auto", "True", "False"))
    if isinstance(draws, Stream):
        if online is False:
            raise ArgumentError("online", False, "True or 'auto' for a stream, which is not kept")
        return True
    if online == "auto":
        return bytes_of(draws.count, draws.structure, draws.dtype) > IN_MEMORY
    return bool(online)


def bytes_of(count: int, structure: Structure, dtype: torch.dtype) -> int:
    r"""The bytes of so many draws."""
    return count * structure.dim * torch.empty(0, dtype=dtype).element_size()


def floating_type(inputs: Any, draws: Draws | Stream | None, student: Any) -> torch.dtype:
    r"""The student's floating type, or that of tensors that were given, or torch's default."""
    held: list[Any] = list(student.parameters()) if isinstance(student, nn.Module) else []
    given = inputs.x if isinstance(inputs, Dataset) else inputs
    held += list(given.values()) if isinstance(given, dict) else [given]
    held += list(draws.parts.values()) if isinstance(draws, Draws) else []
    tensors = (each for each in held if isinstance(each, Tensor) and each.is_floating_point())
    return next((tensor.dtype for tensor in tensors), torch.get_default_dtype())


def placed(draws: Draws | Stream, place: torch.device, dtype: torch.dtype) -> Draws | Stream:
    r"""Draws that are given on a device and of a floating type, without taking any."""
    if isinstance(draws, Stream):
        return draws.to(place, dtype)
    return Draws(draws.parts, dtype, place, draws.notes)


def few(draws: Draws | Stream) -> X:
    r"""A few draws to try a function at; those of a stream do not come again."""
    if isinstance(draws, Stream):
        return draws.next(FEW)
    return draws.take(torch.linspace(0, draws.count - 1, min(FEW, draws.count)).long())


def diagnosed(draws: Draws | Stream) -> Diagnostics | None:
    r"""R̂ and effective sizes of draws; reasons to distrust them are warned of."""
    found = draws.diagnostics()
    if found is not None and found.warning is not None:
        warnings.warn(found.warning, stacklevel=outside())
    return found


def outside() -> int:
    r"""How far up the user's own line is, as `warnings.warn` counts from whoever calls this."""
    level, frame = 1, inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "limbeck":
        level, frame = level + 1, frame.f_back
    return level
