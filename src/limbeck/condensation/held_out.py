r"""Inputs that a student is not trained on, and whether it is as good there as where it was."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X, join, map_tensors, part_of, rows
from limbeck.condensation.predict_function import PredictFunction, class_logs
from limbeck.condensation.teachers import AT_ONCE, Average, bytes_of, strata, user_stacklevel
from limbeck.distributions import Distribution, average
from limbeck.errors import ArgumentError, HeldOutWarning
from limbeck.inputs import Dataset, Loader, Mix, Seek, as_inputs
from limbeck.inputs.base import Inputs, Nested
from limbeck.posteriors.draws import Draws

__all__ = [
    "GIVEN",
    "MEASURED",
    "Divergence",
    "HeldOut",
    "NewInputs",
    "check_new_inputs",
    "divergence",
    "hold_out",
    "judge",
    "posterior_divergence",
    "split_rows",
]

MIN_ROWS, MIN_HELD_OUT = 20, 5  # different rows from which some are held out, and the fewest then
MEASURED = 1000  # rows at which a student is measured at most, and the most held out by default
OUTCOMES = 16  # outcomes of each input that a divergence of densities is estimated with
LEVEL, PERMUTATIONS = 0.01, 999  # of the permutation test
GIVEN = "held-out inputs"  # of the user
MIXED = "held-out rows and fresh inputs"
ACCEPTED = (
    "'auto', a fraction from 0 to below 1, inputs as a tensor, an array or a Dataset; or None"
)


class NoNewInputs(Exception):  # noqa: N818 - a reason, which the result states
    r"""Why a student cannot be measured at new inputs."""


class HeldOut(NamedTuple):
    r"""Where a student is trained and where it is measured.

    Attributes:
        training: The inputs to train at.
        source: Held-out inputs; None for a fresh draw of the training inputs.
        kind: The name of these inputs.
        reason: Why there are none; empty where there are.
        rows: Of a data set, the numbers of the rows to train on and of those held out.
    """

    training: Inputs
    source: Inputs | None
    kind: str
    reason: str = ""
    rows: tuple[Tensor, Tensor] | None = None


def hold_out(source: Inputs, held_out: object, seed: int) -> HeldOut:
    r"""Split inputs by the user's `held_out`; see `limbeck.condense`."""
    fraction = None
    if isinstance(held_out, np.number) and held_out.ndim == 0:
        held_out = held_out.item()
    if held_out is None or (isinstance(held_out, int | float) and held_out == 0):
        return HeldOut(source, None, "", "held_out is off")
    if isinstance(held_out, int | float):
        if not 0 < held_out < 1:
            raise ArgumentError("held_out", held_out, ACCEPTED)
        fraction = float(held_out)
    elif isinstance(held_out, str):
        if held_out != "auto":
            raise ArgumentError("held_out", repr(held_out), ACCEPTED)
    else:
        own = as_inputs(held_out, "held_out")
        if not isinstance(own, Dataset):
            raise ArgumentError("held_out", f"{type(own).__name__} inputs", ACCEPTED)
        return HeldOut(source, own, GIVEN)
    if isinstance(source, Dataset):
        index = split_rows(source.x, fraction, seed)
        if index is None:
            few = f"fewer than {MIN_ROWS} different rows, so that none were held out"
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
    other = copy(source)
    other.sources = sources
    if isinstance(other, Seek):
        other.source = sources[0]
    return other


def _repeating(source: Inputs) -> Inputs:
    r"""Held-out rows that may be drawn more often than there are of them."""
    other = copy(source)
    if isinstance(other, Dataset):
        other.replace = True
    return other


def split_rows(x: X, fraction: float | None, seed: int) -> tuple[Tensor, Tensor] | None:
    r"""Numbers of rows to train on, and of rows held out; None where rows are too few.

    Equal rows stay together, so that held-out rows are new. A row that makes up more than the
    fraction of all rows is trained on.

    Arguments:
        x: All rows.
        fraction: The share of different rows to hold out; None is a fifth, from 5 to 1,000.
        seed: The seed of the choice.

    >>> train, held = split_rows(torch.arange(40).reshape(20, 2), None, 0)
    >>> len(train), len(held)
    (15, 5)
    """
    _, group = np.unique(_keys(x), return_inverse=True)
    sizes = np.bincount(group)
    count, most = len(sizes), fraction or 0.2
    if fraction is None:
        if count < MIN_ROWS:
            return None
        number = min(MEASURED, max(MIN_HELD_OUT, round(most * count)))
    else:
        number = max(1, round(fraction * count))
        if number >= count:
            received = f"{fraction} of {count} different rows, which leaves none to train on"
            raise ArgumentError("held_out", received, "a smaller fraction, or more inputs")
    order = np.random.default_rng(seed).permutation(count)
    heavy = sizes[order] > max(1, most * len(group))
    order = np.concatenate([order[~heavy], order[heavy]])
    held = np.isin(group, order[:number])
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def _training_rows(split: HeldOut, trained: Inputs, seed: int) -> X | None:
    r"""Rows of what a student was trained on; None where they were fresh at every step."""
    if isinstance(trained, Dataset):
        return _some(trained, seed)
    if split.kind != MIXED:
        return None
    while isinstance(trained, Seek):
        trained = trained.source
    if isinstance(trained, Dataset):
        return _some(trained, seed)
    assert isinstance(trained, Mix)
    return _with_sources(trained, [_repeating(each) for each in trained.sources])(MEASURED).x


def _new_rows(split: HeldOut, trained: Inputs, seed: int) -> tuple[X, int]:
    r"""Inputs that the student has not seen, and how many others were left out for that.

    It was trained on `trained`, which is `split.training` or a pool drawn from it.
    """
    if split.reason:
        raise NoNewInputs(split.reason)
    source = split.training if split.source is None else split.source
    while isinstance(source, Seek):  # it would choose the inputs that the student is worst at
        source = source.source
    drawn = _some(source, seed) if isinstance(source, Dataset) else source(MEASURED).x
    seen = _all_keys([*_data_sets(trained), *_data_sets(split.training)])
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


def _inside(source: Inputs) -> list[Inputs]:
    r"""A source and all that it draws from."""
    inner = source.sources if isinstance(source, Nested) else []
    return [source, *(each for one in inner for each in _inside(one))]


def _data_sets(source: Inputs) -> list[Dataset]:
    return [each for each in _inside(source) if isinstance(each, Dataset)]


def _some(source: Dataset, seed: int) -> X:
    r"""At most `MEASURED` rows of a data set, without those of weight zero."""
    index = torch.arange(len(source), device=source.device)
    if source.weight is not None and bool((source.weight > 0).any()):
        index = index[source.weight > 0]
    if len(index) > MEASURED:
        order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))
        index = index[order[:MEASURED].to(index.device)]
    return source.build(index).x


def _all_keys(sources: list[Dataset]) -> np.ndarray:
    keys = [_keys(each.x) for each in {id(each): each for each in sources}.values()]
    return np.concatenate(keys) if keys else np.empty(0, np.int64)


def _keys(x: X) -> np.ndarray:
    r"""A number for each row, the same for rows that are equal as numbers.

    Its order decides which rows are held out, so that it must not change from run to run.
    """
    parts = [x] if isinstance(x, Tensor) else [x[name] for name in sorted(x)]
    size = max(1, 2**24 // max(1, sum(8 * part[0].numel() for part in parts)))  # 16 MiB at once
    keys: list[bytes] = []
    for start in range(0, rows(x), size):
        some = np.concatenate([_as_bytes(part[start : start + size]) for part in parts], 1)
        keys += [blake2b(row, digest_size=8).digest() for row in some]
    return np.frombuffer(b"".join(keys), np.int64)


def _as_bytes(part: Tensor) -> np.ndarray:
    r"""Rows as bytes, (n, bytes): numbers of all floating types alike, and of all whole ones."""
    wide = part.detach().cpu().reshape(len(part), -1)
    wide = wide.double() + 0.0 if wide.is_floating_point() else wide.long()  # −0 is 0
    return np.ascontiguousarray(wide.numpy()).view(np.uint8)


@dataclass(frozen=True)
class Divergence:
    r"""KL(average over draws ‖ student) at some inputs, in nats.

    Attributes:
        inputs: The number of inputs.
        mean: The mean over them.
        std_error: Its standard error, over inputs.
        max: The largest.
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
    r"""A student at inputs that it was not trained on, beside those that it was trained on.

    Attributes:
        state: "trustworthy" where the student is not clearly worse at new inputs; "doubtful" where
            it is; "unchecked" where that was not measured.
        reason: The reason, in words.
        training: The divergence at training inputs; None where these were fresh at every step.
        held_out: The divergence at new inputs.
        kind: What the new inputs are.
    """

    state: str = "unchecked"
    reason: str = "unchecked at new inputs"
    training: Divergence | None = None
    held_out: Divergence | None = None
    kind: str = ""

    def lines(self) -> list[tuple[str, str]]:
        r"""The rows of a table, as names and values."""
        lines = []
        if self.training is not None:
            lines.append(("KL, training inputs", str(self.training)))
        if self.held_out is not None:
            lines.append((f"KL, {self.kind}", str(self.held_out)))
        return [*lines, ("at new inputs", f"{self.state}: {self.reason}")]

    def record(self) -> dict[str, Any]:
        r"""The same as JSON can hold it; what is not finite is None."""
        record = asdict(self)
        for each in (record["training"], record["held_out"]):
            for name, value in (each or {}).items():
                each[name] = value if math.isfinite(value) else None
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any] | None) -> NewInputs:
        r"""The inverse of `record`; None of results that were saved without it."""
        if record is None:
            return cls()
        both: list[Any] = [record["training"], record["held_out"]]
        for place, saved in enumerate(both):
            if saved is not None:
                values: Any = {k: math.nan if v is None else v for k, v in saved.items()}
                both[place] = Divergence(**values)
        training, held_out = both
        return cls(record["state"], record["reason"], training, held_out, record["kind"])


Measure = Callable[[X], tuple[Tensor, Tensor]]
r"""From inputs to divergences (n,), and to the Monte Carlo errors (n,) of the average itself."""


def check_new_inputs(
    split: HeldOut, trained: Inputs, measure: Measure, seed: int, note: str = ""
) -> NewInputs:
    r"""Measure a student at new and at training inputs; warn if it is clearly worse at new ones."""
    try:
        new, known = _new_rows(split, trained, seed)
        before = _training_rows(split, trained, seed)
        n = 0 if before is None else rows(before)
        values, noise = measure(new if before is None else join([before, new]))
    except NoNewInputs as none:
        return NewInputs(reason=f"unchecked at new inputs: {none}")
    except Exception as error:  # the user's own: a student that was trained must not be lost
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        return NewInputs(reason=f"unchecked at new inputs: they could not be measured ({first})")
    if known:
        left = f"{known:,} more were left out, as rows that repeat or were trained on"
        note = f"{left}; {note}" if note else left
    return judge(values[:n], values[n:], noise.mean().item(), split.kind, seed, note)


def judge(
    training: Tensor, new: Tensor, noise: float, kind: str, seed: int, note: str = ""
) -> NewInputs:
    r"""The verdict of divergences (n,) at training inputs and at new ones; a doubt is warned of.

    Clearly worse means all of this: at least twice as far from the average (less is the usual
    spread between sets of inputs); by more than another run of the same chain would move the
    average itself; and by more than chance makes of one set of inputs that is divided at random.

    Arguments:
        training: Divergences at training inputs; empty where these were fresh at every step.
        new: Divergences at new inputs.
        noise: The divergence of the average over draws from what it estimates.
        kind: What the new inputs are.
        seed: The seed of the permutation test.
        note: A further remark.
    """
    state, reason = _verdict(training, new, noise, seed)
    if state == "doubtful":
        warnings.warn(
            f"condense: {reason}. More inputs, such as lb.inputs.Munge(X), or fewer components "
            "may help; report(x) compares at inputs of your own.",
            HeldOutWarning,
            stacklevel=user_stacklevel(),
        )
    before = Divergence.of(training) if len(training) else None
    words = f"{reason}; {note}" if note else reason
    return NewInputs(state, words, before, Divergence.of(new), kind)


def _verdict(training: Tensor, new: Tensor, noise: float, seed: int) -> tuple[str, str]:
    for values, where in ((new, "new"), (training, "training")):
        if bad := int((~values.isfinite()).sum()):
            words = f"the divergence is not finite at {bad:,} of {len(values):,} {where} inputs"
            return "doubtful", words
    if not len(training):
        return "trustworthy", "every step was trained at a fresh draw, as these are"
    if math.comb(len(training) + len(new), len(new)) < 1 / LEVEL:
        return "unchecked", f"unchecked at new inputs: {len(new)} are too few to tell"
    one, other = training.mean().item(), new.mean().item()
    excess = other - one
    # 1e-4 nats never count: by Pinsker's inequality all probabilities are within 0.7%
    worse = other > 2 * one and excess > max(noise, 1e-4)
    if worse and _chance(training, new, excess, seed) <= LEVEL:
        words = "the student is clearly farther from the average at new inputs"
        return "doubtful", f"{words}: KL {other:.2g}, and {one:.2g} where it was trained"
    if len(new) < MIN_HELD_OUT:
        return "unchecked", f"unchecked at new inputs: {len(new)} are too few to tell"
    return "trustworthy", "not clearly farther from the average than at training inputs"


def _chance(training: Tensor, new: Tensor, excess: float, seed: int) -> float:
    r"""The p-value of a permutation test: right for any distribution of divergences."""
    values = torch.cat([training, new]).cpu().numpy()
    generator, n, total = np.random.default_rng(seed), len(new), values.sum()
    more = 0
    for _ in range(PERMUTATIONS):
        own = generator.choice(values, n, replace=False, shuffle=False).sum()
        more += own / n - (total - own) / (len(values) - n) >= excess
    return (1 + more) / (1 + PERMUTATIONS)


def posterior_divergence(
    predict: PredictFunction, draws: Draws, student: Callable[[X], Any], seed: int
) -> Measure:
    r"""KL(average over draws ‖ student), and how far the average is from that of another run.

    The draws are taken in two halves, whose difference gives the error of their average: with d the
    difference of log probabilities, whose variance is four times that of the average, the
    divergence of the average from what it estimates is about ⅛ of the mean of d².
    """
    classes = predict.classes is not None

    @torch.no_grad()
    def measure(x: X) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        outcomes = 1 if classes else OUTCOMES
        # at most 5 · 10⁷ predictions of single draws, fewer of slow ones, and 256 MiB of draws
        work = 5 * 10**7 // (rows(x) * outcomes * (1 if predict.mapped else 20))
        most = max(2, min(work, 2**28 // bytes_of(1, draws.structure, draws.dtype)))
        halves = _halves(draws, most, generator)
        count = sum(half.count for half in halves)
        each = count * predict.numbers * halves[0].flat.element_size() * outcomes
        size = 250 if classes else max(1, min(250, AT_ONCE // each))  # rows at once
        values, noises = [], []
        for start in range(0, rows(x), size):
            some = part_of(x, start, size)
            compare = _compare_classes if classes else _compare_densities
            kl, noise = compare(predict, halves, student(some), some, generator)
            values.append(kl.double())
            noises.append(noise.double())
        return torch.cat(values), torch.cat(noises)

    return measure


def _halves(draws: Draws, most: int, generator: torch.Generator) -> list[Draws]:
    r"""The draws as two halves, by chain or by time; or a single one as it is."""
    if draws.count > most:
        draws = Draws.one_chain(draws.take(strata(draws.count, most, generator)))
    return [draws] if draws.count < 2 else [*draws.split()]


def _compare_classes(
    predict: PredictFunction, halves: list[Draws], f: Distribution, x: X, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    logs = [Average(predict, half)(x).double() for half in halves]
    t = _together(logs, halves)
    apart = torch.where(t == -torch.inf, 0.0, (logs[0] - logs[-1]).square())
    apart = apart.nan_to_num(posinf=0.0)  # a class of one half alone: no estimate
    return _class_terms(t, class_logs(f).double()).sum(-1), (t.exp() * apart).sum(-1) / 8


def _compare_densities(
    predict: PredictFunction, halves: list[Draws], f: Distribution, x: X, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    means = [average(predict.stacked(half.structure.unflatten(half.flat), x)) for half in halves]
    some = OUTCOMES // len(halves)
    y = torch.cat([mean.sample((some,), generator) for mean in means])
    logs = [mean.log_prob(y).double() for mean in means]
    t = _together(logs, halves)
    kl = _kl_terms(t, f.log_prob(y).double())
    apart = (logs[0] - logs[-1]).square() / 8
    return _row_means(kl), _row_means(apart)


def _together(logs: list[Tensor], halves: list[Draws]) -> Tensor:
    count = sum(half.count for half in halves)
    shares = [log + math.log(half.count / count) for log, half in zip(logs, halves, strict=True)]
    return torch.stack(shares).logsumexp(0)


@torch.no_grad()
def divergence(
    t: Distribution, f: Distribution, classes: bool, generator: torch.Generator
) -> Tensor:
    r"""KL(t ‖ f) at each input, (n,); of densities an estimate."""
    if classes:
        of_t, of_f = class_logs(t).double(), class_logs(f).double()
        return _class_terms(of_t, of_f).sum(-1)
    y = t.sample((OUTCOMES,), generator)
    return _row_means(_kl_terms(t.log_prob(y).double(), f.log_prob(y).double()))


def _class_terms(t: Tensor, f: Tensor) -> Tensor:
    return torch.where(t == -torch.inf, 0.0, t.exp() * (t - f))  # a class that cannot be


def _kl_terms(t: Tensor, f: Tensor) -> Tensor:
    r"""f/t − 1 − log(f/t) at outcomes of t: the mean is KL(t ‖ f), and no term is below zero.

    The mean of log(t/f) is the same, with so much more noise that no largest value can be told.
    """
    ratio = f - t
    return ratio.expm1() - ratio


def _row_means(values: Tensor) -> Tensor:
    r"""(outcomes, n, ...) to (n,)."""
    return values.flatten(2).mean((0, 2)) if values.ndim > 2 else values.mean(0)
