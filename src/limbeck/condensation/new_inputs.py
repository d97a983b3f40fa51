r"""Whether a student is as near to the posterior average at new inputs as where it was trained."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.arrays import X, map_tensors, part_of, rows
from limbeck.condensation.held_out import FEWEST, HeldOut, NoNewInputs, new_rows, training_rows
from limbeck.condensation.predict_function import Predict, class_logs
from limbeck.condensation.teachers import AT_ONCE, Average, outside, strata
from limbeck.distributions import average
from limbeck.errors import HeldOutWarning
from limbeck.inputs.base import Inputs
from limbeck.posteriors.draws import Draws

__all__ = [
    "Divergence",
    "NewInputs",
    "check_new_inputs",
    "divergence",
    "judge",
    "posterior_divergence",
]

WORSE = 2.0
r"""How many times the divergence at training inputs is clearly more."""

SMALLEST = 1e-4
r"""Nats of excess that never count: by Pinsker's inequality all probabilities are within 0.7%."""

LEVEL, PERMUTATIONS = 0.01, 999
r"""The level of the permutation test, and how many permutations it takes."""

OUTCOMES = 16
r"""Outcomes of each input that a divergence of densities is estimated with."""

WORK = 5 * 10**7
r"""Predictions of single draws that a check may take; of more draws it takes some."""

BYTES = 2**28
r"""Bytes of the draws that a check takes."""

ROWS = 250
r"""Rows that are predicted at once."""


@dataclass(frozen=True)
class Divergence:
    r"""KL(average over draws ‖ student) at some inputs, in nats.

    Attributes:
        inputs: How many inputs.
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
        reason: What that is concluded from, in words.
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
        r"""What tables show, as names and values."""
        found = []
        if self.training is not None:
            found.append(("KL, training inputs", str(self.training)))
        if self.held_out is not None:
            found.append((f"KL, {self.kind}", str(self.held_out)))
        return [*found, ("at new inputs", f"{self.state}: {self.reason}")]

    def record(self) -> dict[str, Any]:
        r"""The same as JSON can hold it; what is not finite is None."""
        found = asdict(self)
        for each in (found["training"], found["held_out"]):
            for name, value in (each or {}).items():
                each[name] = value if math.isfinite(value) else None
        return found

    @classmethod
    def from_record(cls, record: dict[str, Any] | None) -> NewInputs:
        r"""The inverse of `record`; None of results that were saved without it."""
        if record is None:
            return cls()

        def divergence(saved: dict[str, Any] | None) -> Divergence | None:
            if saved is None:
                return None
            known: dict[str, Any] = {k: math.nan if v is None else v for k, v in saved.items()}
            return Divergence(**known)

        training, held_out = (divergence(record[name]) for name in ("training", "held_out"))
        return cls(record["state"], record["reason"], training, held_out, record["kind"])


Measure = Callable[[X], tuple[Tensor, Tensor]]
r"""From inputs to divergences (n,), and to the Monte Carlo errors (n,) of the average itself."""


def check_new_inputs(
    found: HeldOut, trained: Inputs, measure: Measure, seed: int, note: str = ""
) -> NewInputs:
    r"""Measure a student at new inputs and at training inputs; warn if it is clearly worse there.

    Arguments:
        found: What was held out.
        trained: The source that the student was trained with.
        measure: Its divergence from the average.
        seed: Of the choice of rows.
        note: What else there is to tell of the held-out inputs.
    """
    try:
        new, known = new_rows(found, trained, seed)
        before = training_rows(found, trained, seed)
        n = 0 if before is None else rows(before)
        values, noise = measure(new if before is None else _joined(before, new))
    except NoNewInputs as none:
        return NewInputs(reason=f"unchecked at new inputs: {none}")
    except Exception as error:  # the user's own: a student that was trained must not be lost
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        return NewInputs(reason=f"unchecked at new inputs: they could not be measured ({told})")
    if known:
        left = f"{known:,} more were left out, as rows that repeat or were trained on"
        note = f"{left}; {note}" if note else left
    return judge(values[:n], values[n:], noise.mean().item(), found.kind, seed, note)


def judge(
    training: Tensor, new: Tensor, noise: float, kind: str, seed: int, note: str = ""
) -> NewInputs:
    r"""What divergences (n,) at training inputs and at new ones tell; a doubt is warned of.

    Clearly worse is what is all of this: at least twice as far from the average (less is the usual
    spread between sets of inputs); by more than another run of the same chain would move the
    average itself; and by more than chance makes of one set of inputs that is divided at random.

    Arguments:
        training: Divergences at training inputs; empty where these were fresh at every step.
        new: Divergences at new inputs.
        noise: The divergence of the average over draws from what it estimates.
        kind: What the new inputs are.
        seed: Of the permutation test.
        note: What else there is to tell.
    """
    state, reason = _verdict(training, new, noise, seed)
    if state == "doubtful":
        warnings.warn(
            f"condense: {reason}. More inputs, such as lb.inputs.Munge(X), or fewer components "
            "may help; report(x) compares at inputs of your own.",
            HeldOutWarning,
            stacklevel=outside(),
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
    worse = other > WORSE * one and excess > max(noise, SMALLEST)
    if worse and _chance(training, new, excess, seed) <= LEVEL:
        words = "the student is clearly farther from the average at new inputs"
        return "doubtful", f"{words}: KL {other:.2g}, and {one:.2g} where it was trained"
    if len(new) < FEWEST[1]:
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


def _joined(one: X, other: X) -> X:
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        return torch.cat([one, other])
    assert isinstance(other, dict)
    return {name: torch.cat([part, other[name]]) for name, part in one.items()}


def posterior_divergence(
    predict: Predict, draws: Draws, student: Callable[[X], Any], seed: int
) -> Measure:
    r"""KL(average over draws ‖ student), and how far the average is from that of another run.

    The draws are taken in two halves. How far these are apart tells the error of their average:
    with d the difference of log probabilities, whose variance is four times that of the average,
    the divergence of the average from what it estimates is about ⅛ of the mean of d².

    Arguments:
        predict: The user's function.
        draws: The draws; of very many, some are taken, spread over all chains and times.
        student: From inputs to distributions.
        seed: Of these, and of outcomes.
    """

    @torch.no_grad()
    def measure(x: X) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        outcomes = 1 if predict.classes is not None else OUTCOMES
        dim = draws.structure.dim * torch.empty(0, dtype=draws.dtype).element_size()
        slow = 1 if predict.mapped else 20
        most = max(2, min(WORK // (rows(x) * outcomes * slow), BYTES // dim))
        halves = _halves(draws, most, generator)
        count = sum(half.count for half in halves)
        each = count * predict.numbers * halves[0].flat.element_size() * outcomes
        size = ROWS if predict.classes is not None else max(1, min(ROWS, AT_ONCE // each))
        values, noises = [], []
        for start in range(0, rows(x), size):
            some = part_of(x, start, size)
            compare = _classes if predict.classes is not None else _densities
            kl, noise = compare(predict, halves, student(some), some, generator)
            values.append(kl.double())
            noises.append(noise.double())
        return torch.cat(values), torch.cat(noises)

    return measure


def _halves(draws: Draws, most: int, generator: torch.Generator) -> list[Draws]:
    r"""The draws as two halves, by chain or by time; or a single one as it is."""
    if draws.count > most:
        some = draws.take(strata(draws.count, most, generator))
        parts = {"": some} if isinstance(some, Tensor) else some
        draws = Draws(map_tensors(lambda part: part[None], parts), draws.dtype, draws.device)
    return [draws] if draws.count < 2 else [*draws.split()]


def _classes(
    predict: Predict, halves: list[Draws], f: Any, x: X, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    logs = [Average(predict, half)(x).double() for half in halves]
    t = _together(logs, halves)
    apart = torch.where(t == -torch.inf, 0.0, (logs[0] - logs[-1]).square())
    apart = apart.nan_to_num(posinf=0.0)  # one half alone knows a class: no estimate
    return _class_terms(t, class_logs(f).double()).sum(-1), (t.exp() * apart).sum(-1) / 8


def _densities(
    predict: Predict, halves: list[Draws], f: Any, x: X, generator: torch.Generator
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
def divergence(t: Any, f: Any, classes: bool, generator: torch.Generator) -> Tensor:
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
