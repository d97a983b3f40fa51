r"""The demo: what limbeck does, on data that come with scikit-learn, in two or three minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from limbeck.errors import ArgumentError

__all__ = ["PARTS", "run"]

PARTS = ("compress", "condense", "normalize")

FOLDER = Path("limbeck-demo")
r"""Where results, pictures and the page go, below the current folder."""


def run(
    part: str,
    members: int,
    steps: int,
    seed: int,
    as_json: bool,
    progress: bool,
    folder: Path = FOLDER,
) -> None:
    r"""Run one part of the demo, or all of them, and print what came out.

    Arguments:
        part: "compress", "condense", "normalize", or "all".
        members: Nets in the teacher ensemble of "compress".
        steps: Steps of each distillation.
        seed: Seeds everything.
        as_json: Whether to print JSON instead of tables.
        progress: Whether to show bars.
        folder: Where result folders, pictures and the page go.
    """
    from limbeck.demo import compression, condensation, normalization
    from limbeck.demo.tour import Tour

    if part != "all" and part not in PARTS:
        raise ArgumentError.unknown("part", part, ("all", *PARTS))
    console, tour = Console(stderr=as_json), Tour(Path(folder))
    found: dict[str, Any] = {}
    common = (seed, console, progress, not as_json, tour)
    if part in ("all", "compress"):
        found["compress"] = compression.run(members, steps, *common)
    if part in ("all", "condense"):
        found["condense"] = condensation.run(steps, *common)
    if part in ("all", "normalize"):
        found["normalize"] = normalization.run(steps, *common)
    console.print(f"\n{tour.write()}", soft_wrap=True)
    if as_json:
        print(json.dumps(found, indent=1))
