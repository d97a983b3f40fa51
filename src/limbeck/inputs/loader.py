r"""Batches of a torch DataLoader or IterableDataset, regrouped to the size asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from limbeck.core.batch import Batch, map_tensors, rows
from limbeck.errors import ArgumentError
from limbeck.inputs.calls import seeded
from limbeck.inputs.eager import Eager
from limbeck.inputs.join import check_alike, join
from limbeck.inputs.materialise import split_item

__all__ = ["Loader"]

READ_AHEAD = 64
r"""How many items of a bare IterableDataset are collated at once."""


class Loader(Eager):
    r"""A loader that is gone through again and again, in batches of exactly n rows.

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
        if isinstance(loader, data.IterableDataset):
            loader = data.DataLoader(loader, batch_size=READ_AHEAD)
        if not isinstance(loader, data.DataLoader):
            received = f"a {type(loader).__name__}"
            raise ArgumentError("loader", received, "a torch DataLoader or IterableDataset")
        self.loader: data.DataLoader[Any] = loader
        self.start: Tensor | None = None  # the generator's state before the first item
        self.rest: Batch | None = None
        self.iterator: Iterator[Any] | None = None
        self._restart()

    def draw(self, n: int) -> Batch:
        whole = self._at_least(n)
        self.rest = _cut(whole, n, None) if rows(whole.x) > n else None
        self.used += n
        return _cut(whole, 0, n)

    def probe(self, n: int) -> Batch:
        r"""The next n inputs, which stay the next ones."""
        self.rest = self._at_least(n)
        return _cut(self.rest, 0, n)

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
                self.rest = _cut(piece, skip, None)

    def _restart(self) -> None:
        self.start = None
        self.used = 0
        self.rest = None
        self.iterator = None

    def _at_least(self, n: int) -> Batch:
        r"""The next n rows, and those that came along with them."""
        held = [self._next()]
        while sum(rows(piece.x) for piece in held) < n:
            held.append(self._next())
        check_alike([piece.x for piece in held], ["a batch"] * len(held), "loader")
        check_alike([piece.y for piece in held], ["labels"] * len(held), "loader")
        labels = [piece.y for piece in held if piece.y is not None]
        return Batch(join([piece.x for piece in held]), torch.cat(labels) if labels else None)

    def _next(self) -> Batch:
        r"""The rest of the last piece, or the next batch of the loader, whatever its size."""
        if self.rest is not None:
            rest, self.rest = self.rest, None
            return rest
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
