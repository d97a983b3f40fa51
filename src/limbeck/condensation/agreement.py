r"""How close a student is to the average over all draws, and the cost of both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer

from limbeck.arrays import X, part_of, random, rows
from limbeck.condensation.held_out import NewInputs
from limbeck.condensation.pool import OUTCOMES, Pool
from limbeck.condensation.predict_function import OutputFamily, PredictFunction
from limbeck.condensation.teachers import AT_ONCE, Average
from limbeck.distributions import average
from limbeck.distributions.base import Distribution
from limbeck.posteriors.draws import Draws
from limbeck.text import PlainTable, compared, table_text

SAMPLES = 10_000  # at which densities without inputs are compared


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
    pit: tuple[float, ...] | None = None  # shares of the outcomes by the student's CDF, in 20 bins

    def table(self) -> Table:
        r"""The comparison as a table."""
        heads = ("", f"average of {self.draws:,} draws", "student")
        table = PlainTable(*heads, title=f"at {self.inputs:,} {self.at}")
        table.add_row("mean |t − f|", "", f"{self.mean_error:.4f}")
        table.add_row("largest |t − f|", "", f"{self.max_error:.4f}")
        error = f" ± {self.kl_error:.1g}" if self.kl_error else ""
        table.add_row("KL(t ‖ f), nats", "", f"{self.kl:.2g}{error}")
        if self.log_prob is not None:
            table.add_row("log probability", *(f"{each:.4f}" for each in self.log_prob))
        if self.coverage is not None:
            table.add_row("outcomes in 90% intervals", "", f"{self.coverage:.1%}")
        table.add_row("bytes", *(f"{each:,}" for each in self.bytes))
        times = [1e3 * seconds for seconds in self.seconds]
        table.add_row("milliseconds", *(f"{t:,.0f}" if t >= 100 else f"{t:.3g}" for t in times))
        for name, value in self.new_inputs.lines() if self.new_inputs else ():
            table.add_row(f"after training: {name}", "", value)
        return table

    def __str__(self) -> str:
        return table_text(self.table()) + self.sentence()

    @property
    def coverage(self) -> float | None:
        r"""The share of the outcomes inside the student's 90% intervals; None of classes."""
        return None if self.pit is None else sum(self.pit[1:-1])

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
    errors, divergences, logs, ranks = [], [], [], list[Tensor]()
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
        each = max(OUTCOMES, min(512, 8192 // n))  # outcomes at each input
        size = n if classes else min(n, _block_size(predict, draws, each))
        for start in range(0, n, size):
            block = part_of(x, start, size)
            t, f = predictive(predict, draws, block), student(block)
            errors.append((t.mean - f.mean).abs().flatten())
            pool = Pool.at(block, t, classes, each, generator)
            divergences.append((pool.divergence(f) if classes else pool.terms(f)).flatten())
            seen = pool.y.movedim(1, 0)
            if y is not None:
                seen = labels = y[start : start + size]
                logs.append(torch.stack([t.log_prob(labels), f.log_prob(labels)]).flatten(1))
            if not classes and not f.event:
                ranks.append(_ranks(f, seen, generator))
        teacher = partial(predictive, predict, draws, part_of(x, 0, size))
        whole = partial(student, x)
    error, kl = torch.cat(errors).double(), torch.cat(divergences).double()
    pit = None
    if ranks:
        counts = torch.histc(torch.cat(ranks).double().cpu(), 20, 0.0, 1.0)
        pit = tuple((counts / counts.sum()).tolist())
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
        pit=pit,
    )


def _ranks(f: Distribution, y: Tensor, generator: torch.Generator) -> Tensor:
    r"""P(Y ≤ y) of outcomes, at random in its jumps: uniform if outcomes are of f."""
    before = y - 1 if f.discrete else y.nextafter(y.new_tensor(-math.inf))
    below, at = f.cdf(before), f.cdf(y)
    return (below + (at - below) * random(torch.rand, at.shape, at, generator)).flatten()


def _seconds(call: Callable[[], Any]) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.02).median
