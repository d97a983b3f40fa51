r"""Chapter 2's numbers over seeds, compared with the text's, and tests of its conclusions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from reproduction.thesis import CHAPTER_2, Printed

__all__ = ["QUANTITIES", "Comparison", "Conclusion", "Figure", "conclusions", "figures", "verdict"]

QUANTITIES = ("accuracy", "log_prob", "difference_accuracy", "difference_log_prob")

ENOUGH = 2.0
r"""A difference counts if it is larger than this many standard errors."""


class Figure(NamedTuple):
    r"""A quantity of a cell over seeds.

    Attributes:
        mean: The mean over seeds.
        error: Its standard error; with one seed, that over test examples.
        low: The lowest of the seeds.
        high: The highest.
        bar: Two standard errors over test examples, as the text's error bars are.
        seeds: The number of seeds.
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
    r"""A conclusion of the text: what it says, the rule that tests it, and the numbers."""

    letter: str
    claim: str
    rule: str
    comparisons: tuple[Comparison, ...]

    @property
    def held(self) -> bool | None:
        r"""Whether every comparison holds; None if there are no runs to compare."""
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
    r"""The mean compared with the text's number: "within" its error bar, "better" or "below"."""
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
            "MNIST and NADE are above noise in accuracy and log probability, with both losses, "
            "with all and with a tenth of the images", above(noise),
        ),
        Conclusion(
            "b", "the teacher's labels reduce the risk of overfitting",
            "on the same images, the net trained on the teacher's labels with cross entropy has a "
            "higher test log probability than the net trained on the true ones (paired)", labels,
        ),
        Conclusion(
            "c", "with much data, cross entropy works better than derivative square error",
            "with all images CE is above DSE in both measures, for MNIST and for NADE",
            above([(f"{g}-all-ce", f"{g}-all-dse") for g in ("mnist", "nade")]),
        ),
        Conclusion(
            "d", "derivative square error generalises better when data are limited",
            "with a tenth of MNIST's images DSE is above CE in both measures",
            above([("mnist-tenth-dse", "mnist-tenth-ce")]),
        ),
        Conclusion(
            "e", "with little data, NADE has a clear advantage over the data set itself",
            "with a tenth of the images, NADE is above MNIST in both measures for cross entropy",
            above([("nade-tenth-ce", "mnist-tenth-ce")]),
        ),
    ]  # fmt: skip


def _apart(one: Figure, two: Figure) -> tuple[float, float]:
    return one.mean - two.mean, math.hypot(one.error, two.error)
