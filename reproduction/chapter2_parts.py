r"""The parts of chapter 2: its teacher, its generators, the targets, and each net."""

from __future__ import annotations

import os
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limbeck import losses
from limbeck.arrays import full_precision
from limbeck.errors import LimbeckError
from limbeck.inputs import Dataset, Noise
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.models.ensemble import Ensemble
from limbeck.models.mlp import MLP
from limbeck.models.nade import NADE
from limbeck.teachers.base import as_teacher
from limbeck.teachers.stored import Stored, precompute
from limbeck.training.distill import steps as steps_of
from reproduction import keeping
from reproduction.ahead import Ahead
from reproduction.chapter2 import LABELS, Cell, Settings
from reproduction.chapter2_measure import (
    Curve,
    against,
    examples,
    marks,
    mean_and_error,
    measured,
    shown,
)
from reproduction.data import Digits

__all__ = ["Parts", "by_columns"]

BATCH = 20

BLOCK = {"cuda": 20_000, "cpu": 500}
r"""NADE's samples drawn at a time."""

LOSSES: dict[str, Loss] = {"ce": losses.cross_entropy(), "dse": losses.derivative_error()}


def by_columns(shape: tuple[int, int]) -> Tensor:
    r"""The pixels' numbers, row by row, in the order of NADE: column by column.

    >>> by_columns((2, 3)).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    height, width = shape
    return torch.arange(height * width).reshape(height, width).T.flatten()


class Parts:
    r"""What the cells of a run share, made when it is first needed and kept in the out folder.

    Arguments:
        digits: Images and labels.
        out: Where nets are kept.
        settings: What is run.
        place: Where to run.
        progress: Whether to show bars.
    """

    def __init__(
        self, digits: Digits, out: Path, settings: Settings, place: torch.device, progress: bool
    ) -> None:
        self.out, self.settings, self.place = out, settings, place
        self.x, self.y = digits.train.to(place), digits.labels.to(place)
        self.test, self.test_y = digits.test.to(place), digits.test_labels.to(place)
        self.shape, self.classes = digits.shape, int(digits.labels.max()) + 1
        self.rows = {"all": len(self.x), "tenth": max(1, len(self.x) // 10)}
        self.options: dict[str, Any] = {"preset": "thesis", "device": place, "progress": progress}
        self._stored: dict[tuple[str, bool], Stored] = {}
        self._nades: dict[tuple[str, int], tuple[NADE, float]] = {}

    def one(self, cell: Cell, seed: int) -> dict[str, Any]:
        r"""Train the net of a cell, and measure it against the direct net of the same seed."""
        sizes = (self.x.shape[1], *self.settings.hidden, self.classes)
        generator = torch.Generator().manual_seed(seed)
        net = MLP(*sizes, generator=generator, init=self.settings.init)
        entry = {"cell": cell.name, "seed": seed} | self._train(net, cell, seed)
        keeping.write(self._file(cell, seed), net, self._made(cell, seed))
        own = examples(net, self.test, self.test_y)
        entry |= measured(own)
        if cell.generator != "labels":
            direct = LABELS[cell.share]
            file, made = self._file(direct, seed), self._made(direct, seed)
            other = examples(keeping.read(file, self.place, made)[0], self.test, self.test_y)
            entry["difference"] = against(own, other)
        return entry

    def _train(self, net: MLP, cell: Cell, seed: int) -> dict[str, Any]:
        total, size = self._steps(self._passes(cell), cell.share), self._size(cell.share)
        looks = marks(total) if seed == self.settings.seeds[0] else []
        curve = Curve(self.test, self.test_y, looks, size)
        began, run = time.perf_counter(), None
        for step in steps_of(
            self._teacher_of(cell), net, self._inputs(cell, seed), self._loss(cell), steps=total,
            every=total, batch_size=size, seed=seed, **self.options,
        ):  # fmt: skip
            run = step.run
            curve.record(step.number, net)
        if run is None:
            raise LimbeckError(f"{cell.name}, seed {seed}: the first step had no finite loss")
        return {
            "steps": run.done,
            "seconds": round(time.perf_counter() - began, 2),
            "engine": run.engine.name,
            **({"failure": str(run.failure)} if run.failure else {}),
            **({"curve": curve.to_dict()} if looks else {}),
        }

    def _loss(self, cell: Cell) -> Loss:
        return losses.label_cross_entropy() if cell.generator == "labels" else LOSSES[cell.loss]

    def _inputs(self, cell: Cell, seed: int) -> Inputs:
        rows = self.rows[cell.share]
        if cell.generator == "noise":
            return Noise(self.x.shape[1])
        if cell.generator == "nade":
            nade = self.nade(cell.share, seed)[0]
            return Ahead(nade.sample_probabilities, BLOCK.get(self.place.type, BLOCK["cpu"]))
        return Dataset(self.x[:rows], self.y[:rows] if cell.generator == "labels" else None)

    def _teacher_of(self, cell: Cell) -> Any:
        r"""The teacher; what it says of MNIST's images is looked up, if that can be kept."""
        if cell.generator == "labels":
            return None
        wants = cell.loss == "dse"
        numbers = self.rows[cell.share] * self.classes * (1 + self.x.shape[1] * wants)
        if cell.generator != "mnist" or not fits(3 * 4 * numbers, self.place):
            return self.teacher[0]
        for key in ((cell.share, wants), ("all", wants), ("all", True)):
            if key in self._stored:  # the tenth is the first rows of all
                return self._stored[key]
        x = self.x[: self.rows[cell.share]]
        with full_precision():
            found = precompute(as_teacher(self.teacher[0]), x, [LOSSES[cell.loss]])
        self._stored[cell.share, wants] = found
        return found

    @cached_property
    def teacher(self) -> tuple[Ensemble, float]:
        r"""The ensemble, and the seconds that its training took."""
        ask = self.settings
        sizes = (self.x.shape[1], *ask.teacher_hidden, self.classes)
        made = {
            "members": ask.members, "sizes": list(sizes), "seed": ask.teacher_seed,
            "images": len(self.x), "steps": self._steps(ask.teacher_passes, "all"),
            "init": ask.init,
        }  # fmt: skip

        def make() -> tuple[Ensemble, float]:
            began = time.perf_counter()
            ensemble = Ensemble.train_bootstrap(
                sizes, self.x, self.y, ask.members, steps=made["steps"], seed=ask.teacher_seed,
                init=ask.init, **self.options,
            )  # fmt: skip
            return ensemble, round(time.perf_counter() - began, 1)

        return keeping.kept_or_made(self.out / "teacher.safetensors", self.place, made, make)

    def nade(self, share: str, seed: int) -> tuple[NADE, float]:
        r"""The NADE of some images, rounded to bits, and the seconds that its training took."""
        images, hidden = self.x[: self.rows[share]], self.settings.nade_hidden
        total = self._steps(self.settings.nade_passes, share)
        made = {"images": len(images), "hidden": hidden, "steps": total, "seed": seed}

        def make() -> tuple[NADE, float]:
            generator = torch.Generator().manual_seed(seed)
            nade = NADE(images.shape[1], hidden, by_columns(self.shape), generator=generator)
            size = self._size(share)
            fitted = nade.fit(images.round(), total, batch_size=size, seed=seed, **self.options)
            return nade, round(fitted.seconds, 1)

        if (share, seed) not in self._nades:
            file = self.out / "nades" / f"{share}-{seed}.safetensors"
            self._nades[share, seed] = keeping.kept_or_made(file, self.place, made, make)
        return self._nades[share, seed]

    def is_kept(self, cell: Cell, seed: int) -> bool:
        r"""Whether what others need of a net is there: the direct ones are compared with."""
        return cell.generator != "labels" or self._file(cell, seed).exists()

    def described(self, found: dict[str, Any]) -> dict[str, Any]:
        r"""Teacher and NADEs as results hold them, beside those that the results have."""
        teachers = {each["digest"]: each for each in found["teachers"]}
        if "teacher" in self.__dict__:
            teachers |= {self._about_teacher["digest"]: self._about_teacher}
        nades = {each["name"]: each for each in found["nades"]}
        samples = dict(found["samples"])
        for (share, seed), (nade, seconds) in self._nades.items():
            name = f"{share}-{seed}"
            if name not in nades:
                with torch.no_grad(), full_precision():
                    parts = self.test.round().split(1000)
                    log_p = torch.cat([nade.log_prob(part).double() for part in parts])
                nades[name] = {"name": name, "seconds": seconds, "test": mean_and_error(log_p)}
            if share not in samples:
                samples[share] = shown(nade)
        return {
            "shape": list(self.shape),
            "teachers": [teachers[key] for key in sorted(teachers)],
            "nades": [nades[key] for key in sorted(nades)],
            "samples": samples,
        }

    @cached_property
    def _about_teacher(self) -> dict[str, Any]:
        teacher, seconds = self.teacher
        figures = measured(examples(teacher, self.test, self.test_y))
        return {"digest": keeping.digest(teacher), "seconds": seconds} | figures

    def _passes(self, cell: Cell) -> int:
        ask = self.settings
        return ask.teacher_passes if cell.generator == "labels" else ask.passes

    def _size(self, share: str) -> int:
        return min(BATCH, self.rows[share])

    def _steps(self, passes: int, share: str) -> int:
        r"""Steps that make so many passes over the images, or as many samples."""
        return max(
            1, round(self.settings.steps_factor * passes * self.rows[share] / self._size(share))
        )

    def _file(self, cell: Cell, seed: int) -> Path:
        return self.out / "nets" / f"{cell.name}-{seed}.safetensors"

    def _made(self, cell: Cell, seed: int) -> dict[str, Any]:
        total = self._steps(self._passes(cell), cell.share)
        return {"cell": cell.name, "seed": seed, "steps": total, "init": self.settings.init}


def fits(size: int, place: torch.device) -> bool:
    r"""Whether so many bytes are free on a device."""
    if place.type == "cuda":
        return size < torch.cuda.mem_get_info(place)[0]
    try:
        return size < os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return True
