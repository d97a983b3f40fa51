r"""Chapter 2's numbers over seeds, beside the text's, and what becomes of its conclusions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from reproduction.thesis import CHAPTER_2, Printed

__all__ = ["QUANTITIES", "Comparison", "Conclusion", "Figure", "conclusions", "figures", "verdict"]

QUANTITIES = ("accuracy", "log_prob", "difference_accuracy", "difference_log_prob")

ENOUGH = 2.0
r"""Standard errors from which a difference counts."""


class Figure(NamedTuple):
    r"""A quantity of a cell over seeds.

    Attributes:
        mean: The mean over seeds.
        error: Its standard error; with one seed, that over test examples.
        low: The lowest of the seeds.
        high: The highest.
        bar: Two standard errors over test examples, as the text's error bars are.
        seeds: How many there were.
    """

    mean: float
    error: float
    low: float
    high: float
    bar: float
    seeds: int


class Comparison(NamedTuple):
    r"""A cell that a conclusion says is above another one, in one measure."""

    one: str
    two: str
    measure: str
    difference: float
    error: float

    @property
    def holds(self) -> bool:
        return self.difference > ENOUGH * self.error


class Conclusion(NamedTuple):
    r"""A conclusion of the text: what it says, by which rule it is judged, and the numbers."""

    letter: str
    claim: str
    rule: str
    comparisons: tuple[Comparison, ...]

    @property
    def held(self) -> bool | None:
        r"""Whether every comparison holds; None if nothing was run to tell."""
        return all(each.holds for each in self.comparisons) if self.comparisons else None


Figures = dict[str, dict[str, Figure]]
r"""By cell, then by quantity."""


def figures(runs: Iterable[Mapping[str, Any]]) -> Figures:
    r"""Every quantity of every cell, over its seeds."""
    values: dict[str, dict[str, list[list[float]]]] = {}
    for run in runs:
        found = {name: run[name] for name in QUANTITIES[:2]}
        found |= {f"difference_{name}": pair for name, pair in run.get("difference", {}).items()}
        for name, pair in found.items():
            values.setdefault(run["cell"], {}).setdefault(name, []).append(pair)
    return {
        cell: {name: _figure(pairs) for name, pairs in each.items()}
        for cell, each in values.items()
    }


def _figure(pairs: list[list[float]]) -> Figure:
    means, count = [mean for mean, _ in pairs], len(pairs)
    within = statistics.mean(error for _, error in pairs)
    error = statistics.stdev(means) / math.sqrt(count) if count > 1 else within
    return Figure(statistics.mean(means), error, min(means), max(means), 2 * within, count)


def verdict(cell: str, quantity: str, figure: Figure) -> str:
    r"""How the mean stands to the text's number: "within" its error bar, "better" or "below"."""
    text: Printed = getattr(CHAPTER_2[cell], quantity)
    if abs(figure.mean - text.value) <= text.bar:
        return "within"
    return "better" if figure.mean > text.value else "below"


def conclusions(found: Figures) -> list[Conclusion]:
    r"""The text's conclusions (a) to (e), judged by our numbers."""
    shares, kinds = ("all", "tenth"), ("ce", "dse")

    def above(pairs: Iterable[tuple[str, str]]) -> tuple[Comparison, ...]:
        return tuple(
            Comparison(one, two, measure, *_apart(found[one][measure], found[two][measure]))
            for one, two in pairs
            if one in found and two in found
            for measure in QUANTITIES[:2]
        )

    noise = [
        (f"{generator}-{share}-{loss}", f"noise-{share}-{loss}")
        for share in shares
        for loss in kinds
        for generator in ("mnist", "nade")
    ]
    labels = tuple(
        Comparison(
            f"mnist-{share}-ce",
            f"labels-{share}",
            "log_prob",
            *found[f"mnist-{share}-ce"]["difference_log_prob"][:2],
        )
        for share in shares
        if "difference_log_prob" in found.get(f"mnist-{share}-ce", {})
    )
    return [
        Conclusion(
            "a", "the choice of data generator is highly important: noise does poorly",
            "MNIST and NADE are above noise, in accuracy and log probability, with both losses "
            "and from all and a tenth of the images", above(noise),
        ),
        Conclusion(
            "b", "labels by the teacher reduce the risk of overfitting",
            "on the same images, cross entropy with the teacher's labels has a higher test log "
            "probability than the net trained on the true ones, example by example", labels,
        ),
        Conclusion(
            "c", "cross entropy works better than derivative square error with much data",
            "from all images CE is above DSE in both measures, with MNIST and with NADE",
            above([(f"{g}-all-ce", f"{g}-all-dse") for g in ("mnist", "nade")]),
        ),
        Conclusion(
            "d", "derivative square error generalises better when data are limited",
            "from a tenth of MNIST's images DSE is above CE in both measures",
            above([("mnist-tenth-dse", "mnist-tenth-ce")]),
        ),
        Conclusion(
            "e", "NADE has a clear advantage over the data set when that is small",
            "from a tenth of the images, NADE is above MNIST in both measures with cross entropy",
            above([("nade-tenth-ce", "mnist-tenth-ce")]),
        ),
    ]  # fmt: skip


def _apart(one: Figure, two: Figure) -> tuple[float, float]:
    return one.mean - two.mean, math.hypot(one.error, two.error)
