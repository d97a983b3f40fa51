r"""Generators of inputs for the teacher, made from the user's rows and selected by name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import Batch, X, as_dict, floats, join, map_tensors, rows
from limbeck.compression.rows import RowFormat, TableFormat
from limbeck.errors import ArgumentError
from limbeck.inputs import Augment, Dataset, Munge, as_inputs
from limbeck.inputs.base import Inputs, Nested
from limbeck.models.nade import NADE

MUNGED = 20_000  # rows at most that "munge" looks for neighbours among, in time quadratic in them
FLOW_STEPS = 2000  # steps that a flow is fitted in, at most
FEWEST_ROWS = 20  # rows that a flow needs at least


def generator(
    name: str, layout: RowFormat, x: X, seed: int, progress: bool = True, weight: Any = None
) -> Inputs:
    r"""A source of inputs by name, made of some of the rows.

    Weights (n,) of rows, of mean 1, are kept by inputs that start from one row ("data", "munge" and
    "noise"); others have none, which is a weight of 1.

    * "data": the rows themselves;
    * "munge": rows mixed with their nearest neighbours (`limbeck.inputs.Munge`), of at most 20,000;
    * "noise": rows with normal noise, a quarter of each column's standard deviation;
    * "columns": each column drawn from the data on its own;
    * "nade": samples of a NADE fitted to the rows: bits, or shades from 0 to 1;
    * "mixture": samples of a Gaussian mixture fitted to the rows, for numbers;
    * "flow": samples of a neural spline flow fitted to the rows, for numbers (limbeck[flows]).
    """
    if name not in GENERATORS:
        raise ArgumentError.unknown("inputs", name, ["auto", *GENERATORS])
    source = GENERATORS[name](layout, x, seed, progress, weight)
    return Rounded(source, layout) if layout.whole and name != "data" else source


class Rounded(Nested):
    r"""Inputs of a generator as the teacher receives them: whole numbers are rounded."""

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


def prepared(
    source: str | Inputs, layout: RowFormat, x: X, seed: int, progress: bool = False,
    weight: Any = None,
) -> Inputs:  # fmt: skip
    r"""A generator by name, or the user's own, seeded, on the CPU, with the types of the rows."""
    dtype = next((part.dtype for part in floats(x).values()), torch.float32)
    if isinstance(source, str):
        source = generator(source, layout, x, seed, progress, weight)
    elif dtype == torch.float64:
        dtype = float_type(source, seed)
    source.to(torch.device("cpu"), dtype, seed)
    return source


def drawn(source: Inputs, count: int, most: int) -> tuple[X, np.ndarray]:
    r"""The next inputs of a generator, at most so many at once, and their weights."""
    batches, missing = list[Batch](), count
    while missing:
        batches.append(source(min(missing, most)))
        missing -= rows(batches[-1].x)
    ones = [torch.ones(rows(batch.x)) for batch in batches]
    weights = [o if b.weight is None else b.weight for o, b in zip(ones, batches, strict=True)]
    return join([batch.x for batch in batches]), torch.cat(weights).double().numpy()


def fresh(source: str | Inputs, layout: RowFormat, x: X, count: int, seed: int) -> X:
    r"""A given number of inputs of a generator, with the types of the rows."""
    return drawn(prepared(source, layout, x, seed), count, rows(x))[0]


def candidates(layout: RowFormat, x: X, live: bool = False, size: int | None = None) -> list[str]:
    r"""What `inputs="auto"` tries; the rows alone, where the teacher labels no others."""
    if rows(x) < 2 or (size is not None and size <= rows(x) and not live):
        return ["data"]
    bits = isinstance(x, Tensor) and _is_bits(x)
    # samples of densities take many times as long to fit, and are hardly ever nearer
    return ["data", "munge", "columns" if bits or isinstance(layout, TableFormat) else "noise"]


def _is_bits(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _munge(layout: RowFormat, x: X, seed: int, progress: bool, weight: Any) -> Inputs:
    if rows(x) > MUNGED:
        order = torch.randperm(rows(x), generator=torch.Generator().manual_seed(seed))
        x = map_tensors(lambda t: t[order[:MUNGED]], x)
        weight = None if weight is None else weight[order[:MUNGED].numpy()]
    if isinstance(layout, TableFormat):
        return layout.table.munge(x, weight=weight)
    assert isinstance(x, Tensor)
    # columns of two values, such as bits, are not to be moved in between
    two = [k for k in range(x.shape[1]) if x.ndim == 2 and len(x[:, k].unique()) <= 2]
    return Munge(x, categorical=two, weight=weight)


def _noise(layout: RowFormat, x: X, seed: int, progress: bool, weight: Any) -> Inputs:
    correction = int(rows(x) > 1)  # one row has no deviation
    spread = {name: part.std(0, correction=correction) for name, part in floats(x).items()}

    def transform(part: X, generator: torch.Generator) -> X:
        columns = dict(as_dict(part))
        for name, column in floats(part).items():
            noise = torch.empty_like(column).normal_(generator=generator)
            columns[name] = column + 0.25 * spread[name].to(column) * noise
        return columns.get("", columns)

    return Augment(x, transform, weight=weight)


def _columns(layout: RowFormat, x: X, *_: object) -> Inputs:
    columns = as_dict(x)
    groups = layout.table.groups() if isinstance(layout, TableFormat) else {}

    def transform(part: X, generator: torch.Generator) -> X:
        n, device = rows(part), generator.device
        chosen: dict[str, Tensor] = {}
        drawn: dict[str, Tensor] = {}
        for name, column in columns.items():
            flat = column.to(device).reshape(len(column), -1)
            group = groups.get(name, name)
            if group not in chosen:  # a value and whether it is missing go together
                size = n, flat.shape[1]
                chosen[group] = torch.randint(len(flat), size, generator=generator, device=device)
            drawn[name] = flat.gather(0, chosen[group]).reshape(n, *column.shape[1:])
        return drawn.get("", drawn)

    return Augment(x, transform)


def fit_nade(x: Tensor, seed: int, progress: bool) -> Callable[..., Tensor]:
    r"""A function that draws rows of a NADE, fitted to bits or to rounded shades in [0, 1]."""
    flat = x.flatten(1)
    if not bool(((flat >= 0) & (flat <= 1)).all()):
        received = f"'nade' for numbers from {flat.min():g} to {flat.max():g}"
        raise ArgumentError("inputs", received, "bits or shades in [0, 1]; 'mixture' for others")
    inputs = flat.shape[1]
    nade = NADE(inputs, min(500, max(20, inputs)), generator=torch.Generator().manual_seed(seed))
    steps, size = max(500, math.ceil(len(flat) / 5)), min(100, len(flat))  # 20 passes
    nade.fit(flat.round(), steps, batch_size=size, lr=1e-2, seed=seed, progress=progress)
    nade = nade.cpu()
    draw = nade.sample if _is_bits(flat) else nade.sample_probabilities
    return lambda n, generator: draw(n, generator).reshape(n, *x.shape[1:]).to(x.dtype)


class Varying:
    r"""A density of the columns that vary, standardised; the others stay as they are."""

    def __init__(self, fit: Callable[..., Any], x: Tensor, seed: int, progress: bool) -> None:
        flat = x.flatten(1).double()
        self.first, self.shape, self.dtype = flat[0], x.shape[1:], x.dtype
        self.columns = (flat != flat[0]).any(0).nonzero()[:, 0]
        chosen = flat[:, self.columns]
        self.mean = chosen.mean(0)
        self.deviation = (chosen - self.mean).square().mean(0).sqrt()
        if len(self.columns):
            self.model = fit(((chosen - self.mean) / self.deviation).float(), seed, progress)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""New rows (n, *shape)."""
        x = self.first.repeat(n, 1)
        if len(self.columns):
            drawn = self.model.sample(n, generator).cpu().double()
            x[:, self.columns] = drawn * self.deviation + self.mean
        return x.reshape(n, *self.shape).to(self.dtype)


def fit_mixture(x: Tensor, seed: int, progress: bool) -> Any:
    r"""A Gaussian mixture fitted to rows of numbers by EM."""
    from limbeck.models.mixture import GaussianMixture
    from limbeck.models.mixture_em import fit_em

    model = GaussianMixture(max(1, min(10, len(x) // 50)), dim=x.shape[1])
    fit_em(model, x, generator=torch.Generator().manual_seed(seed), progress=progress)
    return model


def fit_flow(x: Tensor, seed: int, progress: bool) -> Any:
    r"""A neural spline flow of the highest likelihood at a tenth of the rows, fitted to others."""
    from limbeck.losses import kl
    from limbeck.models.flow import Flow
    from limbeck.training.distill import distill

    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    held_out, learn = order.tensor_split([max(2, len(x) // 10)])
    flow = Flow(x.shape[1], generator=generator)
    with warnings.catch_warnings():  # of several processes: all fit the same flow
        warnings.filterwarnings("ignore", "engine: this is one of")
        distill(
            None, flow, x[learn], kl(), steps=FLOW_STEPS, every=25, patience=10,
            held_out=x[held_out], lr=2e-3, clip=10.0, seed=seed, engine="eager", device="cpu",
            progress=progress,
        )  # fmt: skip
    return flow


def _samples(
    name: str, fit: Callable[..., Any], layout: RowFormat, x: X, seed: int, progress: bool, _: Any
) -> Inputs:
    r"""Samples of a density that is fitted to the rows."""
    if not isinstance(x, Tensor):
        expected = "'munge' or 'columns', which know its columns"
        raise ArgumentError("inputs", f"{name!r} for a table", expected)
    if name == "flow" and len(x) < FEWEST_ROWS:
        expected = f"{FEWEST_ROWS} or more, to see when it overfits"
        raise ArgumentError("inputs", f"'flow' for {len(x)} rows", expected)
    return as_inputs(fit(x, seed, progress))


# functions of (layout, rows, seed, progress, weight), by name
GENERATORS: dict[str, Callable[..., Inputs]] = {
    "data": lambda layout, x, seed, progress, weight: Dataset(x, weight=weight),
    "munge": _munge,
    "noise": _noise,
    "columns": _columns,
    "nade": partial(_samples, "nade", fit_nade),
    "mixture": partial(_samples, "mixture", partial(Varying, fit_mixture)),
    "flow": partial(_samples, "flow", partial(Varying, fit_flow)),
}
