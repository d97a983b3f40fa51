r"""Draws that are read when they are needed, from a running chain or a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import integer
from limbeck.arrays import Array, X, as_array, as_dict, as_tensor, label, rows, strip_prefix
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.posteriors import draws as stored
from limbeck.posteriors.draws import Device, Diagnostics, Structure, choose
from limbeck.posteriors.files import Choose
from limbeck.samplers.diagnostics import RunningDiagnostics

ACCEPTED = "a tensor (m, dim), or a dict of tensors (m, ...)"
DIAGNOSED_CHAINS = 256  # of more parallel chains, so many are diagnosed


def _where(name: str, number: int) -> str:
    return f"{label('posterior', name)} in batch {number}"


def _read_batch(
    raw: object, number: int, like: Structure | None, choose: Choose
) -> dict[str, Array]:
    r"""The variables (m, ...) of batch `number`, in the structure of the first."""
    if raw is None or isinstance(raw, tuple | str):
        raise ArgumentError(_where("", number), f"a {type(raw).__name__}", ACCEPTED)
    walkers = getattr(raw, "coords", None)
    raw = walkers if isinstance(walkers, np.ndarray) else raw  # emcee gives states
    parts = raw if isinstance(raw, Mapping) else {"": raw}
    shapes = dict(zip(like.names, like.shapes, strict=True)) if like else {}
    arrays: dict[str, Array] = {}
    for name in shapes or choose(list(parts)):
        where = _where(name, number)
        if name not in parts:
            received = ", ".join(map(repr, parts))
            received = f"only {received}" if isinstance(raw, Mapping) else "no names"
            raise ArgumentError(where, received, f"draws of {like}")
        arrays[name] = array = as_array(parts[name], where)
        m = next(iter(arrays.values())).shape[:1]
        wrong = array.ndim == 0 or array.shape[:1] != m or (not name and array.ndim != 2)
        if wrong or array.shape[0] == 0:
            received = f"shape {tuple(array.shape)}" + " beside others" * (len(arrays) > 1)
            expected = f"{ACCEPTED}, of one length m; a single draw as (1, ...)"
            raise ArgumentError(where, received, expected)
        if (shape := tuple(array.shape[1:])) != (first := shapes.get(name, shape)):
            raise ArgumentError(where, f"draws of shape {shape}", f"{first}, as in batch 1")
    return arrays


class StreamEnded(LimbeckError):  # noqa: N818 - an end is not always an error
    r"""There are no more draws: `used` of the `seen` ones were used, the others dropped."""

    def __init__(self, stream: Stream, what: str = "ended") -> None:
        self.used, self.seen = stream.used, stream.seen
        super().__init__(
            f"posterior: the stream {what} after {stream.batches:,} batches with {self.seen:,} "
            f"draws, of which {self.used:,} were used"
        )


class StreamBroken(StreamEnded):
    r"""The user's iterator raised, or gave a batch unlike the first: see the cause."""


class OnlineDiagnostics(RunningDiagnostics):
    r"""R̂ and effective sizes of some of the chains and coordinates of parallel chains."""

    def __init__(self, structure: Structure, chains: int) -> None:
        self.structure, self.chains = structure, chains
        self.diagnosed = min(chains, DIAGNOSED_CHAINS)
        self.index = stored.spread(structure.dim, 2**14 // self.diagnosed)  # a kilobyte each
        super().__init__([structure.label(coordinate) for coordinate in self.index])

    def add(self, parts: Mapping[str, Tensor]) -> None:
        r"""One more draw of each chain, (chains, ...) by name."""
        first = {name: part[: self.diagnosed] for name, part in parts.items()}
        self.update(self.structure.flatten(first)[:, self.index].cpu())


class Stream:
    r"""Draws of batches, one batch in memory at a time.

    The draws of a batch are of parallel chains, hence nearly independent, and are used one after
    another; then comes the next batch. With `in_time`, they follow each other in one chain, which
    is thinned draw by draw. The source is an iterator, or an object whose `step()` gives the next
    batch: a tensor (m, dim), or a dict of tensors (m, ...). Options are those of `as_draws`.

    >>> stream = Stream(torch.full((4, 2), float(step)) for step in range(100))
    >>> stream.next(6)[:, 0]
    tensor([0., 0., 0., 0., 1., 1.])
    >>> stream.used, stream.seen
    (6, 8)
    """

    def __init__(
        self,
        source: Any,
        *,
        var_names: str | Sequence[str] | None = None,
        burn_in: int = 0,
        thin: int = 1,
        dtype: torch.dtype | None = None,
        in_time: bool = False,
    ) -> None:
        self.source = source
        self.burn_in, self.thin = burn_in, thin
        self.in_time, self.dtype = in_time, dtype
        self.device: torch.device | None = None
        self.used = self.seen = self.batches = 0  # `seen` counts draws that thinning left out too
        self.notes: tuple[str, ...] = ()
        self.end: StreamEnded | None = None
        self._choose = partial(choose, var_names=var_names)
        self._call: Any = getattr(source, "step", None)
        if not callable(self._call):
            self._call = iter(source).__next__
        self._parts: dict[str, Array] = {}
        self._held: dict[str, Tensor] = {}  # what is left of the last batch, (k, ...) each
        self._diagnostics: OnlineDiagnostics | None = None
        self._equal_batches = not in_time  # all batches so far are of as many chains

    @property
    def structure(self) -> Structure:
        r"""The structure of one draw; reads the first batch if none was read."""
        return Structure.of(self.parts)

    @property
    def parts(self) -> dict[str, Array]:
        r"""The variables as the first batch had them, without draws: (0, ...) each."""
        if not self._parts:
            self._held = self._next_batch()
        return self._parts

    def next(self, n: int, short: bool = False) -> X:
        r"""The next n draws, in the structure: (n, ...) each; or, if `short`, what is left."""
        missing = integer("n", n, "a whole number from 1", least=1)
        pieces: list[dict[str, Tensor]] = []
        while missing:
            if not self._held:
                try:
                    self._held = self._next_batch()
                except StreamEnded:
                    if short and pieces:
                        break
                    raise
            # Copies: a sampler may work in the memory of the batch that it gave.
            pieces.append({name: part[:missing].clone() for name, part in self._held.items()})
            rest = {name: part[missing:] for name, part in self._held.items()}
            self._held = rest if rows(rest) else {}
            missing -= rows(pieces[-1])
            self.used += rows(pieces[-1]) if short else 0
        self.used += 0 if short else n
        parts = pieces[0]
        if len(pieces) > 1:
            parts = {name: torch.cat([piece[name] for piece in pieces]) for name in parts}
        return self.structure.pack(parts)

    def peek(self, n: int) -> X:
        r"""The next n draws, which come again."""
        draws = self.next(n)
        pieces = [as_dict(draws), self._held] if self._held else [as_dict(draws)]
        self._held = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
        self.used -= n
        return draws

    def to(self, device: Device = None, dtype: torch.dtype | None = None) -> Stream:
        r"""Give draws on a device and of a floating type from now on."""
        self.device = self.device if device is None else torch.device(device)
        self.dtype = dtype or self.dtype
        self._held = self._converted(self._held)
        return self

    def diagnostics(self) -> Diagnostics | None:
        r"""R̂ and effective sizes so far; None unless batches are of the same parallel chains."""
        if (running := self._diagnostics) is None:
            return None
        return Diagnostics(running.names or [], running.r_hat, running.ess, running.reasons())

    def state_dict(self) -> dict[str, Tensor]:
        r"""The position of the stream, and the state of its source if it has one: tensors only."""
        state = {"counts": torch.tensor([self.used, self.seen, self.batches])}
        groups: dict[str, Any] = {"held": {k: part.clone() for k, part in self._held.items()}}
        if callable(getattr(self.source, "state_dict", None)):
            groups["source"] = self.source.state_dict()
        if self._diagnostics is not None:
            groups["watch"] = self._diagnostics.state_dict()
        return state | {f"{group}.{k}": v for group in groups for k, v in groups[group].items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Continue from a state of `state_dict`.

        A source without a state must start from its beginning, and is read up to that position.
        """
        used, seen, batches = state["counts"].tolist()
        stateful = callable(getattr(self.source, "load_state_dict", None))
        if self.batches > batches and not stateful:
            raise CheckpointError(
                f"checkpoint: it is of batch {batches:,}, and the posterior's iterator has come to "
                f"batch {self.batches:,}; expected an iterator that starts anew"
            )
        names = self.structure.names if batches else ()
        held = strip_prefix("held.", state)
        if held and held.keys() != set(names):
            raise CheckpointError(f"checkpoint: its draws are of {sorted(held)}, not {list(names)}")
        if stateful:
            self.source.load_state_dict(strip_prefix("source.", state))
        while self.batches < batches and not stateful:
            self._pull()
        self.used, self.seen, self.batches = used, seen, batches
        self._held = self._converted({name: held[name] for name in names if held})
        if self._diagnostics is not None:
            self._diagnostics = OnlineDiagnostics(self.structure, self._diagnostics.chains)
            if saved := strip_prefix("watch.", state):
                self._diagnostics.load_state_dict(saved)

    def _next_batch(self) -> dict[str, Tensor]:
        r"""The next draws that burn-in and thinning do not leave out, of one batch."""
        self._held = {}  # the last batch may go before the next one comes
        while True:
            batch: Any = self._pull()
            m = rows(batch)
            wait = self.burn_in - (self.seen - m if self.in_time else self.batches - 1)
            wait = wait if wait > 0 else wait % self.thin
            if self.in_time:
                batch = {name: array[wait :: self.thin] for name, array in batch.items()}
            if rows(batch) and (self.in_time or not wait):
                break
        parts = self._converted(batch)
        for name, bad in stored.bad_rows(parts).items():
            if bad.any():
                received = f"NaN or infinite numbers in {int(bad.sum()):,} of {len(bad):,} draws"
                self._break(ArgumentError(_where(name, self.batches), received, "finite draws"))
        chains = rows(parts)
        if self._diagnostics is None and self._equal_batches:
            self._diagnostics = OnlineDiagnostics(self.structure, chains)
        if self._diagnostics is not None and self._diagnostics.chains == chains:
            self._diagnostics.add(parts)
        else:
            self._diagnostics, self._equal_batches = None, False
        return parts

    def _pull(self) -> dict[str, Array]:
        r"""The variables of the next batch, as they came."""
        if self.end is not None:
            raise self.end
        try:
            raw = self._call()
        except StopIteration:
            if not self.batches:
                received = "an iterator without a single batch"
                raise ArgumentError("posterior", received, "batches of draws") from None
            self.end = StreamEnded(self)
            raise self.end from None
        except Exception as error:  # the user's own
            self.end = StreamBroken(self, f"failed ({type(error).__name__}: {error})")
            raise self.end from error
        self.batches += 1
        try:
            like = Structure.of(self._parts) if self._parts else None
            batch: Any = _read_batch(raw, self.batches, like, self._choose)
        except ArgumentError as error:
            self._break(error)
        self.seen += rows(batch)
        if not self._parts:
            self._parts = {name: 0 * array[:0] for name, array in batch.items()}  # no views
            self.dtype = self.dtype or stored.common_dtype(batch.values())
            self.notes = tuple(stored.whole_notes(batch, self.dtype))
        return batch

    def _break(self, error: ArgumentError) -> NoReturn:
        r"""Refuse a first batch; a later one is the end of the stream."""
        if self.batches == 1:
            raise error
        self.end = StreamBroken(self, f"gave a bad batch ({error})")
        raise self.end from error

    def _converted(self, batch: Mapping[str, Array]) -> dict[str, Tensor]:
        tensors = {name: as_tensor(array) for name, array in batch.items()}
        return {name: part.to(self.device, self.dtype) for name, part in tensors.items()}
