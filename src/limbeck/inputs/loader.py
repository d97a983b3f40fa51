r"""Batches of a torch DataLoader as they come, or rows of it regrouped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from limbeck.arrays import Batch, check_alike, join, map_tensors, rows
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Eager
from limbeck.inputs.dataset import split_item
from limbeck.inputs.generated import seeded

__all__ = ["Loader"]

READ_AHEAD = 64
r"""How many items of a bare IterableDataset are collated at once."""


class Loader(Eager):
    r"""A loader that is gone through again and again.

    As the inputs of a distillation, a DataLoader keeps its batches: each step takes the next one
    as it comes, also a shorter last one (which `drop_last=True` of the loader leaves out) and
    those of a batch sampler, whatever their sizes. Each step is the mean over its batch. (One row
    is too few for batch normalisation: `drop_last=True` helps there too.) A bare
    IterableDataset has no batches; it is taken in batches of the distillation's batch_size. So are
    the rows of a loader where others ask for n of them: within `Mix` and `Seek`, and `loader(n)`.

    A loader cannot be rewound. The state holds the number of rows that were used, and loading it
    starts the loader afresh and skips that many, which takes time, and continues exactly only if
    the loader itself gives the same items again. It does if it draws from the global generators
    (shuffle=True), which are seeded from this source's own; not if it keeps a generator of its own
    that has moved on.

    Arguments:
        loader: A DataLoader whose batches are x, (x, y) or a dict x, or an IterableDataset of such
            items.
        seed: The generator's seed; None takes the seed of the distillation.
    """

    def __init__(self, loader: Any, seed: int | None = None) -> None:
        super().__init__(seed)
        self.own_batches = not isinstance(loader, data.IterableDataset)
        if not self.own_batches:
            loader = data.DataLoader(loader, batch_size=READ_AHEAD)
        if not isinstance(loader, data.DataLoader):
            received = f"a {type(loader).__name__}"
            raise ArgumentError("loader", received, "a torch DataLoader or IterableDataset")
        self.loader: data.DataLoader[Any] = loader
        if self.own_batches:
            sampler = getattr(loader, "batch_sampler", None)
            self.batch_size = loader.batch_size or getattr(sampler, "batch_size", None)
        self.start: Tensor | None = None  # the generator's state before the first item
        self.ahead: deque[Batch] = deque()  # what was read of the loader and not used yet
        self.iterator: Iterator[Any] | None = None
        self._restart()

    def draw(self, n: int) -> Batch:
        whole = self._join([self._next() for _ in range(self._read(n))])
        if rows(whole.x) > n:
            self.ahead.appendleft(_cut(whole, n, None))
        self.used += n
        return _cut(whole, 0, n)

    def own_batch(self) -> Batch:
        batch = self._next()
        self.used += rows(batch.x)
        return batch

    def probe(self, n: int) -> Batch:
        r"""The next n inputs, which stay the next ones."""
        count = self._read(n)
        held = list(self.ahead)[:count]
        try:
            return _cut(self._join(held), 0, n)
        except ArgumentError:
            if not self.own_batches:
                raise
            return _cut(held[0], 0, n)  # each batch may have a shape of its own

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self._restart()

    def state_dict(self) -> dict[str, Tensor]:
        start = self.generator.get_state() if self.start is None else self.start
        return {"generator": start.clone(), "used": torch.tensor(self.used)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._restart()
        self.used = left = int(state["used"])
        while left > 0:
            piece = self._next()
            skip = min(left, rows(piece.x))
            left -= skip
            if skip < rows(piece.x):
                self.ahead.appendleft(_cut(piece, skip, None))

    def _restart(self) -> None:
        self.start = None
        self.used = 0
        self.ahead.clear()
        self.iterator = None

    def _read(self, n: int) -> int:
        r"""Read ahead until there are n rows; how many batches these are."""
        held = count = 0
        while held < n:
            if count == len(self.ahead):
                self.ahead.append(self._fetched())
            held, count = held + rows(self.ahead[count].x), count + 1
        return count

    def _join(self, held: list[Batch]) -> Batch:
        check_alike([piece.x for piece in held], ["a batch"] * len(held), "loader")
        check_alike([piece.y for piece in held], ["labels"] * len(held), "loader")
        labels = [piece.y for piece in held if piece.y is not None]
        return Batch(join([piece.x for piece in held]), torch.cat(labels) if labels else None)

    def _next(self) -> Batch:
        r"""The next batch, whatever its size."""
        return self.ahead.popleft() if self.ahead else self._fetched()

    def _fetched(self) -> Batch:
        if self.start is None:
            self.start = self.generator.get_state()
        for _ in range(2):  # the end of one pass, and the start of another
            with torch.no_grad(), seeded(self.generator):
                self.iterator = iter(self.loader) if self.iterator is None else self.iterator
                item = next(self.iterator, None)
            if item is not None:
                return self.checked(Batch(*split_item(item, "loader")), None, "loader")
            self.iterator = None
        raise ArgumentError("loader", "no items in a pass", "a loader that gives items every time")


def _cut(batch: Batch, start: int, stop: int | None) -> Batch:
    cut: Batch = map_tensors(lambda t: t[start:stop], batch)
    return cut
