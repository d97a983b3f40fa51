r"""Inputs to ask the teacher about, made of the user's rows: by name."""

from __future__ import annotations

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

__all__ = ["GENERATORS", "Rounded", "candidates", "float_type", "fresh", "generator"]

FLOW_ROWS, FLOW_COLUMNS, FLOW_DISTINCT = 500, 32, 100
r"""When "auto" tries a flow: rows at least, columns at most, different numbers in each at least."""

MUNGED = 20_000
r"""Rows at most that "munge" looks for neighbours among, which takes time quadratic in them."""

SPREAD = 0.25
r"""Standard deviations of the noise in "noise", relative to each column's."""


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
    r"""Inputs of a generator as the teacher gets them: whole numbers are whole.

    Arguments:
        source: The generator.
        layout: What the rows are.
    """

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
    from limbeck.compression.density import fit_nade

    return Samples(fit_nade(_matrix(x, "nade"), seed=seed, progress=progress))


def _mixture(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    from limbeck.compression.density import fit_mixture

    return Samples(fit_mixture(_matrix(x, "mixture"), seed=seed, progress=progress))


def _flow(layout: RowFormat, x: X, seed: int, progress: bool) -> Inputs:
    from limbeck.compression.density import fit_flow

    return Samples(fit_flow(_matrix(x, "flow"), seed=seed, progress=progress))


def _matrix(x: X, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        received = f"{name!r} for a table"
        raise ArgumentError("inputs", received, "'munge' or 'columns', which know its columns")
    return x


GENERATORS: dict[str, Callable[[RowFormat, Any, int, bool], Inputs]] = {
    "data": _data,
    "munge": _munge,
    "noise": _noise,
    "columns": _columns,
    "nade": _nade,
    "mixture": _mixture,
    "flow": _flow,
}
r"""What each name makes, of (layout, rows, seed, progress)."""
