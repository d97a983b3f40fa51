r"""Chapter 3's numbers over data sets, and tests of its conclusions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["MEASURES", "TEXT", "Figure", "Finding", "figures", "logistic", "mixtures"]

MEASURES = ("mean", "maximum", "near")
r"""Of |t − f|: its mean and maximum on [−8, 8]², its mean within distance 2 of the origin."""

TEXT = ("CE batch", "DSE batch", "CE online", "DSE online")
r"""The students by the text's schedule."""

SHARED, INDEPENDENT = "shared draws", "independent draws"
WAYS = {
    "": "one draw per input, as in the text",
    f", {INDEPENDENT}": "one draw per input, from many thinned chains",
    f", {SHARED}": "each input predicted by all draws of its minibatch",
}
r"""Kinds of online students: the suffix of their names in the results, and a description."""

ABOVE, TIMES, SPARE = 0.01, 1.5, 0.002
r"""Limits for online students: above the chains (nats); above batch (a factor, and nats)."""


class Figure(NamedTuple):
    r"""A number over data sets: the mean, its standard error, the lowest and the highest."""

    mean: float
    error: float | None
    low: float
    high: float


class Finding(NamedTuple):
    r"""A claim, whether it holds, and its numbers as text."""

    claim: str
    held: bool
    numbers: str


def figures(entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Figure]]:
    r"""By student, then by measure, over all data sets that have the student."""
    found: dict[str, dict[str, Figure]] = {}
    for name in dict.fromkeys(name for each in entries for name in each["errors"]):
        own = [each["errors"][name] for each in entries if name in each["errors"]]
        columns = zip(*own, strict=True)
        found[name] = {
            measure: _figure(values) for measure, values in zip(MEASURES, columns, strict=True)
        }
    return found


def mixtures(entries: Sequence[Mapping[str, Any]]) -> list[Finding]:
    r"""Claims about online mixtures, tested for every number of observations."""
    found = []
    for way, words in (("parallel", "parallel chains"), ("text", "one chain, as in the text")):
        above = {
            each["observations"]: each["students"][f"online, {way}"]["mean"] - each["pooled"]["kl"]
            for each in entries
        }
        found.append(
            Finding(
                f"online, {words}: KL at most {ABOVE} nats above that of all chains together",
                all(value <= ABOVE for value in above.values()),
                _worst(above),
            )
        )
        ratio = {
            each["observations"]: each["students"][f"online, {way}"]["mean"]
            - TIMES * each["students"][f"batch, {way}"]["mean"]
            for each in entries
        }
        found.append(
            Finding(
                f"online, {words}: KL at most {TIMES} times the batch student's plus {SPARE} nats",
                all(value <= SPARE for value in ratio.values()),
                _worst(ratio, f"online minus {TIMES} times batch"),
            )
        )
    return found


def logistic(own: Mapping[str, Mapping[str, Figure]]) -> list[Finding]:
    r"""Claims about bags, tested on means over data sets."""

    def value(name: str, measure: str) -> float:
        return own[name][measure].mean

    means = {name: value(name, "mean") for name in TEXT}
    near = {name: value(name, "near") for name in TEXT}
    best = own["limbeck"]
    return [
        Finding(
            "the text's schedule: all four students have a mean error of at most 0.015",
            all(each <= 0.015 for each in means.values()),
            _listed(means),
        ),
        Finding(
            "derivative square error is better than cross entropy near the origin",
            all(near[f"DSE {way}"] < near[f"CE {way}"] for way in ("batch", "online")),
            _listed(near),
        ),
        *_ratios({name: each["mean"].mean for name, each in own.items()}),
        Finding(
            "limbeck's bag: a mean error of at most 0.011 and a maximum of at most 0.05",
            best["mean"].mean <= 0.011 and best["maximum"].mean <= 0.05,
            f"{best['mean'].mean:.4f} and {best['maximum'].mean:.4f} on average over data sets, "
            f"at most {best['mean'].high:.4f} and {best['maximum'].high:.4f}",
        ),
    ]


def _ratios(means: Mapping[str, float]) -> list[Finding]:
    r"""Online students compared with batch students, for each kind of online student."""
    found = []
    for way, words in WAYS.items():
        kinds = [kind for kind in ("CE", "DSE") if f"{kind} online{way}" in means]
        ratios = {kind: means[f"{kind} online{way}"] / means[f"{kind} batch"] for kind in kinds}
        if ratios:
            claim = f"online mean error at most {TIMES} times that of batch, {words}"
            said = "; ".join(f"{kind} {ratio:.2f} times" for kind, ratio in ratios.items())
            found.append(Finding(claim, all(each <= TIMES for each in ratios.values()), said))
    return found


def _figure(values: Iterable[float]) -> Figure:
    each = list(values)
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None
    return Figure(statistics.mean(each), error, min(each), max(each))


def _worst(values: Mapping[int, float], what: str = "online minus all chains") -> str:
    count = max(values, key=lambda size: values[size])
    return f"{what} is at most {values[count]:.4f} nats, at {count:,} observations"


def _listed(values: Mapping[str, float]) -> str:
    return "; ".join(f"{name} {value:.4f}" for name, value in values.items())
