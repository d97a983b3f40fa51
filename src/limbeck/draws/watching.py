r"""What the draws of a stream are worth, in little memory however long and wide it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from limbeck.core.checkpoint import under
from limbeck.draws.diagnostics import Diagnostics, spread
from limbeck.draws.structure import Structure
from limbeck.samplers.running import Running

__all__ = ["Watch"]

CHAINS = 256
NUMBERS = 2**14
r"""How many numbers of a batch are watched, of how many chains; a kilobyte is kept for each."""


class Watch:
    r"""R̂ and effective sizes of a part of the chains and coordinates of parallel chains.

    Arguments:
        structure: What draws look like.
        chains: How many draws a batch has.
    """

    def __init__(self, structure: Structure, chains: int) -> None:
        self.chains, self.kept = chains, min(chains, CHAINS)
        chosen = spread(structure.dim, NUMBERS // self.kept)
        names = [structure.label(index) for index in chosen]
        starts = torch.tensor([0, *structure.sizes]).cumsum(0)
        every = torch.tensor(chosen)
        self.places = {
            name: every[(every >= start) & (every < end)] - start
            for name, start, end in zip(structure.names, starts, starts[1:], strict=False)
        }
        self.names, self.running = names, Running(names)

    def update(self, parts: Mapping[str, Tensor]) -> None:
        r"""Take notice of one more draw of each chain, (chains, ...) by name."""
        rows = [
            parts[name][: self.kept].reshape(self.kept, -1)[:, at.to(parts[name].device)].cpu()
            for name, at in self.places.items()
            if len(at)
        ]
        self.running.update(torch.cat(rows, 1))

    def diagnostics(self) -> Diagnostics:
        r"""R̂, effective sizes, and what there is to distrust so far."""
        running = self.running
        return Diagnostics(self.names, running.r_hat, running.ess, running.reasons())

    def state_dict(self) -> dict[str, Tensor]:
        return {f"watch.{key}": value for key, value in self.running.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.running = Running(self.names)
        if kept := under("watch.", state):
            self.running.load_state_dict(kept)
