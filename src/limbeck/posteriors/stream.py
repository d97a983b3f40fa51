r"""Draws that come as they are needed, from a chain that runs or a generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.arrays import X
from limbeck.errors import ArgumentError, CheckpointError, LimbeckError
from limbeck.posteriors.arrays import Array, as_array, as_tensor, common_dtype, part_name
from limbeck.posteriors.diagnostics import Diagnostics, Watch
from limbeck.posteriors.draws import bad_rows, whole_notes
from limbeck.posteriors.structure import Structure, choose
from limbeck.storage.files import under

__all__ = ["Stream", "StreamBroken", "StreamEnded", "check_finite", "read_batch"]

ACCEPTED = "a tensor (m, dim), or a dict of tensors (m, ...)"


def read_batch(
    raw: Any, number: int, like: Structure | None, choose: Callable[[Sequence[str]], list[str]]
) -> dict[str, Array]:
    r"""The variables (m, ...) of one batch.

    Arguments:
        raw: What the iterator gave.
        number: The number of the batch, from 1.
        like: The structure that draws must have; None at the first batch.
        choose: Picks among the names of the first batch.
    """
    if raw is None or isinstance(raw, tuple | str):
        raise ArgumentError(_where("", number), f"a {type(raw).__name__}", ACCEPTED)
    walkers = getattr(raw, "coords", None)
    raw = walkers if isinstance(walkers, np.ndarray) else raw  # emcee gives states
    given = raw if isinstance(raw, Mapping) else {"": raw}
    names = choose(list(given)) if like is None else like.names
    arrays: dict[str, Array] = {}
    for name in names:
        if name not in given:
            held = f"only {', '.join(map(repr, given))}" if isinstance(raw, Mapping) else "no names"
            raise ArgumentError(_where(name, number), held, f"draws of {like}")
        arrays[name] = array = as_array(given[name], _where(name, number))
        m = next(iter(arrays.values())).shape[:1]
        wrong = array.ndim == 0 or array.shape[:1] != m or (not name and array.ndim != 2)
        if wrong or array.shape[0] == 0:
            received = f"shape {tuple(array.shape)}" + " beside others" * (len(arrays) > 1)
            expected = f"{ACCEPTED}, of one length m; a single draw as (1, ...)"
            raise ArgumentError(_where(name, number), received, expected)
    found = Structure.of(arrays)
    for name, shape, wanted in zip(names, found.shapes, (like or found).shapes, strict=True):
        if shape != wanted:
            expected = f"{wanted}, as in batch 1"
            raise ArgumentError(_where(name, number), f"draws of shape {shape}", expected)
    return arrays


def check_finite(parts: Mapping[str, Tensor], number: int) -> None:
    r"""Refuse a batch with NaN or infinite numbers."""
    for name, bad in bad_rows(parts).items():
        if bad.any():
            received = f"NaN or infinite numbers in {int(bad.sum()):,} of {len(bad):,} draws"
            raise ArgumentError(_where(name, number), received, "finite draws")


def _where(name: str, number: int) -> str:
    return f"{part_name(name)} in batch {number}"


class StreamEnded(LimbeckError):  # noqa: N818 - an end is not always an error
    r"""There are no more draws.

    Attributes:
        used: Draws that were handed out.
        seen: Draws that came, with those that burn-in and thinning left out.
    """

    def __init__(self, stream: Stream, what: str = "ended") -> None:
        self.used, self.seen = stream.used, stream.seen
        super().__init__(
            f"posterior: the stream {what} after {stream.batches:,} batches with {self.seen:,} "
            f"draws, of which {self.used:,} were used"
        )


class StreamBroken(StreamEnded):
    r"""The user's iterator raised, or gave what is no batch like the first: the cause tells."""


class Stream:
    r"""Draws of batches, one batch in memory at a time.

    The draws of a batch are of parallel chains, hence nearly independent, and are used one after
    another; only when all have been used comes the next batch. So in n draws no chain comes twice
    unless there are fewer chains than n.

    Arguments:
        source: An iterator of batches, or an object whose `step()` gives the next one. A batch is
            a tensor (m, dim), or a dict of tensors (m, ...).
        var_names: Variables to take, or, as "~name", to leave out; None takes all.
        burn_in: How many draws of each chain to leave out at the beginning.
        thin: Take every so manieth draw of each chain.
        dtype: The floating type of draws; None keeps that of the first batch.
        in_time: Whether draws of a batch follow each other in one chain, which is then thinned
            draw by draw; otherwise each is of another chain, and batches are skipped.

    Attributes:
        used: Draws that were handed out.
        seen: Draws that came, with those that burn-in and thinning left out.
        batches: Batches that came.
        end: Why there are no more draws; None as long as there may be some.

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
        self.burn_in = whole_number("burn_in", burn_in, "a whole number from 0", least=0)
        self.thin = whole_number("thin", thin, "a whole number from 1", least=1)
        self.in_time = in_time
        self.dtype = dtype
        self.device: torch.device | None = None
        self.used = self.seen = self.batches = 0
        self.notes: tuple[str, ...] = ()
        self._choose = partial(choose, var_names=var_names)
        self._call = _caller(source)
        self.end: StreamEnded | None = None
        self._structure: Structure | None = None
        self._held: dict[str, Tensor] = {}  # what is left of the last batch, (k, ...) each
        self._watch: Watch | None = None
        self._alike = not in_time  # all batches so far are of as many chains

    @property
    def structure(self) -> Structure:
        r"""What one draw looks like; asks for the first batch if there was none."""
        if self._structure is None:
            self._held = self._kept()
        assert self._structure is not None
        return self._structure

    def next(self, n: int) -> X:
        r"""The next n draws, in the structure: (n, ...) each."""
        missing = whole_number("n", n, "a whole number from 1", least=1)
        pieces: list[dict[str, Tensor]] = []
        while missing:
            if not self._held:
                self._held = self._kept()
            # Copies: a sampler may work in the memory of the batch that it gave.
            pieces.append({name: part[:missing].clone() for name, part in self._held.items()})
            left = {name: part[missing:] for name, part in self._held.items()}
            self._held = left if _length(left) else {}
            missing -= _length(pieces[-1])
        self.used += n
        if len(pieces) == 1:
            return self.structure.pack(pieces[0])
        names = self.structure.names
        return self.structure.pack({k: torch.cat([piece[k] for piece in pieces]) for k in names})

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Stream:
        r"""Give draws on a device and of a floating type from now on."""
        self.device = self.device if device is None else torch.device(device)
        self.dtype = dtype or self.dtype
        self._held = self._converted(self._held)
        return self

    def diagnostics(self) -> Diagnostics | None:
        r"""R̂ and effective sizes of the draws so far, and what there is to distrust.

        They are of at most 256 chains and of some coordinates, so that memory does not grow with
        the stream. None where they cannot be told: before the first batch, if batches are of
        different sizes, if draws of a batch follow each other in time.
        """
        return None if self._watch is None else self._watch.diagnostics()

    def state_dict(self) -> dict[str, Tensor]:
        r"""Where the stream is, with the state of its source if that has one: tensors only."""
        state = {"counts": torch.tensor([self.used, self.seen, self.batches])}
        state |= {f"held.{name}": part.clone() for name, part in self._held.items()}
        if callable(getattr(self.source, "state_dict", None)):
            state |= {f"source.{key}": value for key, value in self.source.state_dict().items()}
        return state | (self._watch.state_dict() if self._watch is not None else {})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Go on from where `state_dict` was taken.

        A source without a state of its own is read up to that place: it must start anew, and give
        the same batches again.
        """
        used, seen, batches = state["counts"].tolist()
        stateful = callable(getattr(self.source, "load_state_dict", None))
        if self.batches > batches and not stateful:
            raise CheckpointError(
                f"checkpoint: it is of batch {batches:,}, and the posterior's iterator has come to "
                f"batch {self.batches:,}; expected an iterator that starts anew"
            )
        names = self.structure.names if batches else ()
        held = under("held.", state)
        if held and held.keys() != set(names):
            raise CheckpointError(f"checkpoint: its draws are of {sorted(held)}, not {list(names)}")
        if stateful:
            self.source.load_state_dict(under("source.", state))
        while self.batches < batches and not stateful:
            self._pull()
        self.used, self.seen, self.batches = used, seen, batches
        self._held = self._converted({name: held[name] for name in names if held})
        if self._watch is not None:
            self._watch.load_state_dict(state)

    def _kept(self) -> dict[str, Tensor]:
        r"""The next draws that burn-in and thinning do not leave out, of one batch."""
        self._held = {}  # the last batch may go before the next one comes
        while True:
            batch = self._pull()
            m = _length(batch)
            wait = self.burn_in - (self.seen - m if self.in_time else self.batches - 1)
            wait = wait if wait > 0 else wait % self.thin
            if self.in_time:
                batch = {name: array[wait :: self.thin] for name, array in batch.items()}
            if _length(batch) and (self.in_time or not wait):
                break
        kept = self._converted(batch)
        try:
            check_finite(kept, self.batches)
        except ArgumentError as error:
            self._break(error)
        if not self.in_time:
            self._look_at(kept)
        return kept

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
            batch = read_batch(raw, self.batches, self._structure, self._choose)
        except ArgumentError as error:
            self._break(error)
        self.seen += _length(batch)
        if self._structure is None:
            self._structure = Structure.of(batch)
            self.dtype = self.dtype or common_dtype(list(batch.values()))
            self.notes = tuple(whole_notes(batch, self.dtype))
        return batch

    def _break(self, error: ArgumentError) -> NoReturn:
        r"""Refuse a first batch; a later one is the end of the stream."""
        if self.batches == 1:
            raise error
        self.end = StreamBroken(self, f"gave a bad batch ({error})")
        raise self.end from error

    def _converted(self, batch: Mapping[str, Array]) -> dict[str, Tensor]:
        found = {}
        for name, array in batch.items():
            own = array.device if isinstance(array, Tensor) else torch.device("cpu")
            assert self.dtype is not None
            found[name] = as_tensor(array, self.dtype, self.device or own)
        return found

    def _look_at(self, parts: Mapping[str, Tensor]) -> None:
        r"""Take notice of a batch of parallel chains, as long as there are always as many."""
        chains = _length(parts)
        if self._watch is None and self._alike:
            self._watch = Watch(self.structure, chains)
        self._alike = self._alike and self._watch is not None and self._watch.chains == chains
        if not self._alike:
            self._watch = None
        elif self._watch is not None:
            self._watch.update(parts)


def _caller(source: Any) -> Callable[[], Any]:
    if callable(getattr(source, "step", None)):
        return source.step
    if not hasattr(source, "__iter__"):
        expected = "an iterator of batches, or an object with a method step"
        raise ArgumentError("source", f"a {type(source).__name__}", expected)
    return iter(source).__next__


def _length(parts: Mapping[str, Array]) -> int:
    return next((int(part.shape[0]) for part in parts.values()), 0)
