r"""What a student draws from torch's own generator (dropout), kept apart from the user's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["OwnRandomness", "global_state"]


def global_state(device: torch.device) -> Tensor:
    r"""The state of torch's own generator for a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class OwnRandomness:
    r"""Lends its own seeded state to torch's generator, and takes it back with what was drawn.

    Arguments:
        device: The device whose generator it is.
        seed: Where to start.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.state = torch.Generator(device).manual_seed(seed).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        outer = global_state(self.device)
        self._set(self.state)
        try:
            yield
        finally:
            self.state = global_state(self.device)
            self._set(outer)

    def _set(self, state: Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)
