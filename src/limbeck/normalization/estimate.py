r"""An estimate of log Z: value, error, bounds and verdict; and the base class of methods."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from rich.table import Table
from torch import Tensor

from limbeck.arguments import Count, Flag, InnerFraction, Seed, UserObject, checked_arguments
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError
from limbeck.normalization.densities import Densities, check_target, tail_doubts
from limbeck.normalization.mode_search import check_modes
from limbeck.samplers.chains import Target
from limbeck.samplers.diagnostics import effective_size, pareto_k, weights_effective_size
from limbeck.storage.files import plain
from limbeck.text import PlainTable, table_text
from limbeck.verdict import Verdict

NAMES = {
    "ais": "annealed importance sampling",
    "bridge": "bridge sampling",
    "exact": "enumeration",
    "importance": "importance sampling",
    "tempering": "parallel tempering",
}


class Bound(float):
    r"""A bound on log Z: a number with the standard error of its estimate.

    It bounds log Z in expectation; the estimate may be on the wrong side by a few errors.

    >>> Bound(459.01, 0.067), Bound(459.01, 0.067) < 460
    (459.010 ± 0.067, True)
    """

    std_error: float

    def __new__(cls, value: float, std_error: float) -> Self:
        bound = super().__new__(cls, value)
        bound.std_error = float(std_error)
        return bound

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.std_error

    def __repr__(self) -> str:
        return with_error(float(self), self.std_error)

    __str__ = __repr__


def mean_bound(log_ratio: Tensor) -> Bound:
    r"""The mean of log p̃ − log q at independent samples (n,), or at draws (chains, draws).

    Over samples of the proposal it is log Z − KL(q ‖ p), a lower bound; over samples of the target
    log Z + KL(p ‖ q), an upper one. It is infinite where one of the two has no mass.
    """
    r = log_ratio.double()
    mean = float(r.mean())
    if not math.isfinite(mean) or r.numel() < 2:
        return Bound(mean, math.inf)
    return Bound(mean, float(r.std()) / math.sqrt(len(r) if r.dim() == 1 else effective_size(r)))


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    r"""The logarithm of the mean of weights, and its standard error.

    Where few weights are large, means that are too low come with errors that are too small. By the
    skewness γ, quantiles of t three errors away move by γ/√n of these (Johnson, 1978): the error is
    wider by half of it, since they move to one side only.
    """
    log_w = log_weights.double().flatten()
    n = len(log_w)
    value = float(log_w.logsumexp(0)) - math.log(n)
    if n < 2:
        return value, math.inf
    apart = (log_w - value).exp() - 1
    spread = float(apart.std())
    skewness = float((apart / spread).pow(3).mean()) if spread else 0.0
    return value, spread / math.sqrt(n) * (1 + max(skewness, 0.0) / math.sqrt(4 * n))


@dataclass(repr=False)
class LogPartition:
    r"""An estimate of log Z.

    Attributes:
        value: The estimate.
        std_error: Its standard error, including differences that checks found.
        method: "bridge", "importance", "ais", "tempering" or "exact".
        verdict: Whether to trust it, and why not.
        lower_bound: An estimate of a lower bound on log Z, with its own error, if there is one.
        upper_bound: The same for an upper bound.
        diagnostics: Numbers by name: "ess", "pareto_k", "overlap", "iterations", "acceptance", …;
            "sampling_error" is the standard error without such differences.
        samples: The number of samples of each kind.
        sweeps: The number of sweeps of single chains.
        seed: The seed.
        seconds: Wall-clock seconds.
        degrees: Degrees of freedom of the error; intervals use Student's t quantiles.
        quantity: "log Z", or "log Z₁ − log Z₂" for the difference of two estimates.
        note: What was done for a requested error or time, and whether it was reached; or "".
    """

    value: float
    std_error: float
    method: str
    verdict: Verdict
    lower_bound: Bound | None = None
    upper_bound: Bound | None = None
    diagnostics: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    sweeps: int = 0
    seed: int = 0
    seconds: float = 0.0
    degrees: float = math.inf
    quantity: str = "log Z"
    note: str = ""

    @checked_arguments
    def interval(self, level: InnerFraction = 0.95) -> tuple[float, float]:
        r"""An interval that covers log Z with this probability, if the verdict holds.

        >>> z = LogPartition(451.27, 0.04, "bridge", Verdict())
        >>> z.interval(0.997)
        (451.15..., 451.38...)
        """
        if self.std_error == 0:
            return self.value, self.value
        if not math.isfinite(self.std_error):
            return -math.inf, math.inf
        from scipy.special import stdtrit

        width = self.std_error * float(stdtrit(min(self.degrees, 1e9), (1 + level) / 2))
        return self.value - width, self.value + width

    def __float__(self) -> float:
        return float(self.value)

    def __sub__(self, other: LogPartition) -> LogPartition:
        r"""The logarithm of the ratio of two normalisers, of estimates that are independent.

        Variances add, and the verdict has the reasons of both. Two sampled estimates with equal
        seeds share random numbers, so that the error of their difference is not known: refused.
        """
        if not isinstance(other, LogPartition):
            return NotImplemented
        sampled = self.std_error > 0 and other.std_error > 0
        shared = self.quantity == "log Z"  # `log_evidence` has random numbers for each set of draws
        if sampled and shared and self.seed == other.seed:
            received = f"two estimates with seed {self.seed}"
            raise ArgumentError("seed", received, "estimates with different seeds, or an exact one")
        error = math.hypot(self.std_error, other.std_error)
        # the degrees of freedom of a sum of variances, by Welch and Satterthwaite
        parts = sum(z.std_error**4 / z.degrees for z in (self, other))
        degrees = error**4 / parts if parts and math.isfinite(error) else math.inf
        methods = dict.fromkeys(NAMES.get(z.method, z.method) for z in (self, other))
        verdict = Verdict(
            (*self.verdict.doubts, *other.verdict.doubts),
            (*self.verdict.unchecked, *other.verdict.unchecked),
            self.verdict.assumption or other.verdict.assumption,
        )
        return LogPartition(
            self.value - other.value, error, " and ".join(methods), verdict, degrees=degrees,
            samples=self.samples + other.samples, sweeps=self.sweeps + other.sweeps,
            seconds=self.seconds + other.seconds, quantity="log Z₁ − log Z₂",
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        r"""Everything in plain numbers, words and lists, as JSON takes it; None for no number."""
        bounds = {
            name: None if bound is None else [float(bound), bound.std_error]
            for name, bound in (("lower", self.lower_bound), ("upper", self.upper_bound))
        }
        record: dict[str, Any] = plain({
            "value": self.value, "std_error": self.std_error, "interval_95": self.interval(),
            "method": self.method, "trustworthy": self.verdict.trustworthy,
            "state": self.verdict.state, "reasons": self.verdict.reasons,
            "assumption": self.verdict.assumption, "bounds": bounds,
            "diagnostics": self.diagnostics, "samples": self.samples, "sweeps": self.sweeps,
            "seed": self.seed, "seconds": self.seconds, "note": self.note,
        })  # fmt: skip
        return record

    def table(self) -> Table:
        r"""The estimate as a table."""
        rows = {
            self.quantity: with_error(self.value, self.std_error),
            "95% interval": self._interval_text(" … "),
            "lower bound": self.lower_bound, "upper bound": self.upper_bound, **self.diagnostics,
            "samples": self.samples, "sweeps": self.sweeps, "seconds": f"{self.seconds:.2f}",
            "verdict": self.verdict.state,
        }  # fmt: skip
        title = f"{self.quantity} by {NAMES.get(self.method, self.method)}"
        table = PlainTable(title=title, show_header=False)
        for name, value in rows.items():
            table.add_row(name.replace("_", " "), _shown(value))
        return table

    def _interval_text(self, separator: str) -> str:
        places = _decimals(self.std_error)
        return separator.join(f"{end:.{places}f}" for end in self.interval())

    def sentence(self) -> str:
        r"""The estimate in one sentence."""
        how = NAMES.get(self.method, self.method)
        if self.std_error == 0 and self.verdict and not self.verdict.assumption:
            exactly = f"{self.quantity} is {self.value:.6f}, exactly"
            if events := self.diagnostics.get("events_compared"):
                pairs = f"if sites interact only in pairs, as at all {events:,} events compared"
                return f"{exactly} {pairs}: by sums over one site after the other."
            return f"{exactly}: by {how}."
        value = with_error(self.value, self.std_error)
        if self.verdict:
            interval = self._interval_text(" to ")
            passed = "; ".join(filter(None, ["all checks passed", self.verdict.assumption]))
            return f"By {how}, {self.quantity} is {value} (95%: {interval}); {passed}."
        *others, last = self.verdict.reasons
        reasons = "; ".join([*others, f"and {last}" if others else last])
        if self.verdict.state == "unchecked":
            return f"{self.quantity} = {value}, by {how}, is unchecked: {reasons}."
        return f"Do not trust {self.quantity} = {value}, by {how}: {reasons}."

    def __str__(self) -> str:
        return table_text(self.table()) + " ".join(filter(None, (self.sentence(), self.note)))

    __repr__ = __str__


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and not isinstance(value, Bound):
        return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _decimals(error: float) -> int:
    r"""Enough for two figures of the error."""
    if not 0 < error < math.inf:
        return 6 if error == 0 else 2
    return min(max(1 - math.floor(math.log10(error)), 0), 12)


def with_error(value: float, error: float) -> str:
    r"""A number with its standard error, to two figures of the error."""
    places = _decimals(error)
    return f"{value:.{places}f} ± {error:.{places}f}" if error else f"{value:.{places}f}"


Start = str | Tensor  # where chains begin: "proposal", "target", or events (m, *shape)
# log Z, and draws (chains, draws, *shape) with log weights, if any, to check modes by
Estimate = tuple[LogPartition, Tensor, Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Method:
    r"""A method to estimate log Z, with its settings."""

    name: ClassVar[str]
    samples: Count = 10_000

    @checked_arguments
    def estimate(
        self, target: UserObject[Target], proposal: UserObject[object] = None, *,
        seed: Seed = 0, progress: Flag = True,
    ) -> LogPartition:  # fmt: skip
        r"""Estimate log Z of a target.

        Arguments:
            target: An RBM, an Energy, or anything that follows `limbeck.samplers.chains.Target`.
            proposal: A student, or a distribution with `log_prob` and `sample`, for the methods
                that need one. Default: none.
            seed: Seeds everything; equal seeds give equal results. Default: 0.
            progress: Whether to show bars, if a terminal is there. Default: True.
        """
        began = time.perf_counter()
        check_target(target, chains=self.name == "bridge")
        densities = Densities(target, None if self.name in ("ais", "tempering") else proposal, seed)
        densities.deadline = time.monotonic() + (getattr(self, "seconds", None) or math.inf)
        with recorded_warnings() as texts, densities.at_work():
            z, x, log_weights = self._estimate(densities, progress)
            error = z.diagnostics["sampling_error"]
            starts = (getattr(self, name, None) for name in ("start", "second_start"))
            events = [start.to(x) for start in starts if isinstance(start, Tensor)]
            given = torch.cat(events) if events else None
            reasons, unchecked, lacking, counts = check_modes(
                densities, x, z.value, error, log_weights, given
            )
            reasons += tail_doubts(densities, x.flatten(0, 1))
        # log densities are rounded to about as much as log Z is
        rounding = 2 * torch.finfo(densities.dtype).eps * max(1.0, abs(z.value))
        z.std_error = math.hypot(z.std_error, lacking, rounding)
        way = "samples, chains and climbs from likely events" if counts else "samples and chains"
        z.verdict = Verdict(
            (*z.verdict.doubts, *reasons, *texts), (*z.verdict.unchecked, *unchecked),
            f"this assumes that its {way} reached all of the mass",
        )  # fmt: skip
        z.diagnostics |= counts
        z.seed, z.seconds = seed, time.perf_counter() - began
        return z

    def _estimate(self, densities: Densities, progress: bool) -> Estimate:
        raise NotImplementedError

    def _mean_of_weights(self, log_weights: Tensor, name: str) -> LogPartition:
        r"""log Z as the logarithm of the mean of weights (n,), which doubts call by `name`.

        It is doubtful with a heavy tail of the weights, or a small effective number of them.
        """
        n, (value, error) = len(log_weights), log_mean(log_weights)
        size, k, doubts = weights_effective_size(log_weights), pareto_k(log_weights), list[str]()
        if size < 100:
            text = f"is {size:.3g}, too few to know the error"
            doubts.append(f"the effective number of {name} {text}")
        limit = min(1 - 1 / math.log10(n), 0.7) if n > 10 else 0.0
        if k > limit:
            doubts.append(
                f"the {name} have a heavy tail (Pareto k̂ = {k:.2f} > {limit:.2g}): such means are "
                "mostly too low, and their errors too"
            )
        return LogPartition(
            value, error, self.name, Verdict(tuple(doubts)), mean_bound(log_weights),
            diagnostics={"ess": size, "sampling_error": error, "pareto_k": k}, samples=n,
            degrees=max(n - 1, 1),
        )  # fmt: skip

    def _set_start(self, name: str) -> None:
        r"""Store a start after a check: by name, or events as a tensor."""
        start, names = getattr(self, name), ("proposal", "target")
        if start is None or (isinstance(start, str) and start not in names):
            raise ArgumentError(name, start and repr(start), f"{names} or events (m, *shape)")
        self._set(name, start if isinstance(start, str) else as_part(start, name).values)

    def _set(self, name: str, value: object) -> None:
        r"""Store a setting after a check."""
        object.__setattr__(self, name, value)


ABOUT_CODE = (  # kinds of warnings that say nothing about numbers
    DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning,
    SyntaxWarning,
)  # fmt: skip


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    r"""A list that afterwards holds a text for each place that warned, and then warns again."""
    texts, places = list[str](), dict[tuple[type[Warning], str, int], warnings.WarningMessage]()
    try:
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            yield texts
    except BaseException:
        with suppress(Warning):  # the error is more important than what came before
            _raise_again(messages)
        raise
    for w in messages:
        places.setdefault((w.category, w.filename, w.lineno), w)
    texts += [
        f"a warning was raised while the estimate ran: {str(w.message).strip().rstrip('.')}"
        for w in places.values()
        if not issubclass(w.category, ABOUT_CODE)
        and "/torch/_" not in w.filename.replace("\\", "/")  # the compiler's, which are of speed
    ]
    _raise_again(places.values())


def _raise_again(messages: Iterable[warnings.WarningMessage]) -> None:
    for w in messages:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
