r"""The likelihood of data under an unnormalised model, with its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from limbeck.arguments import Number
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError


@dataclass(frozen=True)
class LogLikelihood:
    r"""The mean of log p(x) over rows, with its error.

    Attributes:
        value: The mean of log p̃(x), less log Z.
        std_error: Its standard error as an estimate for new rows: both errors below together.
        data_error: The standard error of the mean over the rows.
        log_z_error: The standard error of log Z.
        rows: The number of rows.
        doubts: Why log Z, and so the value, is not trustworthy; empty if it is.
    """

    value: float
    std_error: float
    data_error: float
    log_z_error: float
    rows: int
    doubts: tuple[str, ...] = ()

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        parts = f"± {self.data_error:.2g} of {self.rows:,} rows and {self.log_z_error:.2g} of log Z"
        text = f"mean log p = {self.value:.4f} ± {self.std_error:.2g} ({parts})"
        return f"{text}; do not trust log Z: {'; '.join(self.doubts)}" if self.doubts else text


@torch.no_grad()
def log_likelihood(target: Any, x: Any, z: Any) -> LogLikelihood:
    r"""The mean of log p(x) over rows x (n, *shape), by log Z: an estimate, or a number."""
    like = next(iter(target.parameters()), torch.zeros(0))
    x = target.support.check(as_part(x, "x").values.to(like), "x")
    doubts: tuple[str, ...] = ()
    if getattr(z, "quantity", "log Z") != "log Z":
        raise ArgumentError("z", f"an estimate of {z.quantity}", "one of log Z of this model")
    if hasattr(z, "std_error"):
        log_z, error = float(z.value), float(z.std_error)
        doubts = tuple(z.verdict.reasons)
    else:
        log_z, error = Number()("z", z, "log Z of this model, as lb.log_partition gives it"), 0.0
    log = target.log_unnormalized(x).double()
    excess = float(log.max()) - log_z
    if target.support.discrete and excess > 4 * error + 1e-5 * max(1.0, abs(log_z)):
        received = f"{log_z:.6g}, which is below log p̃ of a row by {excess:.3g}"
        raise ArgumentError("z", received, "log Z of this model")
    mean = float(log.mean()) - log_z
    spread = float(log.std()) / math.sqrt(len(log)) if len(log) > 1 else math.inf
    spread = math.inf if math.isnan(spread) else spread  # rows without mass
    return LogLikelihood(mean, math.hypot(spread, error), spread, error, len(log), doubts)
