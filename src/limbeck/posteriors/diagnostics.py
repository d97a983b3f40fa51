r"""What the draws of a stream are worth, in little memory however long and wide it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from limbeck.posteriors.arrays import is_whole
from limbeck.posteriors.structure import Structure
from limbeck.samplers.diagnostics import Running, effective_size, r_hat
from limbeck.storage.files import under

if TYPE_CHECKING:
    from limbeck.posteriors.draws import Draws

__all__ = ["LARGE", "Diagnostics", "Watch", "diagnose", "spread"]

LARGE = 1.05
r"""An R̂ above this is warned of."""

NUMBERS = 10**8
r"""How many numbers are looked at; of more, a part of the coordinates stands for all."""

FEWEST = 4
r"""Draws a chain below which nothing can be said."""


class Diagnostics(NamedTuple):
    r"""R̂ and effective sizes, coordinate by coordinate.

    Attributes:
        names: What the coordinates are called, as 'alpha[3]'.
        r_hat: R̂ of chains cut in halves, (coordinates,); NaN where chains are too short.
        ess: The effective size of all chains together, (coordinates,).
        reasons: What there is to distrust, a sentence each; none if all seems well.
    """

    names: list[str]
    r_hat: Tensor
    ess: Tensor
    reasons: list[str]

    @property
    def warning(self) -> str | None:
        r"""All reasons as one text, or None."""
        return "posterior: " + "; ".join(self.reasons) if self.reasons else None


def diagnose(draws: Draws, most: int) -> Diagnostics:
    r"""Look at stored draws, at no more than so many coordinates."""
    chosen = spread(draws.structure.dim, min(most, max(1, NUMBERS // draws.count)))
    names = [draws.structure.label(index) for index in chosen]
    r_hats, sizes = torch.empty(2, len(chosen), dtype=torch.float64)
    stuck: dict[int, str] = {}
    for place, index in enumerate(chosen):
        series = draws.series(index)
        r_hats[place], sizes[place] = r_hat(series), effective_size(series)
        if not is_whole(draws.parts[draws.structure.place(index)[0]]):
            stuck = dict.fromkeys(_stuck(series), names[place]) | stuck
    return Diagnostics(names, r_hats, sizes, _reasons(names, r_hats, stuck, draws.chains))


def spread(dim: int, most: int) -> list[int]:
    r"""At most so many of `dim` coordinates, evenly spread.

    >>> spread(3, 5), spread(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    count = max(1, min(dim, most))
    step = (dim - 1) / max(1, count - 1)
    return [round(place * step) for place in range(count)]


def _stuck(series: Tensor) -> list[int]:
    r"""Chains that never moved, where others did."""
    still = (series == series[:, :1]).all(1)
    found: list[int] = still.nonzero()[:, 0].tolist()
    return found if series.shape[1] >= FEWEST and not still.all() else []


def _reasons(names: Sequence[str], found: Tensor, stuck: dict[int, str], chains: int) -> list[str]:
    reasons = []
    if stuck:
        shown = ", ".join(map(str, sorted(stuck)[:5])) + (", …" if len(stuck) > 5 else "")
        reasons.append(
            f"{len(stuck)} of {chains} chains are stuck (all draws of {stuck[min(stuck)]} are the "
            f"same there): {shown}"
        )
    if (found > LARGE).any():
        worst = int(found.nan_to_num(0.0).argmax())
        reasons.append(
            f"R̂ of {names[worst]} is {float(found[worst]):.3g} (above {LARGE:g} for "
            f"{int((found > LARGE).sum())} of {len(names)}): the chains disagree, or are too short "
            "to tell"
        )
    return reasons


CHAINS = 256
WATCHED_NUMBERS = 2**14
r"""How many numbers of a batch are watched, of how many chains; a kilobyte is kept for each."""


class Watch:
    r"""R̂ and effective sizes of a part of the chains and coordinates of parallel chains.

    Arguments:
        structure: What draws look like.
        chains: How many draws a batch has.
    """

    def __init__(self, structure: Structure, chains: int) -> None:
        self.chains, self.kept = chains, min(chains, CHAINS)
        chosen = spread(structure.dim, WATCHED_NUMBERS // self.kept)
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
