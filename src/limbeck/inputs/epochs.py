r"""Row numbers in shuffled passes: every row is seen before any is seen again."""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.errors import CheckpointError

__all__ = ["Epochs"]


class Epochs:
    r"""Passes over N rows, each in a new random order.

    >>> epochs = Epochs(3)
    >>> sorted(epochs.draw(6, torch.Generator()).tolist())
    [0, 0, 1, 1, 2, 2]
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.order = torch.empty(0, dtype=torch.int64)
        self.position = 0

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        r"""The next n row numbers (n,), over as many passes as that takes."""
        end = self.position + n
        if end <= len(self.order):  # by far the most common case, and the loop is in a hurry
            piece, self.position = self.order[self.position : end], end
            return piece
        pieces = []
        while n > 0:
            if self.position == len(self.order):
                self.order = torch.randperm(self.rows, generator=generator, device=generator.device)
                self.position = 0
            piece = self.order[self.position : self.position + n]
            self.position += len(piece)
            n -= len(piece)
            pieces.append(piece)
        return torch.cat(pieces)

    def state_dict(self) -> dict[str, Tensor]:
        return {"order": self.order.clone(), "position": torch.tensor(self.position)}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device) -> None:
        if len(state["order"]) not in (0, self.rows):
            raise CheckpointError(
                f"The checkpoint is of a data set of {len(state['order'])} rows, not {self.rows}."
            )
        self.order = state["order"].to(device, copy=True)
        self.position = int(state["position"])
