r"""Inputs that a student is not trained on: rows held out, inputs given, or a fresh draw."""

from __future__ import annotations

from copy import copy
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X, map_tensors, rows
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset, Loader, Mix, Seek, as_inputs
from limbeck.inputs.base import Inputs, Nested

__all__ = [
    "FEWEST",
    "FRACTION",
    "GIVEN",
    "MEASURED",
    "HeldOut",
    "NoNewInputs",
    "hold_out",
    "new_rows",
    "split_rows",
    "training_rows",
]

FRACTION = 0.2
r"""The share of the rows that is held out by default."""

FEWEST = (20, 5)
r"""Different rows from which on some are held out by default, and the least number of these."""

MEASURED = 1000
r"""Rows at which a student is measured at most, and the most that are held out by default."""

GIVEN = "held-out inputs"
r"""What inputs are called that the user held out."""

MIXED = "held-out rows and fresh inputs"

BLOCK = 2**24
r"""Bytes of rows that are compared at once."""

ACCEPTED = (
    "'auto', a fraction from 0 to below 1, inputs as a tensor, an array or a Dataset; or None"
)


class NoNewInputs(Exception):  # noqa: N818 - a reason, which the result tells
    r"""Why a student cannot be measured at new inputs."""


class HeldOut(NamedTuple):
    r"""Where a student is trained and where it is measured.

    Attributes:
        training: The inputs to train at.
        source: Held-out inputs; None for a fresh draw of the training inputs.
        kind: What these inputs are called.
        reason: Why there are none; empty where there are.
        rows: Of a data set, the numbers of the rows to train on and of those held out.
    """

    training: Inputs
    source: Inputs | None
    kind: str
    reason: str = ""
    rows: tuple[Tensor, Tensor] | None = None


def hold_out(source: Inputs, held_out: Any, seed: int) -> HeldOut:
    r"""Set inputs aside, by what the user's `held_out` says.

    Arguments:
        source: All inputs.
        held_out: "auto", a fraction of the rows, inputs, or None; see `limbeck.condense`.
        seed: Of the split.
    """
    if held_out is None or (_is_number(held_out) and held_out == 0):
        return HeldOut(source, None, "", "held_out is off")
    if _is_number(held_out):
        if not 0 < held_out < 1:
            raise ArgumentError("held_out", held_out, ACCEPTED)
    elif isinstance(held_out, str):
        if held_out != "auto":
            raise ArgumentError("held_out", repr(held_out), ACCEPTED)
    else:
        given = as_inputs(held_out, "held_out")
        if not isinstance(given, Dataset):
            raise ArgumentError("held_out", f"{type(given).__name__} inputs", ACCEPTED)
        return HeldOut(source, given, GIVEN)
    fraction = None if isinstance(held_out, str) else float(held_out)
    if isinstance(source, Dataset):
        index = split_rows(source.x, fraction, seed)
        if index is None:
            few = f"fewer than {FEWEST[0]} different rows, so that none were held out"
            return HeldOut(source, None, "", few)
        parts = source.take(index[0]), source.take(index[1])
        return HeldOut(*parts, "held-out rows", rows=index)
    return _hold_out_inside(source, fraction, seed)


def _hold_out_inside(source: Inputs, fraction: float | None, seed: int) -> HeldOut:
    r"""Split the data sets that a mixture is made of; other sources give fresh inputs."""
    if not isinstance(source, Mix | Seek):
        return HeldOut(source, None, "fresh inputs")
    inner = [hold_out(each, fraction or "auto", seed) for each in source.sources]
    refused = next((each.reason for each in inner if each.reason), "")
    if refused:
        return HeldOut(source, None, "", refused)
    if all(each.source is None for each in inner):
        return HeldOut(source, None, "fresh inputs")
    training = _with_sources(source, [each.training for each in inner])
    others = [each.training if each.source is None else _repeating(each.source) for each in inner]
    measured = others[0] if isinstance(source, Seek) else _with_sources(source, others)
    return HeldOut(training, measured, MIXED)


def _with_sources(source: Nested, sources: list[Inputs]) -> Nested:
    found = copy(source)
    found.sources = sources
    if isinstance(found, Seek):
        found.source = sources[0]
    return found


def _repeating(source: Inputs) -> Inputs:
    r"""Held-out rows that may be drawn more often than there are of them."""
    found = copy(source)
    if isinstance(found, Dataset):
        found.replace = True
    return found


def split_rows(x: X, fraction: float | None, seed: int) -> tuple[Tensor, Tensor] | None:
    r"""Numbers of rows to train on, and of rows held out; None where rows are too few.

    Equal rows stay together, so that held-out rows are new: what is divided is different rows.
    One that makes up more than the fraction of all rows is trained on.

    Arguments:
        x: All rows.
        fraction: The share of different rows to hold out; None is the default's rule.
        seed: Of the choice.

    >>> train, held = split_rows(torch.arange(40).reshape(20, 2), None, 0)
    >>> len(train), len(held)
    (15, 5)
    """
    _, group = np.unique(_keys(x), return_inverse=True)
    sizes = np.bincount(group)
    count, most = len(sizes), fraction or FRACTION
    if fraction is None:
        if count < FEWEST[0]:
            return None
        wanted = min(MEASURED, max(FEWEST[1], round(most * count)))
    else:
        wanted = max(1, round(fraction * count))
        if wanted >= count:
            received = f"{fraction} of {count} different rows, which leaves none to train on"
            raise ArgumentError("held_out", received, "a smaller fraction, or more inputs")
    order = np.random.default_rng(seed).permutation(count)
    heavy = sizes[order] > max(1, most * len(group))
    order = np.concatenate([order[~heavy], order[heavy]])
    held = np.isin(group, order[:wanted])
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def training_rows(found: HeldOut, trained: Inputs, seed: int) -> X | None:
    r"""Rows of what a student was trained on; None where they were fresh at every step."""
    if isinstance(trained, Dataset):
        return _some(trained, seed)
    if found.kind != MIXED:
        return None
    while isinstance(trained, Seek):
        trained = trained.source
    if isinstance(trained, Dataset):
        return _some(trained, seed)
    assert isinstance(trained, Mix)
    return _with_sources(trained, [_repeating(each) for each in trained.sources])(MEASURED).x


def new_rows(found: HeldOut, trained: Inputs, seed: int) -> tuple[X, int]:
    r"""Inputs that the student has not seen, and how many others were left out for that.

    Arguments:
        found: What `hold_out` set aside.
        trained: What the student was trained on: `found.training`, or a pool drawn from it.
        seed: Of the choice among many.
    """
    if found.reason:
        raise NoNewInputs(found.reason)
    source = found.training if found.source is None else found.source
    while isinstance(source, Seek):  # it would choose the inputs that the student is worst at
        source = source.source
    drawn = _some(source, seed) if isinstance(source, Dataset) else source(MEASURED).x
    seen = _all_keys([*_data_sets(trained), *_data_sets(found.training)])
    keys = _keys(drawn)
    new = ~np.isin(keys, seen)
    if not isinstance(trained, Dataset) and not isinstance(source, Dataset):
        new &= ~_repeated(source, keys, seen)
    if not isinstance(source, Dataset):
        first = np.unique(keys, return_index=True)[1]
        new &= np.isin(np.arange(len(keys)), first)  # each row counts once
    if not new.any():
        raise NoNewInputs("all of these are rows that the student was trained on")
    index = torch.from_numpy(np.flatnonzero(new))
    return map_tensors(lambda part: part[index.to(part.device)], drawn), int((~new).sum())


def _repeated(source: Inputs, keys: np.ndarray, seen: np.ndarray) -> np.ndarray:
    r"""Which inputs a source has given twice, where nobody knows what it gave in training.

    A source that picks from a table of a hundred thousand rows or fewer gives more than one in a
    hundred of a thousand rows again in the next thousand. It is refused: its rows were seen.
    """
    if any(isinstance(each, Loader) for each in _inside(source)):
        raise NoNewInputs("a loader gives the same rows again in every pass")
    held = _all_keys(_data_sets(source))
    again = np.isin(keys, _keys(source(MEASURED).x)) & ~np.isin(keys, held) & ~np.isin(keys, seen)
    if again.mean() > 0.01:
        raise NoNewInputs("the source of inputs repeats itself, so that its rows were seen")
    return again


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, np.number) and value.ndim == 0)


def _inside(source: Inputs) -> list[Inputs]:
    r"""A source and all that it draws from."""
    inner = source.sources if isinstance(source, Nested) else []
    return [source, *(each for one in inner for each in _inside(one))]


def _data_sets(source: Inputs) -> list[Dataset]:
    return [each for each in _inside(source) if isinstance(each, Dataset)]


def _some(source: Dataset, seed: int) -> X:
    r"""Rows of a data set, at most so many as are measured; those of weight zero do not count."""
    index = torch.arange(len(source), device=source.device)
    if source.weight is not None and bool((source.weight > 0).any()):
        index = index[source.weight > 0]
    if len(index) > MEASURED:
        order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))
        index = index[order[:MEASURED].to(index.device)]
    return source.build(index).x


def _all_keys(sources: list[Dataset]) -> np.ndarray:
    held = [_keys(each.x) for each in {id(each): each for each in sources}.values()]
    return np.concatenate(held) if held else np.empty(0, np.int64)


def _keys(x: X) -> np.ndarray:
    r"""A number for each row, the same for rows that are equal as numbers."""
    parts = [x] if isinstance(x, Tensor) else [x[name] for name in sorted(x)]
    count = rows(x)
    size = max(1, BLOCK // max(1, sum(8 * part[0].numel() for part in parts)))
    found: list[bytes] = []
    for start in range(0, count, size):
        some = [_as_bytes(part[start : start + size]) for part in parts]
        found += [blake2b(row, digest_size=8).digest() for row in np.concatenate(some, 1)]
    # not Python's hash, whose seed changes from process to process
    return np.frombuffer(b"".join(found), np.int64)


def _as_bytes(part: Tensor) -> np.ndarray:
    r"""Rows as bytes, (n, bytes): numbers of all floating types alike, and of all whole ones."""
    wide = part.detach().cpu().flatten(1) if part.ndim > 1 else part.detach().cpu()[:, None]
    wide = wide.double() + 0.0 if wide.is_floating_point() else wide.long()  # −0 is 0
    return np.ascontiguousarray(wide.numpy()).view(np.uint8)
