r"""`compare_evidence`: Bayes factors and probabilities of models, from their evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from limbeck.arguments import Dict, checked_arguments
from limbeck.environment import load_matplotlib
from limbeck.errors import ArgumentError
from limbeck.normalization.estimate import LogPartition, Verdict, with_error
from limbeck.text import PlainTable, table_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMULATIONS = 20_000  # of the errors of all estimates, for intervals


@dataclass(repr=False)
class EvidenceComparison:
    r"""Models by their evidence, the best one first.

    Attributes:
        evidence: The estimates by name.
        log_bayes_factors: Of each model: log evidence less that of the best, and its error.
        probabilities: Of each model, given the prior: the value, and the ends of a 95% interval.
        verdict: Whether all estimates can be trusted; reasons name the models.
    """

    evidence: dict[str, LogPartition]
    log_bayes_factors: dict[str, tuple[float, float]]
    probabilities: dict[str, tuple[float, float, float]]
    verdict: Verdict

    def table(self) -> Table:
        r"""One row for each model."""
        heads = ("model", "log evidence", "log Bayes factor", "probability (95%)", "verdict")
        table = PlainTable(*heads, title="models by evidence")
        for name, z in self.evidence.items():
            value, low, high = self.probabilities[name]
            table.add_row(
                name, with_error(z.value, z.std_error), with_error(*self.log_bayes_factors[name]),
                f"{value:.3g} ({low:.3g} … {high:.3g})", z.verdict.state,
            )  # fmt: skip
        return table

    def sentence(self) -> str:
        r"""The comparison in one sentence."""
        best, second = list(self.evidence)[:2]
        factor, error = self.log_bayes_factors[second]
        words = f"{best} is {math.exp(min(-factor, 700)):.3g} times as probable as {second}"
        words += f" at equal prior odds (log Bayes factor {with_error(-factor, error)})"
        if not self.verdict:
            return f"Do not rely on it: {words}, but {'; '.join(self.verdict.reasons)}."
        return f"{words}, if densities have all their constants and priors are proper."

    def __str__(self) -> str:
        return table_text(self.table()) + self.sentence()

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        r"""Everything in plain numbers, words and lists, as JSON takes it."""
        return {
            "models": {
                name: {
                    "evidence": z.to_dict(), "log_bayes_factor": list(self.log_bayes_factors[name]),
                    "probability": list(self.probabilities[name]),
                }
                for name, z in self.evidence.items()
            },
            "state": self.verdict.state, "reasons": list(self.verdict.reasons),
        }  # fmt: skip

    def plot(self) -> Figure:
        r"""A matplotlib figure: probabilities with intervals; estimates in doubt are grey."""
        load_matplotlib()
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 1 + 0.4 * len(self.evidence)), layout="constrained")
        axes = figure.subplots()
        for place, (name, z) in enumerate(self.evidence.items()):
            value, low, high = self.probabilities[name]
            errors = [[value - min(low, value)], [max(high, value) - value]]
            colour = "tab:blue" if z.verdict else "0.6"
            axes.errorbar([value], [place], xerr=errors, fmt="o", color=colour, capsize=3)
        labels = [n if z.verdict else f"{n} ({z.verdict.state})" for n, z in self.evidence.items()]
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set(xlim=(-0.02, 1.02), xlabel="probability of the model (95% interval)")
        return figure


@checked_arguments
def compare_evidence(
    evidence: Dict[Mapping[str, LogPartition]], *, prior: Dict[Mapping[str, float]] | None = None,
) -> EvidenceComparison:  # fmt: skip
    r"""Compare models by their evidence: Bayes factors and model probabilities, with errors.

    Errors are those of the estimates; estimates are taken as independent. A doubtful or unchecked
    estimate makes the comparison so.

    Arguments:
        evidence: Results of `lb.log_evidence` or `lb.log_partition` by name, two or more.
        prior: Prior weights of the models by name. Default: equal.

    >>> one, other = (LogPartition(v, 0.01, "bridge", Verdict()) for v in (-3.0, -5.0))
    >>> comparison = compare_evidence({"linear": other, "quadratic": one})
    >>> round(comparison.probabilities["quadratic"][0], 3)
    0.881
    """
    if len(evidence) < 2:
        raise ArgumentError("evidence", f"{len(evidence)} estimates", "two or more, by name")
    for name, z in evidence.items():
        if not isinstance(z, LogPartition):
            expected = "a result of lb.log_evidence or lb.log_partition"
            raise ArgumentError(f"evidence[{name!r}]", f"a {type(z).__name__}", expected)
        if not math.isfinite(z.value):
            raise ArgumentError(f"evidence[{name!r}]", z.value, "a finite log evidence")
    weights = dict.fromkeys(evidence, 1.0) if prior is None else dict(prior)
    positive = all(isinstance(w, int | float) and 0 < w < math.inf for w in weights.values())
    if weights.keys() != evidence.keys() or not positive:
        raise ArgumentError("prior", weights, f"a weight above zero for each of {list(evidence)}")
    ordered = dict(sorted(evidence.items(), key=lambda model: -model[1].value))
    logs = np.array([z.value + math.log(weights[name]) for name, z in ordered.items()])
    errors = np.array([z.std_error for z in ordered.values()])
    degrees = np.array([min(z.degrees, 1e9) for z in ordered.values()])
    noise = np.random.default_rng(0).standard_t(degrees, (SIMULATIONS, len(ordered)))
    known = np.where(np.isfinite(errors), errors, 1e6)
    simulated = logs + known * noise
    shares, drawn = (np.exp(x - x.max(-1, keepdims=True)) for x in (logs, simulated))
    shares, drawn = shares / shares.sum(), drawn / drawn.sum(-1, keepdims=True)
    ends = np.quantile(drawn, (0.025, 0.975), axis=0)
    first, best = next(iter(ordered.items()))
    apart = {name: math.hypot(z.std_error, best.std_error) for name, z in ordered.items()}
    apart[first] = 0.0
    factors = {name: (z.value - best.value, apart[name]) for name, z in ordered.items()}

    def reasons(state: str) -> tuple[str, ...]:
        those = ((name, z.verdict) for name, z in ordered.items() if z.verdict.state == state)
        return tuple(f"{name} is {state} ({'; '.join(v.reasons)})" for name, v in those)

    columns = np.stack([shares, *ends], 1).tolist()
    probabilities = {name: tuple(column) for name, column in zip(ordered, columns, strict=True)}
    verdict = Verdict(reasons("doubtful"), reasons("unchecked"))
    return EvidenceComparison(ordered, factors, probabilities, verdict)
