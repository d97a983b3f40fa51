r"""Sources whose draw already is the batch: work that cannot be compiled with the step."""

from __future__ import annotations

from typing import Any

import torch

from limbeck.core.batch import Batch
from limbeck.core.inputs import Inputs
from limbeck.errors import ArgumentError
from limbeck.inputs.parts import Part, as_part, as_parts, cast, cast_parts, check_rows, label

__all__ = ["Eager"]


class Eager(Inputs):
    r"""A source that gives whole batches in `draw`, so that `build` has nothing left to do."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self.dtype: torch.dtype | None = None  # the student's floating type, once it is known
        self.converts = False

    def convert(self) -> None:
        r"""From now on convert tensors of another floating type, which are refused otherwise."""
        self.converts = True

    def build(self, drawn: Any) -> Batch:
        batch: Batch = drawn
        return batch

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self.dtype = dtype

    def checked(self, value: Any, n: int | None, argument: str) -> Batch:
        r"""A batch of what foreign code gave: n finite rows on the student's device and type.

        Arguments:
            value: A Batch, or x: a tensor, a NumPy array, or a dict of these.
            n: The number of rows there must be; None takes any number.
            argument: What an error calls the giver.
        """
        batch = value if isinstance(value, Batch) else Batch(value)
        if isinstance(batch.x, tuple | list) or not hasattr(batch.x, "__len__"):
            received = f"a draw of type {type(batch.x).__name__}"
            raise ArgumentError(argument, received, "a Batch, a tensor or a dict of tensors")
        parts = {name: self._loose(part) for name, part in as_parts(batch.x, argument).items()}
        first = next(iter(parts.values())).values
        rows = len(first) if n is None else n
        for name, part in parts.items():
            check_rows(part.values, rows, label(argument, name), "were asked for")
        x = cast_parts(parts, self.device, self.dtype, argument)
        beside = {}
        for field in ("y", "weight", "index"):
            given = getattr(batch, field)
            if given is not None:
                part = self._loose(as_part(given, f"{argument}.{field}"))
                check_rows(part.values, rows, f"{argument}.{field}", "x")
                beside[field] = cast(part, self.device, self.dtype, f"{argument}.{field}")
        return Batch(x, **beside)

    def _loose(self, part: Part) -> Part:
        return part._replace(typed=part.typed and not self.converts)
