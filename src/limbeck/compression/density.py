r"""Densities fitted to the user's rows, to draw new ones from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from limbeck.models.nade import NADE
from limbeck.models.supports import Binary, States

__all__ = ["Bins", "NadeRows", "fit_mixture", "fit_nade"]

BINS = 16
r"""States of a column of numbers, at most."""

PASSES, FEWEST, RATE = 20, 500, 1e-2
r"""How a NADE is fitted: passes over the rows, steps at least, Adam's rate."""

COMPONENTS = 10
r"""Components of a mixture, at most."""


class Bins:
    r"""Columns of numbers as states: equally many rows in each, as far as ties allow.

    Arguments:
        x: The rows (n, D).
        most: States of a column at most.
    """

    def __init__(self, x: Tensor, most: int = BINS) -> None:
        levels = torch.linspace(0, 1, most + 1, dtype=torch.float64)[1:-1]
        self.edges = [column.double().quantile(levels).unique() for column in x.T]
        self.count = max(2, 1 + max(len(edges) for edges in self.edges))
        self.values = [column.sort().values for column in x.T]
        self.ends = [
            torch.searchsorted(values.double(), edges, right=True)
            for values, edges in zip(self.values, self.edges, strict=True)
        ]

    def codes(self, x: Tensor) -> Tensor:
        r"""States (n, D) of rows."""
        pairs = zip(x.T, self.edges, strict=True)
        found = [torch.searchsorted(edges, column.double().contiguous()) for column, edges in pairs]
        return torch.stack(found, 1)

    def draw(self, codes: Tensor, generator: torch.Generator | None) -> Tensor:
        r"""Rows with the given states: a value of the data from each bin."""
        uniform = torch.rand(codes.shape, generator=generator, device=codes.device).cpu()
        found = []
        for code, u, values, ends in zip(
            codes.cpu().T, uniform.T, self.values, self.ends, strict=True
        ):
            bounds = torch.cat([ends.new_zeros(1), ends, ends.new_tensor([len(values)])])
            code = code.long().clamp_max(len(bounds) - 2)  # states that a column does not have
            low, high = bounds[code], bounds[code + 1]
            place = (low + (u * (high - low)).long()).clamp_max(len(values) - 1)
            found.append(values[place])
        return torch.stack(found, 1).to(codes.device)


class NadeRows:
    r"""A NADE over rows of any shape, which gives rows again.

    Arguments:
        nade: The fitted NADE.
        shape: The shape of a row.
        bins: For numbers: how states become values.
        shades: Whether rows are the conditional probabilities met while sampling.
    """

    def __init__(
        self, nade: NADE, shape: torch.Size, bins: Bins | None = None, shades: bool = False
    ) -> None:
        self.nade, self.shape, self.bins, self.shades = nade, shape, bins, shades

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""New rows (n, *shape)."""
        if self.shades:
            x = self.nade.sample_probabilities(n, generator)
        else:
            x = self.nade.sample(n, generator)
        if self.bins is not None:
            x = self.bins.draw(x, generator)
        return x.reshape(n, *self.shape).to(torch.float32)


def fit_nade(
    x: Tensor, *, hidden: int | None = None, seed: int = 0, progress: bool = True
) -> NadeRows:
    r"""A NADE fitted to rows: to bits as they are, to shades in [0, 1] rounded, else to bins.

    Arguments:
        x: The rows (n, ...).
        hidden: Hidden units; by default about as many as columns, from 20 to 500.
        seed: Seeds start and order of rows.
        progress: Whether to show a bar.
    """
    flat = x.flatten(1)
    inputs = flat.shape[1]
    bits = bool(((flat == 0) | (flat == 1)).all())
    shades = not bits and _like_shades(flat)
    bins = None if bits or shades else Bins(flat)
    events = flat.round() if bits or shades else bins.codes(flat).float()  # type: ignore[union-attr]
    support = Binary(inputs) if bins is None else States(bins.count, inputs)
    nade = NADE(
        inputs, hidden or min(500, max(20, inputs)), support=support,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    steps, size = max(FEWEST, math.ceil(PASSES * len(flat) / 100)), min(100, len(flat))
    nade.fit(events, steps, batch_size=size, lr=RATE, seed=seed, progress=progress)
    return NadeRows(nade.cpu(), x.shape[1:], bins, shades)


def fit_mixture(
    x: Tensor, *, components: int | None = None, seed: int = 0, progress: bool = True
) -> object:
    r"""A Gaussian mixture fitted to rows of numbers by EM.

    Arguments:
        x: The rows (n, D).
        components: Their number; by default one for each fifty rows, at most ten.
        seed: Seeds the starts.
        progress: Whether to show a bar.
    """
    from limbeck.models.mixture import GaussianMixture
    from limbeck.models.mixture_em import fit_em

    number = components or max(1, min(COMPONENTS, len(x) // 50))
    mixture = GaussianMixture(number, dim=x.shape[1])
    fit_em(mixture, x, generator=torch.Generator().manual_seed(seed), progress=progress)
    return mixture


def _like_shades(flat: Tensor) -> bool:
    r"""Whether numbers look like pixels: within [0, 1], and many of them at its ends."""
    inside = bool(((flat >= 0) & (flat <= 1)).all())
    return inside and float(((flat < 0.02) | (flat > 0.98)).float().mean()) > 0.3
