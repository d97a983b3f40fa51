r"""Chapter 3: posterior draws into compact predictive distributions, densities and classifiers."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from limbeck.arguments import integer
from limbeck.environment import environment
from limbeck.errors import ArgumentError
from limbeck.progress import tracked
from reproduction import chapter3_bags, chapter3_density, chapter3_remarks
from reproduction.record import write

__all__ = ["FILE", "PARTS", "Settings", "run"]

FILE = "chapter-3.json"

PARTS = ("mixtures", "logistic")


@dataclass(frozen=True)
class Settings:
    r"""What is run; the defaults are the text's, but for what it has only one of.

    Attributes:
        parts: "mixtures", "logistic" or both.
        sizes: Numbers of observations of the mixture, an experiment each.
        seed: Of observations, chains and students.
        chains: Chains of the text's length; all of them together are the pooled reference.
        repeats: Of how many of these chains students are made, one by one.
        burn_in: Sweeps before draws are used.
        draws: Draws of a chain.
        samples: Samples of all draws' density that batch EM fits a student to.
        batch: Draws in an online minibatch.
        steps: Steps of online students of parallel chains; with a single chain, its draws suffice
            for so many as the text has, 100.
        remarks: Sizes at which the text's remarks on online distillation are tried.
        data_sets: Sets of 24 points for logistic regression.
        wide_sets: With how many of them inputs N(0, 100·I) are tried too.
        counted_sets: With how many of them other numbers of components are tried.
        counts: Which numbers these are.
        components: Draws in a bag.
        bag_steps: Steps of each bag.
        bag_batch: Inputs a step, and chains.
    """

    parts: tuple[str, ...] = PARTS
    sizes: tuple[int, ...] = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
    seed: int = 0
    chains: int = 32
    repeats: int = 8
    burn_in: int = 1000
    draws: int = 10_000
    samples: int = 1000
    batch: int = 100
    steps: int = 500
    remarks: tuple[int, ...] = (5, 20, 50)
    data_sets: int = 10
    wide_sets: int = 3
    counted_sets: int = 3
    counts: tuple[int, ...] = (1, 2, 3, 5, 7, 10, 15, 20, 30)
    components: int = 10
    bag_steps: int = 5000
    bag_batch: int = 10

    def __post_init__(self) -> None:
        for name in self.parts:
            if name not in PARTS:
                raise ArgumentError.unknown("parts", name, PARTS)
        for size in self.sizes:
            integer("sizes", size, "whole numbers from 1", least=1)
        if not self.parts or not self.sizes:
            raise ArgumentError("parts" if not self.parts else "sizes", "none", "one or more")


def run(out: Path, settings: Settings | None = None, *, progress: bool = True) -> dict[str, Any]:
    r"""Run all that the settings name; writes out/chapter-3.json after each experiment.

    Arguments:
        out: Where results go.
        settings: What is run; None is all of the text's.
        progress: Whether to show bars.
    """
    settings = settings or Settings()
    began = time.perf_counter()
    found: dict[str, Any] = environment("cpu") | {"settings": asdict(settings)}

    def keep() -> None:
        found["seconds"] = round(time.perf_counter() - began, 1)
        write(out / FILE, found)

    if "mixtures" in settings.parts:
        found["mixtures"], found["remarks"] = [], []
        for count in tracked(settings.sizes, "mixtures", progress):
            entry, draws = chapter3_density.experiment(count, settings)
            found["mixtures"].append(entry)
            if count in settings.remarks:
                tried = chapter3_remarks.remarks(count, settings.seed, draws, settings.repeats)
                found["remarks"].append(tried)
            keep()
    if "logistic" in settings.parts:
        found["logistic"] = []
        for number in tracked(range(settings.data_sets), "logistic regression", progress):
            found["logistic"].append(chapter3_bags.data_set(number, settings))
            keep()
    return found
