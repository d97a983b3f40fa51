r"""How close a student is to the average over all draws, and the cost of both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from limbeck.arrays import X, leaves, part_of, rows
from limbeck.condensation.held_out import NewInputs
from limbeck.condensation.predict_function import OutputFamily, PredictFunction, class_logs
from limbeck.condensation.teachers import AT_ONCE, Average, bytes_of, strata
from limbeck.distributions import Distribution, average
from limbeck.posteriors.draws import Draws
from limbeck.text import PlainTable, compared, table_text

SAMPLES = 10_000  # at which densities without inputs are compared
OUTCOMES = 16  # outcomes of each input that a divergence of densities is estimated with


@dataclass(frozen=True)
class Agreement:
    r"""A student f compared with the average t over draws, at some inputs."""

    inputs: int  # of a density without inputs, the number of samples
    draws: int
    mean_error: float  # |t − f|: of class probabilities, of the means of y, or of densities
    max_error: float
    kl: float  # the mean of KL(t ‖ f), in nats
    kl_error: float  # its standard error: zero for classes, whose divergence is a sum
    log_prob: tuple[float, float] | None  # mean of the outcomes, by the average and by the student
    bytes: tuple[int, int]  # of the draws, and of the student
    seconds: tuple[float, float]  # for all inputs, by the average and by the student
    at: str = "inputs"
    new_inputs: NewInputs | None = None

    def table(self) -> Table:
        r"""The comparison as a table."""
        table = PlainTable(title=f"at {self.inputs:,} {self.at}", title_justify="left")
        for name in ("", f"average of {self.draws:,} draws", "student"):
            table.add_column(name)
        table.add_row("mean |t − f|", "", f"{self.mean_error:.4f}")
        table.add_row("largest |t − f|", "", f"{self.max_error:.4f}")
        error = f" ± {self.kl_error:.1g}" if self.kl_error else ""
        table.add_row("KL(t ‖ f), nats", "", f"{self.kl:.2g}{error}")
        if self.log_prob is not None:
            table.add_row("log probability", *(f"{each:.4f}" for each in self.log_prob))
        table.add_row("bytes", *(f"{each:,}" for each in self.bytes))
        times = [1e3 * seconds for seconds in self.seconds]
        table.add_row("milliseconds", *(f"{t:,.0f}" if t >= 100 else f"{t:.3g}" for t in times))
        for name, value in self.new_inputs.lines() if self.new_inputs else ():
            table.add_row(f"after training: {name}", "", value)
        return table

    def __str__(self) -> str:
        return table_text(self.table()) + self.sentence()

    def savings(self) -> list[str]:
        r"""How much smaller and faster the student is, if that is known."""
        size = compared(*self.bytes, "smaller", "larger", "as large")
        time = compared(*self.seconds, "faster", "slower", "as fast")
        return [way for way in (size, time) if way]

    def sentence(self) -> str:
        r"""The comparison in one sentence."""
        savings = " and ".join(self.savings())
        return (
            f"The student is within {self.mean_error:.2g} of the average of {self.draws:,} draws "
            f"on average, and {self.max_error:.2g} at most, at {self.inputs:,} {self.at}"
            f"{f'; it is {savings}' if savings else ''}."
        )


def predictive(predict: PredictFunction, draws: Draws, x: X | None = None) -> Any:
    r"""The distribution of y at each x, averaged over all draws: of classes, or a mixture."""
    if predict.classes is None:
        return average(predict.stacked(draws.structure.unflatten(draws.flat), x))
    return OutputFamily.of(predict.example).distribution(Average(predict, draws)(x))


def outcomes_for(n: int) -> int:
    r"""The number of outcomes at each of n inputs: more where inputs are few."""
    return max(OUTCOMES, min(512, 8192 // n))


def _block_size(predict: PredictFunction, draws: Draws, outcomes: int = 1) -> int:
    r"""The number of inputs whose predictions by all draws fit into memory at once."""
    return max(1, AT_ONCE // (draws.count * predict.numbers * draws.dtype.itemsize * outcomes))


@torch.no_grad()
def agreement(
    predict: PredictFunction,
    draws: Draws,
    student: Any,
    x: X | None,
    y: Tensor | None,
    bytes_: tuple[int, int],
    seed: int = 0,
) -> Agreement:
    r"""Compare a student, a function of x, or a density at samples, with the average over draws."""
    generator = torch.Generator().manual_seed(seed)
    errors, divergences, logs = [], [], []
    if x is None:
        t, size = predictive(predict, draws), _block_size(predict, draws)
        events = t.sample((SAMPLES,), generator)
        for block in events.split(size):
            t_logs, f_logs = t.log_prob(block).double(), student.log_prob(block).double()
            errors.append((t_logs.exp() - f_logs.exp()).abs())
            divergences.append(t_logs - f_logs)
        for block in () if y is None else y.to(events).split(size):
            logs.append(torch.stack([t.log_prob(block), student.log_prob(block)]))
        n, size = len(events), min(size, 1000)
        teacher, whole = partial(t.log_prob, events[:size]), partial(student.log_prob, events)
    else:
        n, classes = rows(x), predict.classes is not None
        each = outcomes_for(n)
        size = n if classes else min(n, _block_size(predict, draws, each))
        for start in range(0, n, size):
            block = part_of(x, start, size)
            t, f = predictive(predict, draws, block), student(block)
            errors.append((t.mean - f.mean).abs().flatten())
            if classes:
                divergences.append(_class_kl(class_logs(t), class_logs(f)))
            else:
                outcomes = t.sample((each,), generator)
                ratio = f.log_prob(outcomes).double() - t.log_prob(outcomes).double()
                divergences.append((ratio.expm1() - ratio).flatten())  # see `_sampled_kl`
            if y is not None:
                labels = y[start : start + size]
                logs.append(torch.stack([t.log_prob(labels), f.log_prob(labels)]).flatten(1))
        teacher = partial(predictive, predict, draws, part_of(x, 0, size))
        whole = partial(student, x)
    error, kl = torch.cat(errors).double(), torch.cat(divergences).double()
    log_prob: Any = tuple(torch.cat(logs, 1).double().mean(1).tolist()) if logs else None
    return Agreement(
        inputs=n,
        draws=draws.count,
        mean_error=error.mean().item(),
        max_error=error.max().item(),
        kl=kl.mean().item(),
        kl_error=0.0 if predict.classes else (kl.std() / math.sqrt(len(kl))).item(),
        log_prob=log_prob,
        bytes=bytes_,
        seconds=(_seconds(teacher) * n / size, _seconds(whole)),
        at="samples" if x is None else "inputs",
    )


@torch.no_grad()
def posterior_divergence(
    predict: PredictFunction, draws: Draws, student: Callable[[X], Any], seed: int, x: X
) -> tuple[Tensor, Tensor]:
    r"""KL(average over draws ‖ student) (n,), and how far the average is from another run's (n,).

    The draws are taken in two halves, whose difference gives the error of their average: with d the
    difference of log probabilities, whose variance is four times that of the average, the
    divergence of the average from what it estimates is about ⅛ of the mean of d².
    """
    classes, generator = predict.classes is not None, torch.Generator().manual_seed(seed)
    outcomes = 1 if classes else OUTCOMES
    # at most 5 · 10⁷ predictions of single draws, fewer of slow ones, and 256 MiB of draws
    work = 5 * 10**7 // (rows(x) * outcomes * (1 if predict.vmapped else 20))
    most = max(2, min(work, 2**28 // bytes_of(1, draws.structure, draws.dtype)))
    if draws.count > most:
        draws = Draws.one_chain(draws.take(strata(draws.count, most, generator)))
    halves = [draws] if draws.count < 2 else [*draws.split()]
    size = 250 if classes else min(250, _block_size(predict, draws, outcomes))
    blocks = (part_of(x, start, size) for start in range(0, rows(x), size))
    both = [_compare(predict, halves, student(block), block, generator) for block in blocks]
    kl, noise = (torch.cat(parts).double() for parts in zip(*both, strict=True))
    return kl, noise


def _compare(
    predict: PredictFunction, halves: list[Draws], f: Distribution, x: X, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    r"""Divergences (n,) of a student from the average of both halves, and the latter's errors."""
    if predict.classes is not None:
        logs = [Average(predict, half)(x).double() for half in halves]
    else:
        means = [predictive(predict, half, x) for half in halves]
        y = torch.cat([mean.sample((OUTCOMES // len(halves),), generator) for mean in means])
        logs = [mean.log_prob(y).double() for mean in means]
    count = sum(half.count for half in halves)
    shares = [log + math.log(half.count / count) for log, half in zip(logs, halves, strict=True)]
    t, squares = torch.stack(shares).logsumexp(0), (logs[0] - logs[-1]).square()
    if predict.classes is None:
        return _sampled_kl(t, f.log_prob(y).double()), _row_means(squares / 8)
    # a class of one half alone gives no estimate of the error
    squares = torch.where(t == -torch.inf, 0.0, squares).nan_to_num(posinf=0.0)
    return _class_kl(t, class_logs(f).double()), (t.exp() * squares).sum(-1) / 8


@torch.no_grad()
def divergence(
    t: Distribution, f: Distribution, classes: bool, generator: torch.Generator
) -> Tensor:
    r"""KL(t ‖ f) at each input, (n,); of densities an estimate."""
    if classes:
        return _class_kl(class_logs(t).double(), class_logs(f).double())
    y = t.sample((OUTCOMES,), generator)
    return _sampled_kl(t.log_prob(y).double(), f.log_prob(y).double())


def _class_kl(t: Tensor, f: Tensor) -> Tensor:
    terms = torch.where(t == -torch.inf, 0.0, t.exp() * (t - f))  # a class that cannot be
    return terms.sum(-1)


def _sampled_kl(t: Tensor, f: Tensor) -> Tensor:
    r"""KL(t ‖ f) (n,), the mean of f/t − 1 − log(f/t) at outcomes of t (outcomes, n, ...).

    The mean of log(t/f) is the same, but its terms are negative too, and have far more noise.
    """
    ratio = f - t
    return _row_means(ratio.expm1() - ratio)


def _row_means(values: Tensor) -> Tensor:
    r"""(outcomes, n, ...) to (n,)."""
    return values.flatten(2).mean((0, 2)) if values.ndim > 2 else values.mean(0)


def _seconds(call: Callable[[], Any]) -> float:
    call()
    times: list[float] = []
    while len(times) < 5 and sum(times) < 1.0:
        began = time.perf_counter()
        result = call()
        if any(tensor.is_cuda for tensor in leaves(result)):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return max(statistics.median(times), 1e-9)
