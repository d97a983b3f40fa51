r"""Inputs to ask the teacher about, made of the user's rows: by name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from limbeck.arrays import Batch, X, floats, join, map_tensors, rows
from limbeck.compression.rows import RowFormat, TableFormat
from limbeck.errors import ArgumentError
from limbeck.inputs import Augment, Dataset, Munge, Samples
from limbeck.inputs.base import Inputs, Nested
from limbeck.models.nade import NADE
from limbeck.supports import Binary, States

__all__ = ["GENERATORS", "Rounded", "candidates", "float_type", "fresh", "generator"]

# when "auto" tries a flow: rows at least, columns at most, different numbers in each at least
FLOW_ROWS, FLOW_COLUMNS, FLOW_DISTINCT = 500, 32, 100
# rows at most that "munge" looks for neighbours among, which takes time quadratic in them
MUNGED = 20_000
SPREAD = 0.25  # standard deviations of the noise in "noise", relative to each column's


def generator(name: str, layout: RowFormat, x: X, *, seed: int, progress: bool = True) -> Inputs:
    r"""A source of inputs by name, made of some of the rows.

    * "data": the rows themselves;
    * "munge": rows mixed with their nearest neighbours (`limbeck.inputs.Munge`), of at most 20,000;
    * "noise": rows with normal noise, a quarter of each column's standard deviation;
    * "columns": each column drawn from the data on its own;
    * "nade": samples of a NADE fitted to the rows: bits, shades from 0 to 1, or numbers in bins;
    * "mixture": samples of a Gaussian mixture fitted to the rows, for numbers;
    * "flow": samples of a neural spline flow fitted to the rows, for numbers (limbeck[flows]).

    Arguments:
        name: One of `GENERATORS`.
        layout: What the rows are.
        x: The rows, as tensors.
        seed: Seeds what is fitted.
        progress: Whether fitting shows a bar.
    """
    if name not in GENERATORS:
        raise ArgumentError.unknown("inputs", name, ["auto", *GENERATORS])
    source = GENERATORS[name](layout, x, seed, progress)
    return Rounded(source, layout) if layout.whole and name != "data" else source


class Rounded(Nested):
    r"""Inputs of a generator as the teacher gets them: whole numbers are whole."""

    def __init__(self, source: Inputs, layout: RowFormat) -> None:
        super().__init__([source])
        self.layout = layout

    def draw(self, n: int) -> Any:
        return self.sources[0].draw(n)

    def build(self, drawn: Any) -> Batch:
        batch = self.sources[0].build(drawn)
        return batch._replace(x=self.layout.rounded(batch.x))


def float_type(source: Inputs, seed: int) -> torch.dtype:
    r"""The widest type that a source of the user's own gives numbers in: its tensors have one."""
    try:
        source.to(torch.device("cpu"), torch.float64, seed)
        source.probe(1)
    except ArgumentError:
        return torch.float32
    return torch.float64


def fresh(
    name: str | Inputs, layout: RowFormat, x: X, count: int, seed: int, progress: bool = False
) -> X:
    r"""So many inputs of a generator, of the same types as the rows."""
    source = name
    dtype = next((part.dtype for part in floats(x).values()), torch.float32)
    if isinstance(source, str):
        source = generator(source, layout, x, seed=seed, progress=progress)
    elif dtype == torch.float64:
        dtype = float_type(source, seed)
    source.to(torch.device("cpu"), dtype, seed)
    found, left = [], count
    while left:
        found.append(source(min(left, rows(x))).x)
        left -= rows(found[-1])
    return join(found)


def candidates(layout: RowFormat, x: X, live: bool = False, size: int | None = None) -> list[str]:
    r"""What `inputs="auto"` tries; the rows alone, where these are all that the teacher is asked.

    A flow is among it if zuko is there, for enough rows of continuous numbers; but not where the
    teacher is asked at fresh inputs each step, since its samples take their time.
    """
    if rows(x) < 2 or (size is not None and size <= rows(x) and not live):
        return ["data"]
    bits = isinstance(x, Tensor) and bool(((x == 0) | (x == 1)).all())
    found = ["data", "munge", "columns" if bits or isinstance(layout, TableFormat) else "noise"]
    if not live and isinstance(x, Tensor) and _flows(x) and find_spec("zuko"):
        found.append("flow")
    return found


def _flows(x: Tensor) -> bool:
    r"""Whether rows are as flows are good for: many, of a few numbers that hardly come twice."""
    many = len(x) >= FLOW_ROWS and x.ndim == 2 and 2 <= x.shape[1] <= FLOW_COLUMNS
    return many and all(len(column.unique()) >= FLOW_DISTINCT for column in x.T)


def _data(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    return Dataset(x)


def _munge(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    if rows(x) > MUNGED:
        order = torch.randperm(rows(x), generator=torch.Generator().manual_seed(seed))
        x = map_tensors(lambda t: t[order[:MUNGED]], x)
    if isinstance(layout, TableFormat):
        source: Inputs = layout.table.munge(x)
        return source
    assert isinstance(x, Tensor)
    # columns of two values, such as bits, are not to be moved in between
    flat = x.flatten(1)
    two = [k for k in range(flat.shape[1]) if len(flat[:, k].unique()) <= 2]
    return Munge(x, categorical=two if x.ndim == 2 else ())


def _noise(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    few = int(rows(x) > 1)  # one row has no deviation
    deviation = map_tensors(
        lambda t: t.std(0, correction=few) if t.is_floating_point() else t[0], x
    )

    def noisy(part: Tensor, spread: Tensor, generator: torch.Generator) -> Tensor:
        if not part.is_floating_point():
            return part
        noise = torch.empty_like(part).normal_(generator=generator)
        return part + SPREAD * spread.to(part) * noise

    def transform(part: X, generator: torch.Generator) -> X:
        if isinstance(part, Tensor):
            return noisy(part, deviation, generator)
        return {name: noisy(p, deviation[name], generator) for name, p in part.items()}

    return Augment(x, transform)


def _columns(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    held: dict[str, Tensor] = {"": x} if isinstance(x, Tensor) else x
    together = (
        layout.table.groups() if isinstance(layout, TableFormat) else {name: name for name in held}
    )

    def transform(part: X, generator: torch.Generator) -> X:
        n, chosen, found = rows(part), {}, {}
        for name, column in held.items():
            column = column.to(generator.device)
            wide = column[0].numel() if isinstance(x, Tensor) else 1
            key = together[name]
            if key not in chosen:  # a value and whether it is missing go together
                chosen[key] = torch.randint(
                    len(column), (n, wide), generator=generator, device=generator.device
                )
            picked = (
                column.flatten(1).gather(0, chosen[key])
                if column.ndim > 1
                else column[chosen[key][:, 0]]
            )
            found[name] = picked.reshape(n, *column.shape[1:])
        return found.get("", found)

    return Augment(x, transform)


def _nade(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    return Samples(fit_nade(_matrix(x, "nade"), seed=seed, progress=progress))


def _mixture(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    return Samples(fit_mixture(_matrix(x, "mixture"), seed=seed, progress=progress))


def _flow(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    return Samples(fit_flow(_matrix(x, "flow"), seed=seed, progress=progress))


def _matrix(x: X, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        received = f"{name!r} for a table"
        raise ArgumentError("inputs", received, "'munge' or 'columns', which know its columns")
    return x


# what each name makes, of (layout, rows, seed, progress)
GENERATORS: dict[str, Callable[[RowFormat, Any, int, bool], Inputs]] = {
    "data": _data,
    "munge": _munge,
    "noise": _noise,
    "columns": _columns,
    "nade": _nade,
    "mixture": _mixture,
    "flow": _flow,
}


BINS = 16  # states of a column of numbers, at most
# how a NADE is fitted: passes over the rows, steps at least, Adam's rate
PASSES, FEWEST, RATE = 20, 500, 1e-2
COMPONENTS = 10  # components of a mixture, at most
FEWEST_ROWS = 20  # rows that a flow needs at least
# how a flow is fitted: steps at most, steps between two looks at rows held out, Adam's rate
FLOW_STEPS, FLOW_LOOK, FLOW_RATE = 2000, 25, 2e-3


class Bins:
    r"""Columns of numbers as states: equally many rows in each, as far as ties allow."""

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
    r"""A NADE over rows of any shape, which gives rows again."""

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
    r"""A NADE fitted to rows: to bits as they are, to shades in [0, 1] rounded, else to bins."""
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
    r"""A density of the columns that vary, standardised; the others stay as they are."""

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
    r"""A Gaussian mixture fitted to rows of numbers by EM."""
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
