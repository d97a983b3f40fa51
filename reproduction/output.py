r"""Chapter 4 as people look at it: pictures, a page, and a table on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.training.config import choose_device
from reproduction import chapter4, data
from reproduction import chapter4_pictures as figures
from reproduction.page import page
from reproduction.record import Asked
from reproduction.thesis import AIS_2008, CHAPTER_4, LOG_Z

__all__ = ["draw", "report"]

SHOWN = 64
r"""Samples and features in a sheet."""


def report(asked: Asked, settings: chapter4.Settings, console: Console) -> dict[str, Any]:
    r"""Run chapter 4, then write chapter-4.json, pictures and page.md to a folder, and a table."""
    folder, out, device, progress = asked
    cases = len(settings.hidden) * len(settings.losses) * len(settings.seeds)
    console.print(f"Distilling {cases} NADEs of {settings.steps:,} steps each …")
    found = chapter4.run(folder, out, settings, device=device, progress=progress)
    pictures = draw(found, data.rbm(folder), folder, out, device)
    (out / "page.md").write_text(page(out / "chapter-4.json"), encoding="utf-8")
    console.print(table(found["runs"]))
    bridges = [run["bridge"] for run in found["runs"]]
    values = [bridge["value"] for bridge in bridges if bridge["trustworthy"]]
    said = f"No estimate with these {cases} NADEs can be relied on"
    if values:
        between = f"between {min(values):.2f} and {max(values):.2f}"
        said = (
            f"By bridge sampling with {cases} NADEs, log Z of CD25(500) lies {between}, going by "
            f"the {len(values)} estimates that are marked trustworthy"
        )
    console.print(
        f"{said}; annealed importance sampling gave {LOG_Z} in 2008. {len(pictures)} pictures, "
        f"page.md and chapter-4.json are in {out}."
    )
    return found


def draw(
    found: dict[str, Any], rbm: RBM, folder: Path | None, out: Path, device: str = "auto"
) -> dict[str, str]:
    r"""All pictures: what each shows, in words, by its file's name."""
    place = choose_device(device)
    said = figures.pictures(found, out, reference=("AIS, 2008", LOG_Z, *AIS_2008))
    generator = torch.Generator(place).manual_seed(0)
    rbm = rbm.to(place)
    samples = {
        "binarised MNIST": data.binarized(folder).test[:SHOWN],
        "RBM": rbm.advance(rbm.start(SHOWN, generator), 2000, generator).cpu(),
    }
    features = {"RBM": rbm.W.detach().T[:SHOWN].cpu()}
    for file in sorted((out / "students").glob("nade-*.safetensors")):
        nade = NADE.load(file).to(place)
        _, hidden, loss = file.stem.split("-")
        name = f"NADE {hidden}, {figures.NAMES[loss]}"
        samples[name] = nade.sample(SHOWN, generator).cpu()
        features[name] = nade.w.detach().T[:SHOWN].cpu()
    said["samples.png"] = figures.sheets(samples, out / "samples.png")
    said["features.png"] = figures.sheets(
        features, out / "features.png", signed=True, what="features"
    )
    return said


def table(runs: list[dict[str, Any]]) -> Table:
    r"""Each NADE's numbers, with the text's behind them."""
    shown = Table(title="Chapter 4: ours (the text's)", title_justify="left")
    for column in ("hidden", "loss", "seed", "test log p", "lower", "upper", "bridge ± 3 s.e."):
        shown.add_column(column, justify="left" if column == "loss" else "right")
    for run in runs:
        text = CHAPTER_4.get((run["hidden"], run["loss"]))
        bridge = run["bridge"]
        ours = (run["test"][0], bridge["bounds"]["lower"][0], bridge["bounds"]["upper"][0])
        theirs = ("", "", "", "")
        if text is not None:
            numbers = (text.test, text.lower, text.upper, text.bridge[0])
            theirs = tuple(f" ({number:.2f})" for number in numbers)  # type: ignore[assignment]
        shown.add_row(
            str(run["hidden"]), figures.NAMES[run["loss"]], str(run["seed"]),
            *(f"{value:.2f}{printed}" for value, printed in zip(ours, theirs, strict=False)),
            f"{bridge['value']:.2f} ± {3 * bridge['std_error']:.2f}{theirs[3]}",
        )  # fmt: skip
    return shown
