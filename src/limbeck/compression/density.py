r"""Densities fitted to the user's rows, to draw new ones from."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.nade import NADE
from limbeck.supports import Binary, States

__all__ = ["Bins", "NadeRows", "Varying", "fit_flow", "fit_mixture", "fit_nade"]

BINS = 16
r"""States of a column of numbers, at most."""

PASSES, FEWEST, RATE = 20, 500, 1e-2
r"""How a NADE is fitted: passes over the rows, steps at least, Adam's rate."""

COMPONENTS = 10
r"""Components of a mixture, at most."""

FEWEST_ROWS = 20
r"""Rows that a flow needs at least."""

FLOW_STEPS, FLOW_LOOK, FLOW_RATE = 2000, 25, 2e-3
r"""How a flow is fitted: steps at most, steps between two looks at rows held out, Adam's rate."""


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
        dtype: The floating type of the rows.
    """

    def __init__(
        self,
        nade: NADE,
        shape: torch.Size,
        bins: Bins | None = None,
        shades: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.nade, self.shape, self.bins, self.shades = nade, shape, bins, shades
        self.dtype = dtype

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""New rows (n, *shape)."""
        if self.shades:
            x = self.nade.sample_probabilities(n, generator)
        else:
            x = self.nade.sample(n, generator)
        if self.bins is not None:
            x = self.bins.draw(x, generator)
        return x.reshape(n, *self.shape).to(self.dtype)


def fit_nade(x: Tensor, *, seed: int = 0, progress: bool = True) -> NadeRows:
    r"""A NADE fitted to rows: to bits as they are, to shades in [0, 1] rounded, else to bins.

    Arguments:
        x: The rows (n, ...).
        seed: Seeds start and order of rows.
        progress: Whether to show a bar.
    """
    flat = x.flatten(1)
    inputs = flat.shape[1]
    bits = bool(((flat == 0) | (flat == 1)).all())
    shades = not bits and _like_shades(flat)
    bins = None if bits or shades else Bins(flat)
    events = flat.round().float() if bits or shades else bins.codes(flat).float()  # type: ignore[union-attr]
    support = Binary(inputs) if bins is None else States(bins.count, inputs)
    nade = NADE(
        inputs, min(500, max(20, inputs)), support=support,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    steps, size = max(FEWEST, math.ceil(PASSES * len(flat) / 100)), min(100, len(flat))
    nade.fit(events, steps, batch_size=size, lr=RATE, seed=seed, progress=progress)
    return NadeRows(nade.cpu(), x.shape[1:], bins, shades, x.dtype)


class Varying:
    r"""A density of the columns that vary, standardised; the others stay as they are.

    Arguments:
        x: Rows (n, ...).
    """

    model: Any

    def __init__(self, x: Tensor) -> None:
        flat = x.flatten(1).double()
        self.first, self.shape, self.dtype = flat[0], x.shape[1:], x.dtype
        self.columns = (flat != flat[0]).any(0).nonzero()[:, 0]
        chosen = flat[:, self.columns]
        self.mean = chosen.mean(0)
        self.deviation = (chosen - self.mean).square().mean(0).sqrt()
        self.rows = ((chosen - self.mean) / self.deviation).float()  # (n, columns that vary)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""New rows (n, *shape)."""
        found = self.first.repeat(n, 1)
        if len(self.columns):
            drawn = self.model.sample(n, generator).cpu().double()
            found[:, self.columns] = drawn * self.deviation + self.mean
        return found.reshape(n, *self.shape).to(self.dtype)


def fit_mixture(
    x: Tensor, *, components: int | None = None, seed: int = 0, progress: bool = True
) -> Varying:
    r"""A Gaussian mixture fitted to rows of numbers by EM.

    Arguments:
        x: The rows (n, ...).
        components: Their number; by default one for each fifty rows, at most ten.
        seed: Seeds the starts.
        progress: Whether to show a bar.
    """
    from limbeck.models.mixture import GaussianMixture
    from limbeck.models.mixture_em import fit_em

    found = Varying(x)
    if len(found.columns):
        number = components or max(1, min(COMPONENTS, len(x) // 50))
        found.model = GaussianMixture(number, dim=len(found.columns))
        generator = torch.Generator().manual_seed(seed)
        fit_em(found.model, found.rows, generator=generator, progress=progress)
    return found


def fit_flow(
    x: Tensor, *, steps: int | None = None, seed: int = 0, progress: bool = True
) -> Varying:
    r"""A neural spline flow fitted to rows of numbers, by maximum likelihood.

    A tenth of the rows is held out, and the flow is kept that says most of these: with few rows it
    would soon know them by heart.

    Arguments:
        x: The rows (n, ...), twenty or more.
        steps: Steps at most; 2,000 by default.
        seed: Seeds the first weights, and which rows are held out.
        progress: Whether to show a bar.
    """
    from limbeck.losses import kl
    from limbeck.models.flow import Flow, zuko
    from limbeck.training.distill import distill

    zuko()
    if len(x) < FEWEST_ROWS:
        received = f"'flow' for {len(x)} rows"
        raise ArgumentError("inputs", received, f"{FEWEST_ROWS} or more, to see when it overfits")
    found = Varying(x)
    if not len(found.columns):
        return found
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    held, learnt = order[: max(2, len(x) // 10)], order[max(2, len(x) // 10) :]
    flow = Flow(len(found.columns), generator=generator)
    with warnings.catch_warnings():  # of several processes: all fit the same flow
        warnings.filterwarnings("ignore", "engine: this is one of")
        distill(
            None, flow, found.rows[learnt], kl(), steps=steps or FLOW_STEPS, every=FLOW_LOOK,
            patience=10, held_out=found.rows[held], lr=FLOW_RATE, clip=10.0, seed=seed,
            engine="eager", device="cpu", progress=progress,
        )  # fmt: skip
    found.model = flow
    return found


def _like_shades(flat: Tensor) -> bool:
    r"""Whether numbers look like pixels: within [0, 1], and many of them at its ends."""
    inside = bool(((flat >= 0) & (flat <= 1)).all())
    return inside and float(((flat < 0.02) | (flat > 0.98)).float().mean()) > 0.3
