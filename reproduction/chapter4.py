r"""Chapter 4: an RBM into NADEs, how close they come, and its log Z from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limbeck.environment import environment
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import log_partition
from limbeck.normalization.normalize import normalize
from limbeck.training.config import choose_device
from reproduction import data
from reproduction.record import write
from reproduction.thesis import LOG_Z

__all__ = ["LOSSES", "Settings", "run"]

LOSSES = {"kl": "kl", "se": "square_error"}

FIRST = 500
r"""Test images that the text's figures show."""


@dataclass(frozen=True)
class Settings:
    r"""What is run; the defaults are the text's.

    Attributes:
        hidden: Hidden units of the NADEs.
        losses: "kl", "se" or both.
        seeds: One distillation of each NADE for each.
        steps: Steps of each distillation.
        samples: Samples of each kind for bounds and estimates.
        burn_in: Sweeps of the chains before they are used.
        preset: "thesis", or "auto" for limbeck's own settings with a warm start.
    """

    hidden: tuple[int, ...] = (250, 500, 750, 1000)
    losses: tuple[str, ...] = ("kl", "se")
    seeds: tuple[int, ...] = (0,)
    steps: int = 30_000
    samples: int = 10_000
    burn_in: int = 2000
    preset: str = "thesis"


def run(
    folder: Path | None,
    out: Path,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    *,
    device: str = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    r"""Run all that the settings name; writes out/chapter-4.json after each NADE.

    Arguments:
        folder: Where the data are: `rbm_cd25_500.npz` and `mnist_binarized.npz`.
        out: Where results go; a student's weights go to out/students.
        settings: What is run.
        device: Where to run.
        progress: Whether to show bars.
    """
    began, place = time.perf_counter(), choose_device(device)
    rbm = data.rbm(folder).to(place)
    test = data.binarized(folder).test.to(place)
    found: dict[str, Any] = environment(place) | {
        "settings": vars(settings) | {"device": place.type},
        "rbm": {"sorted": _rounded(rbm_log_probability(rbm, test[:FIRST]))},
        "runs": [],
    }
    for hidden, loss, seed in _cases(settings):
        entry, student = one(rbm, test, hidden, loss, seed, settings, place, progress)
        found["runs"].append(entry)
        found["seconds"] = time.perf_counter() - began
        write(out / "chapter-4.json", found)
        if seed == settings.seeds[0]:
            (out / "students").mkdir(exist_ok=True)
            student.save(out / "students" / f"nade-{hidden}-{loss}.safetensors")
    return found


def one(
    rbm: RBM,
    test: Tensor,
    hidden: int,
    loss: str,
    seed: int,
    settings: Settings,
    place: torch.device,
    progress: bool,
) -> tuple[dict[str, Any], NADE]:
    r"""One NADE: its distillation, its test log probability, bounds and estimates of log Z."""
    nade = NADE(rbm.visible, hidden, generator=torch.Generator().manual_seed(seed))
    first = test[:FIRST]
    result = normalize(
        rbm, nade, LOSSES[loss], steps=settings.steps, preset=settings.preset,
        burn_in=settings.burn_in, init="none" if settings.preset == "thesis" else "teacher",
        seed=seed, device=place, every=min(200, settings.steps), progress=progress,
        metrics={"test": lambda student: student.log_prob(first).double().mean().item()},
    )  # fmt: skip
    common: dict[str, Any] = {
        "samples": settings.samples,
        "seed": 1000 + seed,
        "progress": progress,
    }
    bridge = log_partition(rbm, nade, method="bridge", burn_in=settings.burn_in, **common)
    importance = log_partition(rbm, nade, method="importance", **common)
    with torch.no_grad():
        log_p = torch.cat([nade.log_prob(part).double() for part in test.split(1000)])
    history = result.history
    entry = {
        "hidden": hidden,
        "loss": loss,
        "seed": seed,
        "steps": result.steps,
        "seconds": round(result.seconds, 2),
        "engine": result.engine,
        "test": [log_p.mean().item(), (log_p.std() / len(log_p) ** 0.5).item()],
        "bridge": bridge.to_dict(),
        "importance": importance.to_dict(),
        "progress": {"step": history["step"], "test": _rounded(history["test"])},
    }
    if seed == settings.seeds[0]:
        entry["sorted"] = _rounded(log_p[:FIRST])
    return entry, nade


def rbm_log_probability(rbm: RBM, x: Tensor) -> Tensor:
    r"""log p of the RBM, normalised as in the text."""
    with torch.no_grad():
        return rbm.log_unnormalized(x).double() - LOG_Z


def _cases(settings: Settings) -> Iterator[tuple[int, str, int]]:
    for seed in settings.seeds:
        for loss in settings.losses:
            for hidden in settings.hidden:
                yield hidden, loss, seed


def _rounded(values: Iterable[Any]) -> list[float]:
    return [round(float(value), 3) for value in values]
