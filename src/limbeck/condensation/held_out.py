r"""Held-out inputs, and whether a student is as good there as at its training inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X, join, map_tensors, rows
from limbeck.condensation.predict_function import rows_of
from limbeck.errors import ArgumentError, HeldOutWarning, shown, warn
from limbeck.inputs import Dataset, Loader, Mix, Seek, as_inputs
from limbeck.inputs.base import Inputs, Nested
from limbeck.storage import files
from limbeck.teachers.keys import row_keys
from limbeck.training.config import Training

MIN_ROWS, MIN_HELD_OUT = 20, 5  # different rows from which some are held out, and the fewest then
MEASURED = 1000  # rows at which a student is measured at most, and the most held out by default
LEVEL, PERMUTATIONS = 0.01, 999  # of the permutation test
MAX_COVARIANCE_ERROR = 0.1  # of a joint bag, relative
LEAST = 1e-4  # nats that never count: by Pinsker's inequality all probabilities are within 0.7%
GIVEN = "held-out inputs"  # of the user
ACCEPTED = "inputs as a tensor, an array or a Dataset; or None"


class HeldOut(NamedTuple):
    r"""Where a student is trained and where it is measured."""

    training: Inputs
    source: Inputs | None  # None for a fresh draw of the training inputs
    kind: str  # the name of the held-out inputs
    reason: str = ""  # why there are none
    rows: tuple[Tensor, Tensor] | None = None  # of a data set, trained on and held out

    def fit_batches(self, training: Training, inputs: Inputs) -> Training:
        r"""A batch of all inputs becomes one of all rows that are left to train on."""
        data, size = self.training, training.batch_size
        if data is inputs or not isinstance(data, Dataset) or data.replace:
            return training
        total = len(inputs) if isinstance(inputs, Dataset) else 0
        shrinks = isinstance(size, int) and len(data) < size <= total
        return replace(training, batch_size=len(data)) if shrinks else training

    def watched(self, patience: bool, rewinds: bool) -> Dataset | None:
        r"""Inputs to record the loss on, if draws can rewind: the user's, or those for patience."""
        if patience and not rewinds:
            received = "patience beside a stream that cannot go back"
            raise ArgumentError("patience", received, "None, or a stream with a state_dict")
        if patience and not isinstance(self.source, Dataset):
            received = f"patience without held-out rows ({self.reason or self.kind})"
            raise ArgumentError("patience", received, "held_out=, inputs to watch the loss on")
        recorded = rewinds and (patience or self.kind == GIVEN)
        return self.source if recorded and isinstance(self.source, Dataset) else None


def hold_out(source: Inputs, held_out: object, fraction: float | str, seed: int) -> HeldOut:
    r"""Split inputs by `held_out` and `held_out_fraction`; see `limbeck.condense`."""
    for each in sources_of(source):
        each.converts = True  # what a function returns need not be of the floating type of draws
    part = None if fraction == "auto" else float(fraction)
    if held_out is not None:
        if isinstance(held_out, int | float | str | np.number):
            expected = f"{ACCEPTED}; a fraction is held_out_fraction"
            raise ArgumentError("held_out", shown(held_out), expected)
        inputs = as_inputs(held_out, "held_out")
        if not isinstance(inputs, Dataset):
            raise ArgumentError("held_out", f"{type(inputs).__name__} inputs", ACCEPTED)
        if part:
            raise ArgumentError("held_out_fraction", fraction, "'auto' or 0 if held_out is given")
        return HeldOut(source, inputs, GIVEN)
    if part == 0:
        return HeldOut(source, None, "", "held_out_fraction is 0")
    if isinstance(source, Dataset):
        index = split_rows(source.x, part, seed)
        if index is None:
            reason = f"fewer than {MIN_ROWS} different rows, so that none were held out"
            return HeldOut(source, None, "", reason)
        training, new = map(source.take, index)
        return HeldOut(training, new, "held-out rows", rows=index)
    if isinstance(source, Mix | Seek) and any(isinstance(p, Dataset) for p in sources_of(source)):
        return HeldOut(source, None, "", "rows in a mixture are not held out; give held_out=")
    return HeldOut(source, None, "fresh inputs")


def split_rows(x: X, fraction: float | None, seed: int) -> tuple[Tensor, Tensor] | None:
    r"""Numbers of rows to train on, and of rows held out; None where rows are too few.

    Equal rows stay together, so that held-out rows are new. A row that makes up more than the
    fraction (None: a fifth, from 5 to 1,000) of all rows is trained on.
    """
    _, group = np.unique(_keys(x), return_inverse=True)
    sizes = np.bincount(group)
    count, most = len(sizes), fraction or 0.2
    if fraction is None:
        if count < MIN_ROWS:
            return None
        size = min(MEASURED, max(MIN_HELD_OUT, round(most * count)))
    else:
        size = max(1, round(fraction * count))
        if size >= count:
            received = f"{fraction} of {count} different rows, which leaves none to train on"
            expected = "a smaller fraction, or more inputs"
            raise ArgumentError("held_out_fraction", received, expected)
    order = np.random.default_rng(seed).permutation(count)
    heavy = sizes[order] > max(1, most * len(group))
    order = np.concatenate([order[~heavy], order[heavy]])
    new = np.isin(group, order[:size])
    return torch.from_numpy(np.flatnonzero(~new)), torch.from_numpy(np.flatnonzero(new))


def _new_rows(split: HeldOut, trained: Inputs, seed: int) -> tuple[X, int] | str:
    r"""Inputs that the student has not seen, and how many others were left out; or why none."""
    if split.reason:
        return split.reason
    source = split.training if split.source is None else split.source
    while isinstance(source, Seek):  # it would choose the inputs that the student is worst at
        source = source.source
    drawn = _measured_rows(source, seed) if isinstance(source, Dataset) else source(MEASURED).x
    seen, keys = _known_keys(trained, split.training), _keys(drawn)
    new = ~np.isin(keys, seen)
    if not isinstance(source, Dataset):
        if not isinstance(trained, Dataset):  # the inputs of the training are unknown
            if any(isinstance(part, Loader) for part in sources_of(source)):
                return "a loader gives the same rows again in every pass"
            known = np.concatenate([_known_keys(source), seen])
            repeated = np.isin(keys, _keys(source(MEASURED).x)) & ~np.isin(keys, known)
            if repeated.mean() > 0.01:  # as one of a table of up to 100,000 rows gives
                return "the source repeats itself, so its rows were seen in training"
            new &= ~repeated
        first = np.unique(keys, return_index=True)[1]
        new &= np.isin(np.arange(len(keys)), first)  # each row counts once
    if not new.any():
        return "all of these are rows that the student was trained on"
    return rows_of(drawn, torch.from_numpy(np.flatnonzero(new))), int((~new).sum())


def sources_of(source: Inputs) -> list[Inputs]:
    r"""A source, and the sources that it is made of."""
    inner = source.sources if isinstance(source, Nested) else []
    return [source, *(part for child in inner for part in sources_of(child))]


def _known_keys(*sources: Inputs) -> np.ndarray:
    parts = {id(part): part for source in sources for part in sources_of(source)}.values()
    keys = [_keys(part.x) for part in parts if isinstance(part, Dataset)]
    return np.concatenate([np.empty(0, np.uint64), *keys])


def sample_rows(data: Dataset, most: int, generator: torch.Generator) -> Tensor:
    r"""Numbers of at most so many rows of a data set, in random order; none of weight zero."""
    index = torch.arange(len(data), device=data.device)
    if data.weight is not None and bool((data.weight > 0).any()):
        index = index[data.weight > 0]
    order = torch.randperm(len(index), generator=generator)[:most]
    return index[order.to(index.device)]


def distinct_rows(x: X, most: int) -> X:
    r"""The first rows that differ from each other, at most so many."""
    first = np.sort(np.unique(_keys(x), return_index=True)[1])[:most]
    return rows_of(x, torch.from_numpy(first))


def _measured_rows(data: Dataset, seed: int) -> X:
    return data.build(sample_rows(data, MEASURED, torch.Generator().manual_seed(seed))).x


def _keys(x: X) -> np.ndarray:
    r"""A number for each row, the same for rows that are equal as numbers, in every run."""
    parts = x if isinstance(x, Tensor) else {name: x[name] for name in sorted(x)}
    return row_keys(map_tensors(Tensor.detach, parts))[:, 0]


@dataclass(frozen=True)
class Divergence:
    r"""KL(average over draws ‖ student) at some inputs, in nats.

    Attributes:
        inputs: The number of inputs.
        mean: The mean over inputs.
        std_error: The standard error of the mean; NaN of a single input.
        max: The largest value.
    """

    inputs: int
    mean: float
    std_error: float
    max: float

    @classmethod
    def of(cls, values: Tensor) -> Divergence:
        r"""Of the divergences (n,) of single inputs."""
        n = len(values)
        error = (values.std() / math.sqrt(n)).item() if n > 1 else math.nan
        return cls(n, values.mean().item(), error, values.max().item())

    def __str__(self) -> str:
        error = f" ± {self.std_error:.1g}" if math.isfinite(self.std_error) else ""
        return f"mean {self.mean:.2g}{error}, largest {self.max:.2g}, at {self.inputs:,}"


@dataclass(frozen=True)
class NewInputs:
    r"""A student at new inputs, compared with its training inputs.

    Attributes:
        state: "trustworthy" if the student is not clearly worse at new inputs; "doubtful" if it is;
            "unchecked" if this was not measured.
        reason: The reason, as text.
        training: The divergence at training inputs; None if these were fresh at every step.
        held_out: The divergence at new inputs.
        kind: What the new inputs are.
        start: The divergence of the draws that a bag started from, at the inputs that decided when
            to stop; None of other students.
        best: The divergence of the bag there.
        worth: The number of random draws of the posterior whose average is as near.
        curve: Divergences of the averages of N random draws, as pairs (N, divergence).
        noise: About the divergence of the average over all draws from that of another run.
        covariance: With `joint=True`, the relative error of covariances of several inputs.
        needed: The least number of components with which it can be a tenth.
    """

    state: str = "unchecked"
    reason: str = "unchecked at new inputs"
    training: Divergence | None = None
    held_out: Divergence | None = None
    kind: str = ""
    start: float | None = None
    best: float | None = None
    worth: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    noise: float | None = None
    covariance: float | None = None
    needed: int | None = None

    def lines(self) -> list[tuple[str, str]]:
        r"""The rows of a table, as names and values."""
        both = (("KL, training inputs", self.training), (f"KL, {self.kind}", self.held_out))
        lines = [(name, str(value)) for name, value in both if value is not None]
        if self.start is not None and self.best is not None:
            words = f"{self.start:.2g}; trained {self.best:.2g}"
            lines.append(("KL, draws it started from", words))
        if self.covariance is not None:
            lines.append(("covariances of pairs", f"relative error {self.covariance:.2g}"))
        if self.worth is not None and self.worth > 0:
            number = f"{float(f'{self.worth:.2g}'):,.0f}"
            words = f"as near as {number} random draw{'s' if self.worth >= 1.5 else ''}"
            lines.append(("worth", words))
        return [*lines, ("at new inputs", f"{self.state}: {self.reason}")]

    def record(self) -> dict[str, Any]:
        r"""The same as JSON can hold it; what is not finite is None."""
        return files.plain(asdict(self))

    @classmethod
    def from_record(cls, record: dict[str, Any] | None) -> NewInputs:
        r"""The inverse of `record`; None of results that were saved without it."""
        if record is None:
            return cls()
        record = dict(record)
        for name in ("training", "held_out"):
            if (values := record[name]) is not None:
                numbers: Any = {k: math.nan if v is None else v for k, v in values.items()}
                record[name] = Divergence(**numbers)
        record["curve"] = tuple((int(n), float(kl)) for n, kl in record.get("curve", ()))
        return cls(**record)


Measure = Callable[[X], tuple[Tensor, float]]  # divergences (n,), and the average's own error


def check_new_inputs(
    split: HeldOut, trained: Inputs, measure: Measure, seed: int, note: str = "",
    least: float = LEAST,
) -> NewInputs:  # fmt: skip
    r"""Measure a student at new and at training inputs; warn if it is clearly worse at new ones."""
    try:
        drawn = _new_rows(split, trained, seed)
        if isinstance(drawn, str):
            return NewInputs(reason=f"unchecked at new inputs: {drawn}")
        new, dropped = drawn
        # inputs of other sources were fresh at every step
        before = _measured_rows(trained, seed) if isinstance(trained, Dataset) else None
        n = 0 if before is None else rows(before)
        values, noise = measure(new if before is None else join([before, new]))
    except Exception as error:  # the user's own: a student that was trained must not be lost
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        return NewInputs(reason=f"unchecked at new inputs: they could not be measured ({first})")
    if dropped:
        repeats = f"{dropped:,} more were left out, as rows that repeat or were trained on"
        note = f"{repeats}; {note}" if note else repeats
    return judge(values[:n], values[n:], noise, split.kind, seed, note, least)


def judge(
    training: Tensor, new: Tensor, noise: float, kind: str, seed: int, note: str = "",
    least: float = LEAST,
) -> NewInputs:  # fmt: skip
    r"""The verdict from divergences (n,) at training and at new inputs; warns if it is doubtful.

    Clearly worse means: at least twice the divergence, by more than the error of the average over
    draws, and by more than a random split of one set would give (a permutation test). `training` is
    empty if inputs were fresh at every step; `noise` is the divergence of the average over draws
    from the quantity that it estimates, and `least` the least difference that counts.
    """
    state, reason = _verdict(training, new, max(noise, least), seed)
    if state == "doubtful":
        warn(
            f"condense: {reason}. More inputs, such as lb.inputs.Munge(X), or fewer components "
            "may help; report(x) compares at inputs of your own.",
            HeldOutWarning,
        )
    before = Divergence.of(training) if len(training) else None
    words = f"{reason}; {note}" if note else reason
    return NewInputs(state, words, before, Divergence.of(new), kind)


def _verdict(training: Tensor, new: Tensor, least: float, seed: int) -> tuple[str, str]:
    r"""The state of `NewInputs`, and the reason."""
    for values, where in ((new, "new"), (training, "training")):
        if bad := int((~values.isfinite()).sum()):
            words = f"the divergence is not finite at {bad:,} of {len(values):,} {where} inputs"
            return "doubtful", words
    if not len(training):
        return "trustworthy", "training inputs were drawn fresh at every step, as these are"
    one, other = training.mean().item(), new.mean().item()
    excess, enough = other - one, math.comb(len(training) + len(new), len(new)) >= 1 / LEVEL
    chance = 1.0
    if enough and other > 2 * one and excess > least:
        # the p-value of a permutation test: right for any distribution of divergences
        pooled = torch.cat([training, new]).cpu().numpy()
        generator, n, total, more = np.random.default_rng(seed), len(new), pooled.sum(), 0
        for _ in range(PERMUTATIONS):
            part = generator.choice(pooled, n, replace=False, shuffle=False).sum()
            more += part / n - (total - part) / (len(pooled) - n) >= excess
        chance = (1 + more) / (1 + PERMUTATIONS)
    if chance <= LEVEL:
        words = "the student is clearly worse at new inputs"
        return "doubtful", f"{words}: KL {other:.2g}, and {one:.2g} where it was trained"
    if not enough or len(new) < MIN_HELD_OUT:
        return "unchecked", f"unchecked at new inputs: {len(new)} are too few to tell"
    return "trustworthy", "not clearly worse than at training inputs"
