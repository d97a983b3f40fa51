r"""The base class of all sources of inputs, and of sources made of other sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from limbeck import arrays
from limbeck.arguments import Seed, checked_arguments
from limbeck.arrays import Batch, Part, as_part, label, strip_prefix
from limbeck.errors import ArgumentError


class Stateful:
    r"""What can be continued: its generator, if any, the attributes in `STATE`, and its parts."""

    # attributes to save beside the generator: tensors, numbers, lists of numbers
    STATE: ClassVar[tuple[str, ...]] = ()

    def stateful_parts(self) -> dict[str, Any]:
        r"""Objects whose states belong to this one's, by name."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        r"""The state that is needed to continue exactly: tensors only."""
        generator = getattr(self, "generator", None)
        state = {} if generator is None else {"generator": generator.get_state()}
        for name in self.STATE:
            value = getattr(self, name)
            value = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
            state[name.lstrip("_")] = value.clone()
        for prefix, part in self.stateful_parts().items():
            state |= {f"{prefix}.{key}": tensor for key, tensor in part.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        r"""Continue from a state of `state_dict`."""
        if (generator := getattr(self, "generator", None)) is not None:
            generator.set_state(state["generator"].cpu())
        for name in self.STATE:
            old, new = getattr(self, name), state[name.lstrip("_")]
            device = getattr(old if generator is None else generator, "device", None)
            tensor = isinstance(old, Tensor)
            setattr(self, name, new.to(device, copy=True) if tensor else new.tolist())
        for prefix, part in self.stateful_parts().items():
            part.load_state_dict(strip_prefix(f"{prefix}.", state))


class Inputs(Stateful, ABC):
    r"""A source of inputs: `inputs(n)` returns a Batch of n.

    A draw has two halves, so that as much as possible is compiled with the step: `draw(n)` does
    everything random and everything that changes state, and returns a few tensors (row numbers,
    noise) in dicts, tuples or lists; `build(drawn)` is a pure function of those tensors. A source
    draws from its own generator on its own device, so equal seeds give equal batches.

    Arguments:
        seed: The generator's seed. Default: the seed of the distillation.
    """

    own_batches = False  # whether the data come in batches, which the loop takes by `draw(None)`
    batch_size: int | None = None  # of these batches but for a shorter last one, if known
    converts = False  # whether tensors of another floating type are converted, not refused

    @checked_arguments
    def __init__(self, seed: Seed | None = None) -> None:
        self.seed = seed
        self.device = torch.device("cpu")
        self.dtype: torch.dtype | None = None  # the student's floating type, once it is known
        self.generator = torch.Generator().manual_seed(self.seed or 0)

    @abstractmethod
    def draw(self, n: int) -> Any:
        r"""The random tensors of n inputs."""

    def build(self, drawn: Any) -> Batch:
        r"""The batch of a draw, a pure function of tensors. Default: the draw is the batch."""
        batch: Batch = drawn
        return batch

    def __call__(self, n: int) -> Batch:
        return self.build(self.draw(n))

    def probe(self, n: int) -> Batch:
        r"""At most n inputs for checks before the first step, without advancing the source."""
        state = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        batch = self(min(n, len(self)) if hasattr(self, "__len__") else n)
        self.load_state_dict(state)
        return batch

    def bind(self, loss_of: Callable[[Batch], Tensor]) -> None:  # most need nothing
        r"""Set the function that computes the present losses (n,) of a batch."""

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        r"""Move to the student's device and floating type, and start the generator."""
        self.device, self.dtype = torch.device(device), dtype
        self.generator = torch.Generator(self.device)
        self.generator.manual_seed(seed if self.seed is None else self.seed)
        self._restart()

    def _restart(self) -> None:  # most need nothing
        r"""Set the source to its start, on its device."""

    def _checked(self, value: Any, n: int | None, argument: str) -> Batch:
        r"""A batch of a Batch or x from user code: n (None: any) rows on the student's device."""
        batch = value if isinstance(value, Batch) else Batch(value)
        if isinstance(batch.x, tuple | list) or not hasattr(batch.x, "__len__"):
            received = f"a draw of type {type(batch.x).__name__}"
            raise ArgumentError(argument, received, "a Batch, a tensor or a dict of tensors")
        parts = arrays.as_parts(batch.x, argument)
        n = len(next(iter(parts.values())).values) if n is None else n
        x = {k: self._cast(p, n, label(argument, k), "were asked for") for k, p in parts.items()}
        fields = {}
        for field in ("y", "weight", "index"):
            if (array := getattr(batch, field)) is not None:
                name = f"{argument}.{field}"
                fields[field] = self._cast(as_part(array, name), n, name, "x")
        return Batch(x.get("", x), **fields)

    def _cast(self, part: Part, n: int, name: str, of: str) -> Tensor:
        arrays.check_rows(part.values, n, name, of)
        part = part._replace(typed=part.typed and not self.converts)
        return arrays.cast(part, self.device, self.dtype, name)


class Nested(Inputs):
    r"""A source that draws from others, each with its own seed."""

    loss_of: Callable[[Batch], Tensor] | None = None  # the present losses (n,) of a batch

    def __init__(self, sources: Sequence[Inputs], seed: int | None = None) -> None:
        super().__init__(seed)
        self.sources = list(sources)
        self._seed_sources(self.seed or 0)

    def bind(self, loss_of: Callable[[Batch], Tensor]) -> None:
        self.loss_of = loss_of
        for source in self.sources:
            source.bind(loss_of)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        seeds = spread(seed if self.seed is None else self.seed, len(self.sources))
        for source, source_seed in zip(self.sources, seeds, strict=True):
            source.to(device, dtype, source_seed)

    def stateful_parts(self) -> dict[str, Any]:
        return {str(number): source for number, source in enumerate(self.sources)}

    def _weight(self, batch: Batch) -> Tensor:
        r"""The weights (n,) of a batch; ones where it has none."""
        if batch.weight is not None:
            return batch.weight
        dtype = self.dtype or torch.get_default_dtype()
        return torch.ones(arrays.rows(batch.x), dtype=dtype, device=self.device)

    def _seed_sources(self, seed: int) -> None:
        for source, source_seed in zip(self.sources, spread(seed, len(self.sources)), strict=True):
            if source.seed is None:
                source.generator.manual_seed(source_seed)
                if isinstance(source, Nested):
                    source._seed_sources(source_seed)


def join_batches(batches: Sequence[Batch], names: Sequence[str], argument: str) -> Batch:
    r"""The rows of batches whose x and y are alike, in order, without weights and row numbers."""
    inputs = [batch.x for batch in batches]
    arrays.check_alike(inputs, names, argument)
    labels_of = [f"labels of {name}" for name in names]
    arrays.check_alike([batch.y for batch in batches], labels_of, argument)
    labels = [batch.y for batch in batches if batch.y is not None]
    return Batch(arrays.join(inputs), torch.cat(labels) if labels else None)


def spread(seed: int, count: int) -> list[int]:
    r"""Different seeds that follow from one."""
    generator = torch.Generator().manual_seed(seed)
    return [int(s) for s in torch.randint(2**32, (count,), generator=generator)]
