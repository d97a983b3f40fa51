r"""Chapter 2: an ensemble of nets into one small net, by two losses and three data generators."""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from limbeck.arguments import Number
from limbeck.environment import environment
from limbeck.errors import ArgumentError
from limbeck.models.mlp import INITS
from limbeck.storage.files import differences
from limbeck.training.config import choose_device
from reproduction import data
from reproduction.record import write

__all__ = ["CELLS", "FILE", "LABELS", "Cell", "Settings", "chosen", "merge", "run"]

FILE = "chapter-2.json"

SPLIT = ("cells", "seeds")
r"""Settings in which runs that are merged may differ."""


class Cell(NamedTuple):
    r"""A cell of the text's tables.

    Attributes:
        generator: Where inputs come from: "mnist", "nade", "noise"; "labels" for a net without
            a teacher, on MNIST with its labels.
        share: The images that the generator has: "all", or "tenth" for the first tenth.
        loss: "ce" for cross entropy, "dse" for derivative square error.
    """

    generator: str
    share: str
    loss: str

    @property
    def name(self) -> str:
        return "-".join(self[:2] if self.generator == "labels" else self)


LABELS = {share: Cell("labels", share, "ce") for share in ("all", "tenth")}
r"""The direct nets, with which students are compared."""

CELLS = {
    cell.name: cell
    for cell in (
        *LABELS.values(),
        *(
            Cell(generator, share, loss)
            for generator in ("mnist", "nade", "noise")
            for share in ("all", "tenth")
            for loss in ("ce", "dse")
        ),
    )
}
r"""All cells by name, in the order of the tables."""


@dataclass(frozen=True)
class Settings:
    r"""What is run; the defaults are the text's, but for the number of seeds.

    Attributes:
        cells: Names of `CELLS`. The direct nets of their images are trained in any case, since
            students are compared with them.
        seeds: One student, and one NADE, for each; the teacher is the same for all.
        steps_factor: On all numbers of steps; below one for a trial.
        members: Nets in the teacher.
        teacher_hidden: Hidden units of each of them.
        teacher_seed: Seeds the teacher.
        teacher_passes: Passes over the images, for the teacher and for direct nets.
        hidden: Hidden units of the student.
        passes: Passes' worth of samples for each student.
        nade_hidden: Hidden units of the NADE.
        nade_passes: Passes over the images for the NADE.
        init: What all nets start at, as of `MLP`. The text does not tell; its published code
            draws normal weights and biases of variance 1 / (inputs of the layer + 1).
    """

    cells: tuple[str, ...] = tuple(CELLS)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps_factor: float = 1.0
    members: int = 30
    teacher_hidden: tuple[int, ...] = (500, 300)
    teacher_seed: int = 0
    teacher_passes: int = 20
    hidden: tuple[int, ...] = (50, 30)
    passes: int = 40
    nade_hidden: int = 500
    nade_passes: int = 10
    init: str = "lecun"

    def __post_init__(self) -> None:
        for name in self.cells:
            if name not in CELLS:
                raise ArgumentError.unknown("cells", name, CELLS)
        if self.init not in INITS:
            raise ArgumentError.unknown("init", self.init, INITS)
        Number(above=0)("steps_factor", self.steps_factor)
        for name in ("cells", "seeds"):
            if not getattr(self, name):
                raise ArgumentError(name, "none", "one or more")


def chosen(patterns: Sequence[str]) -> tuple[str, ...]:
    r"""The names of cells that any of the patterns fits.

    >>> chosen(["mnist-*-ce", "labels-all"])
    ('labels-all', 'mnist-all-ce', 'mnist-tenth-ce')
    """
    for pattern in patterns:
        if not fnmatch.filter(CELLS, pattern):
            raise ArgumentError.unknown("cells", pattern, CELLS)
    return tuple(name for name in CELLS if any(fnmatch.fnmatch(name, p) for p in patterns))


def run(
    folder: Path | None,
    out: Path,
    settings: Settings | None = None,
    *,
    device: str = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    r"""Run all that the settings name and is not yet there; writes out/chapter-2.json after each.

    Arguments:
        folder: Where MNIST's four IDX files are.
        out: Where results and nets go. If it holds some of the same settings, they stay.
        settings: What is run; None is all of the text's.
        device: Where to run.
        progress: Whether to show bars.
    """
    from reproduction.chapter2_parts import Parts

    settings = settings or Settings()
    began, place = time.perf_counter(), choose_device(device)
    found = _begun(out / FILE, settings, place)
    spent = found["seconds"]
    parts = Parts(data.mnist(folder), out, settings, place, progress)
    for seed, cell in _jobs(settings):
        entries = _by_key(found["runs"])
        if (cell.name, seed) in entries and parts.is_kept(cell, seed):
            continue
        entries[cell.name, seed] = parts.one(cell, seed)
        found["runs"] = _ordered(entries)
        found |= parts.described(found)
        found["seconds"] = round(spent + time.perf_counter() - began, 1)
        write(out / FILE, found)
    return found


def merge(results: Sequence[Mapping[str, Any] | Path]) -> dict[str, Any]:
    r"""One result of several runs, of other cells or seeds.

    What two runs have in common is taken from the first. Settings but cells and seeds must agree.
    """
    if not results:
        raise ArgumentError("results", "none", "one or more")
    given = [
        each if isinstance(each, Mapping) else json.loads(Path(each).read_text(encoding="utf-8"))
        for each in results
    ]
    found: dict[str, Any] = dict(given[0])
    for other in given[1:]:
        if unlike := _unlike(found["settings"], other["settings"]):
            received = f"results of different settings: {'; '.join(unlike)}"
            raise ArgumentError("results", received, "results that differ in cells and seeds only")
        found["runs"] = _ordered(_by_key(other["runs"]) | _by_key(found["runs"]))
        joined = {name: found["settings"][name] + other["settings"][name] for name in SPLIT}
        found["settings"] = found["settings"] | {
            "cells": [name for name in CELLS if name in joined["cells"]],
            "seeds": sorted(set(joined["seeds"])),
        }
        for name, key in (("teachers", "digest"), ("nades", "name")):
            known = {each[key]: each for each in (*other[name], *found[name])}
            found[name] = [known[each] for each in sorted(known)]
        found["samples"] = other["samples"] | found["samples"]
        found["seconds"] = round(found["seconds"] + other["seconds"], 1)
        for name in ("hardware", "torch"):
            if other[name] not in found[name]:
                found[name] = f"{found[name]} and {other[name]}"
    return found


def _begun(path: Path, settings: Settings, place: torch.device) -> dict[str, Any]:
    r"""What is there of these settings, or a new beginning."""
    asked = json.loads(json.dumps(asdict(settings)))
    new = environment(place) | {
        "settings": asked, "teachers": [], "nades": [], "samples": {}, "runs": [], "seconds": 0.0,
    }  # fmt: skip
    if not path.exists():
        return new
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        unlike = _unlike(old["settings"], asked)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        received = f"{path}, which cannot be read ({error!r})"
        raise ArgumentError("out", received, "a folder without it") from None
    if unlike:
        received = f"{path} of other settings: {'; '.join(unlike)}"
        raise ArgumentError("out", received, "another folder, or the same settings")
    return merge([old, new])


def _unlike(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    def compared(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in SPLIT}

    return differences(compared(one), compared(two))


def _jobs(settings: Settings) -> list[tuple[int, Cell]]:
    r"""Every net to be trained, seed by seed, those on the labels first."""
    shares = {CELLS[name].share for name in settings.cells}
    wanted = {cell.name for share, cell in LABELS.items() if share in shares} | {*settings.cells}
    cells = [cell for name, cell in CELLS.items() if name in wanted]
    return [(seed, cell) for seed in settings.seeds for cell in cells]


def _by_key(runs: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(run["cell"], run["seed"]): run for run in runs}


def _ordered(entries: Mapping[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    names = list(CELLS)
    return [entries[key] for key in sorted(entries, key=lambda key: (key[1], names.index(key[0])))]
