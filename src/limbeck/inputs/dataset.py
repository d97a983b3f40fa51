r"""The user's data as inputs: rows of a data set, batches of a torch DataLoader, or others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data

from limbeck import arrays
from limbeck.arguments import Flag, Seed, Text, UserObject, checked_arguments
from limbeck.arrays import Batch, as_part, label, map_tensors, part_of, rows
from limbeck.errors import ArgumentError, CheckpointError, rename_argument
from limbeck.inputs.base import Inputs, join_batches
from limbeck.inputs.generated import Function, Samples, seeded


def materialise(dataset: data.Dataset[Any], argument: str) -> tuple[Any, Any]:
    r"""X and y (None if there are no labels) of a data set whose items are x or (x, y)."""
    if isinstance(dataset, data.TensorDataset):
        return _split_item(dataset.tensors, argument)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        received = f"a {type(dataset).__name__} without a length"
        raise ArgumentError(argument, received, "a map-style data set")
    items = [_split_item(dataset[i], argument) for i in range(len(dataset))]
    if not items:
        raise ArgumentError(argument, "no data (a data set of length 0)", "one item or more")
    labels = [y for _, y in items if y is not None]
    if len(labels) not in (0, len(items)):
        raise ArgumentError(argument, "items with and without labels", "x, or (x, y), throughout")
    return _stack([x for x, _ in items], argument), _stack(labels, argument) if labels else None


def _split_item(item: Any, argument: str) -> tuple[Any, Any]:
    r"""x and y (None if there are no labels) of an item x, (x,) or (x, y)."""
    if not isinstance(item, tuple | list):
        return item, None
    if not 1 <= len(item) <= 2:
        raise ArgumentError(argument, f"items of {len(item)} things", "items x or (x, y)")
    return item[0], item[1] if len(item) == 2 else None


def _stack(values: list[Any], argument: str) -> Any:
    if isinstance(values[0], dict):
        return {key: _stack([value[key] for value in values], argument) for key in values[0]}
    try:
        if all(isinstance(value, Tensor) for value in values):
            return torch.stack(values)
        return np.stack([np.asarray(value) for value in values])
    except (RuntimeError, ValueError, TypeError) as reason:
        received = f"items that cannot be stacked ({reason})"
        raise ArgumentError(argument, received, "items of one shape") from None


class Dataset(Inputs):
    r"""Rows of the user's data; their numbers are the batch's index.

    Floating-point arrays, lists and tables become the student's floating type; tensors of another
    floating type are refused. Integers and booleans stay.

    Arguments:
        X: A tensor or array (N, ...), a numeric data frame, a dict of such, or a map-style torch
            Dataset of x or (x, y), whose items are read once, here.
        y: Labels (N, ...). Default: none.
        weight: Importance weights (N,), nonnegative. Default: none.
        replace: Whether rows are drawn independently. Default: False, in shuffled passes.
        seed: The generator's seed. Default: the seed of the distillation.

    >>> dataset = Dataset([[1.0], [2.0], [3.0]], y=[0, 1, 0])
    >>> sorted(dataset(3).index.tolist())
    [0, 1, 2]
    """

    STATE: ClassVar[tuple[str, ...]] = ("order", "position")
    order: Tensor  # of the rows in the present pass
    position: int  # in this order

    @checked_arguments
    def __init__(
        self,
        X: UserObject[Any],
        y: UserObject[Any] = None,
        weight: UserObject[Any] = None,
        replace: Flag = False,
        seed: Seed | None = None,
    ) -> None:
        super().__init__(seed)
        if isinstance(X, data.Dataset):
            X, labels = materialise(X, "X")
            if y is not None and labels is not None:
                raise ArgumentError("y", "labels beside those of X", "labels in one place")
            y = labels if y is None else y
        self.replace = replace
        self._x = arrays.as_parts(X, "X")
        self._y = None if y is None else as_part(y, "y")
        self._weight = None if weight is None else as_part(weight, "weight")
        self._restart()
        for name, part in (("y", self._y), ("weight", self._weight)):
            if part is not None:
                arrays.check_rows(part.values, len(self), name, "X")
        if self.weight is not None:
            if self.weight.ndim != 1:
                shape = f"shape {tuple(self.weight.shape)}"
                raise ArgumentError("weight", shape, f"shape ({len(self)},)")
            if len(negative := (self.weight < 0).nonzero()):
                received = f"a negative number in row {int(negative[0])}"
                raise ArgumentError("weight", received, "nonnegative numbers")

    def __len__(self) -> int:
        return rows(self.x)

    def draw(self, n: int) -> Tensor:
        r"""Row numbers (n,)."""
        if n > len(self) and not self.replace:
            expected = f"at most {len(self)}, the rows of the data set, or replace=True"
            raise ArgumentError("batch_size", n, expected)
        return self.next_rows(n)

    def next_rows(self, n: int) -> Tensor:
        r"""Row numbers (n,), over as many passes as that takes."""
        generator, count = self.generator, len(self)
        if self.replace:
            return torch.randint(count, (n,), generator=generator, device=generator.device)
        pieces = []
        while n > 0:
            if self.position == len(self.order):
                self.order = torch.randperm(count, generator=generator, device=generator.device)
                self.position = 0
            piece = self.order[self.position : self.position + n]
            self.position += len(piece)
            n -= len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def build(self, drawn: Tensor) -> Batch:
        data = (self.x, self.y, self.weight)
        x, y, weight = map_tensors(lambda tensor: tensor.index_select(0, drawn), data)
        return Batch(x, y, weight, drawn)

    def take(self, index: Tensor) -> Dataset:
        r"""A data set of the rows of these numbers (n,), in this order."""
        subset = copy(self)
        parts = (self._x, self._y, self._weight)
        subset._x, subset._y, subset._weight = map_tensors(lambda t: t[index.to(t.device)], parts)
        subset._restart()
        return subset

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if (n := len(state["order"])) not in (0, len(self)):
            raise CheckpointError(f"The checkpoint is of a data set of {n} rows, not {len(self)}.")
        super().load_state_dict(state)

    def _restart(self) -> None:
        device, dtype = self.device, self.dtype
        x = {n: arrays.cast(p, device, dtype, label("X", n)) for n, p in self._x.items()}
        self.x: arrays.X = x.get("", x)
        self.y = None if self._y is None else arrays.cast(self._y, device, dtype, "y")
        self.order, self.position = torch.empty(0, dtype=torch.int64), 0
        self.weight: Tensor | None = None
        if self._weight is not None:
            self.weight = self._weight.values.to(device, dtype or torch.get_default_dtype())


class Loader(Inputs):
    r"""A loader that is iterated repeatedly.

    Each step of a distillation uses the next batch of a DataLoader, of any size, including a
    shorter last one (set `drop_last=True` in the loader to drop it). An IterableDataset is read in
    batches of the distillation's batch_size, and so are loaders within `Mix` and `Seek`.

    A resumed run starts the loader again and skips the rows that were used. It continues exactly
    if the loader yields the same items again: if it draws from the global generators
    (shuffle=True), which are seeded from this source's, and not if it has its own generator.

    Arguments:
        loader: A DataLoader of batches x, (x, y) or a dict x, or an IterableDataset of such items.
        seed: The generator's seed. Default: the seed of the distillation.
    """

    @checked_arguments
    def __init__(self, loader: UserObject[Any], seed: Seed | None = None) -> None:
        super().__init__(seed)
        self.own_batches = not isinstance(loader, data.IterableDataset)
        if not self.own_batches:
            loader = data.DataLoader(loader, batch_size=64)
        if not isinstance(loader, data.DataLoader):
            expected = "a torch DataLoader or IterableDataset"
            raise ArgumentError("loader", f"a {type(loader).__name__}", expected)
        self.loader: data.DataLoader[Any] = loader
        if self.own_batches:
            sampler = getattr(loader, "batch_sampler", None)
            self.batch_size = loader.batch_size or getattr(sampler, "batch_size", None)
        self.ahead: deque[Batch] = deque()  # what was read of the loader and not used yet
        self._restart()

    def draw(self, n: int | None) -> Batch:
        r"""The next n inputs, or the loader's next batch."""
        batches = [self._next()] if n is None else list(self._take(n))
        batch = join_batches(batches, ["a batch"] * len(batches), "loader")
        self.used += rows(batch.x)
        return batch

    def probe(self, n: int) -> Batch:
        r"""The next n inputs, which stay the next ones."""
        while sum(rows(batch.x) for batch in self.ahead) < n:
            self.ahead.append(self._fetch())
        try:
            batches, names = list(self.ahead), ["a batch"] * len(self.ahead)
            return part_of(join_batches(batches, names, "loader"), 0, n)
        except ArgumentError:
            if not self.own_batches:
                raise
            return part_of(self.ahead[0], 0, n)  # each batch may have another shape

    def state_dict(self) -> dict[str, Tensor]:
        start = self.generator.get_state() if self.start is None else self.start
        return {"generator": start.clone(), "used": torch.tensor(self.used)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._restart()
        self.used = int(state["used"])
        for _ in self._take(self.used):
            pass

    def _restart(self) -> None:
        self.start: Tensor | None = None  # the generator's state before the first item
        self.used = 0  # rows
        self.ahead.clear()
        self.iterator: Iterator[Any] | None = None

    def _take(self, n: int) -> Iterator[Batch]:
        r"""The next n rows, in the batches that they come in."""
        while n > 0:
            batch = self._next()
            if (size := rows(batch.x)) > n:
                self.ahead.appendleft(part_of(batch, n, size))
            yield part_of(batch, 0, n)
            n -= size

    def _next(self) -> Batch:
        return self.ahead.popleft() if self.ahead else self._fetch()

    def _fetch(self) -> Batch:
        if self.start is None:
            self.start = self.generator.get_state()
        for _ in range(2):  # the end of one pass, and the start of another
            with torch.no_grad(), seeded(self.generator):
                self.iterator = iter(self.loader) if self.iterator is None else self.iterator
                item = next(self.iterator, None)
            if item is not None:
                return self._checked(Batch(*_split_item(item, "loader")), None, "loader")
            self.iterator = None
        raise ArgumentError("loader", "no items in a pass", "a loader with items in every pass")


@checked_arguments
def as_inputs(value: UserObject[object], argument: Text = "inputs") -> Inputs:
    r"""A value as a source of inputs.

    Arguments:
        value: A source, data, a torch data set or loader, a model with a method `sample`, or a
            function of n.
        argument: The name of the value in errors. Default: "inputs".
    """
    if isinstance(value, Inputs):
        return value
    if isinstance(value, type):
        raise ArgumentError(argument, f"the class {value.__name__}", "an object of the class")
    if isinstance(value, list | tuple) and any(isinstance(v, Inputs) for v in value):
        raise ArgumentError(argument, "several sources", "one: limbeck.inputs.Mix(sources)")
    if isinstance(value, data.DataLoader | data.IterableDataset):
        return Loader(value)
    arrays = (Tensor, np.ndarray, dict, list, tuple, data.Dataset)
    methods = ("__array__", "to_numpy", "toarray")
    if isinstance(value, arrays) or any(hasattr(value, name) for name in methods):
        with rename_argument("X", argument):
            return Dataset(value)
    if callable(getattr(value, "sample", None)):
        return Samples(value)
    module = isinstance(value, nn.Module)
    if callable(value) and not module:
        return Function(value)
    lacks = ", a module without a method sample" if module else ""
    expected = "an input source of limbeck.inputs, a tensor, an array, a dict of these, a numeric "
    expected += "data frame, a torch Dataset or DataLoader, a model with a method sample, or a "
    expected += "function of n"
    raise ArgumentError(argument, f"a {type(value).__name__}{lacks}", expected)
