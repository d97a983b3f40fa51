r"""How near a student is to the average over all draws, and what each of them costs."""

from __future__ import annotations

import io
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from limbeck.arrays import X, leaves, part_of, rows
from limbeck.condensation.held_out import OUTCOMES, NewInputs
from limbeck.condensation.predict_function import PredictFunction, class_logs
from limbeck.condensation.teachers import AT_ONCE, Average
from limbeck.distributions import Distribution, average
from limbeck.distributions.discrete import Bernoulli, Categorical
from limbeck.posteriors.draws import Draws
from limbeck.text import compared

__all__ = ["Agreement", "agreement", "density_agreement", "predictive"]

SAMPLES = 10_000  # at which densities without inputs are compared


@dataclass(frozen=True)
class Agreement:
    r"""A student beside the average over draws, at some inputs.

    Attributes:
        inputs: The number of inputs; of a density without inputs, the number of samples.
        draws: The number of draws that the average is over.
        mean_error: The mean of |t − f|: of class probabilities, of the means of y, or of densities.
        max_error: The largest.
        kl: The mean of KL(t ‖ f), in nats.
        kl_error: Its standard error: zero for classes, whose divergence is a sum.
        log_prob: Mean log probabilities of given outcomes, by the average and by the student.
        bytes: Of the draws, and of the student.
        seconds: For a prediction of all inputs, by the average and by the student.
        at: What these inputs are.
        new_inputs: What was measured after training, at training inputs and at new ones.
    """

    inputs: int
    draws: int
    mean_error: float
    max_error: float
    kl: float
    kl_error: float
    log_prob: tuple[float, float] | None
    bytes: tuple[int, int]
    seconds: tuple[float, float]
    at: str = "inputs"
    new_inputs: NewInputs | None = None

    def table(self) -> Table:
        r"""The comparison as a table."""
        table = Table(title=f"at {self.inputs:,} {self.at}", title_justify="left")
        for name in ("", f"average of {self.draws:,} draws", "student"):
            table.add_column(name)
        table.add_row("mean |t − f|", "", f"{self.mean_error:.4f}")
        table.add_row("largest |t − f|", "", f"{self.max_error:.4f}")
        error = f" ± {self.kl_error:.1g}" if self.kl_error else ""
        table.add_row("KL(t ‖ f), nats", "", f"{self.kl:.2g}{error}")
        if self.log_prob is not None:
            table.add_row("log probability", *(f"{each:.4f}" for each in self.log_prob))
        table.add_row("bytes", *(f"{each:,}" for each in self.bytes))
        table.add_row("milliseconds", *map(_milliseconds, self.seconds))
        for name, value in () if self.new_inputs is None else self.new_inputs.lines():
            table.add_row(f"after training: {name}", "", value)
        return table

    def __str__(self) -> str:
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(self.table())
        return console.export_text() + self.sentence()

    def savings(self) -> list[str]:
        r"""How much smaller and faster the student is, where that is known."""
        ways = (
            compared(*self.bytes, "smaller", "larger", "as large"),
            compared(*self.seconds, "faster", "slower", "as fast"),
        )
        return [way for way in ways if way]

    def sentence(self) -> str:
        r"""The comparison in one sentence."""
        savings = " and ".join(self.savings())
        return (
            f"The student is within {self.mean_error:.2g} of the average of {self.draws:,} draws "
            f"in the mean, and {self.max_error:.2g} at most, at {self.inputs:,} {self.at}"
            f"{f'; it is {savings}' if savings else ''}."
        )


def _milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def predictive(predict: PredictFunction, draws: Draws, x: X) -> Any:
    r"""The distribution of y at each x, averaged over all draws.

    Of classes it is a Bernoulli or Categorical one, computed in blocks; else it is a mixture with
    a component for each draw.
    """
    if predict.classes is None:
        return average(predict.stacked(draws.structure.unflatten(draws.flat), x))
    logs = Average(predict, draws)(x)
    inner = predict.example
    while not isinstance(inner, Bernoulli | Categorical):
        inner = inner.components
    if isinstance(inner, Bernoulli):
        return Bernoulli(logits=logs[:, 1] - logs[:, 0])
    return Categorical(logits=logs)


@torch.no_grad()
def agreement(
    predict: PredictFunction,
    draws: Draws,
    student: Callable[[X], Any],
    x: X,
    y: Tensor | None,
    bytes_: tuple[int, int],
    seed: int = 0,
) -> Agreement:
    r"""Compare a student with the average over draws."""
    n, generator = rows(x), torch.Generator().manual_seed(seed)
    each = draws.count * predict.numbers * draws.flat.element_size()
    size = n if predict.classes is not None else max(1, min(n, AT_ONCE // (each * OUTCOMES)))
    errors, divergences, logs = [], [], []
    for start in range(0, n, size):
        some = part_of(x, start, size)
        t, f = predictive(predict, draws, some), student(some)
        errors.append((t.mean - f.mean).abs().flatten())
        divergences.append(_divergence(t, f, predict.classes is not None, generator))
        if y is not None:
            own = y[start : start + size]
            logs.append(torch.stack([t.log_prob(own), f.log_prob(own)]).flatten(1))
    error, kl = torch.cat(errors).double(), torch.cat(divergences).double()
    calls = (lambda: predictive(predict, draws, part_of(x, 0, size)), lambda: student(x))
    teacher, own_time = (_seconds(call) for call in calls)
    return Agreement(
        n,
        draws.count,
        error.mean().item(),
        error.max().item(),
        kl.mean().item(),
        0.0 if predict.classes is not None else (kl.std() / math.sqrt(len(kl))).item(),
        _means(*torch.cat(logs, 1).double()) if logs else None,
        bytes_,
        (teacher * n / size, own_time),
    )


@torch.no_grad()
def density_agreement(
    predict: PredictFunction,
    draws: Draws,
    student: Any,
    y: Tensor | None,
    bytes_: tuple[int, int],
    seed: int = 0,
) -> Agreement:
    r"""The same of a density without inputs, at samples of the average over draws."""
    t = average(predict.stacked(draws.structure.unflatten(draws.flat)))
    events = t.sample((SAMPLES,), torch.Generator().manual_seed(seed))
    size = max(1, AT_ONCE // (draws.count * predict.numbers * draws.flat.element_size()))

    def logs(events: Tensor) -> tuple[Tensor, Tensor]:
        of_t = torch.cat([t.log_prob(some) for some in events.split(size)])
        return of_t.double(), student.log_prob(events).double()

    of_t, of_f = logs(events)
    apart, errors = of_t - of_f, (of_t.exp() - of_f.exp()).abs()
    block = events[: min(size, 1000)]
    return Agreement(
        len(events),
        draws.count,
        errors.mean().item(),
        errors.max().item(),
        apart.mean().item(),
        (apart.std() / math.sqrt(len(apart))).item(),
        None if y is None else _means(*logs(y.to(events))),
        bytes_,
        (
            _seconds(lambda: t.log_prob(block)) * len(events) / len(block),
            _seconds(lambda: student.log_prob(events)),
        ),
        "samples",
    )


def _means(one: Tensor, other: Tensor) -> tuple[float, float]:
    return one.mean().item(), other.mean().item()


def _divergence(
    t: Distribution, f: Distribution, classes: bool, generator: torch.Generator
) -> Tensor:
    r"""KL(t ‖ f) at each input, (n,); of densities, estimates (OUTCOMES · n,)."""
    if classes:
        of_t, of_f = class_logs(t), class_logs(f)
        return (of_t.exp() * (of_t - of_f)).sum(-1)
    y = t.sample((OUTCOMES,), generator)
    return (t.log_prob(y) - f.log_prob(y)).flatten()


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
