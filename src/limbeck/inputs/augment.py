r"""Rows of a data set after a random transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limbeck.core.batch import Batch
from limbeck.inputs.calls import SeededCall
from limbeck.inputs.dataset import Dataset
from limbeck.inputs.nested import Nested

__all__ = ["Augment"]


class Augment(Nested):
    r"""Transformed rows; labels go with them, row numbers do not.

    Arguments:
        X: The data, anything that Dataset takes; rows are drawn in shuffled passes.
        transform: A function of x (n, ...), or of x and `generator`, that gives as many rows.
            One that draws from the global generators is reproducible all the same.
        y: Labels (N, ...).
        seed: The generator's seed; None takes the seed of the distillation.

    >>> import torch
    >>> Augment([[1.0], [2.0]], lambda x: x + torch.rand_like(x))(4).x.shape
    torch.Size([4, 1])
    """

    def __init__(
        self, X: Any, transform: Callable[..., Any], y: Any = None, seed: int | None = None
    ) -> None:
        self.data = Dataset(X, y)
        self.transform = SeededCall(transform, "transform")
        super().__init__([self.data], seed)

    def draw(self, n: int) -> Batch:
        batch = self.data.build(self.data.next_rows(n))
        x = self.checked(self.transform(self.generator, batch.x), n, "transform").x
        return Batch(x, batch.y)
