r"""The demo: what limbeck does, on data that come with scikit-learn, in two or three minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from limbeck.errors import ArgumentError

__all__ = ["PARTS", "run"]

PARTS = ("compress", "condense", "normalize")


def run(
    part: str,
    members: int,
    steps: int,
    seed: int,
    as_json: bool,
    progress: bool,
    folder: Path = Path("limbeck-demo"),
) -> None:
    r"""Run one part of the demo, or all of them, and print the results.

    Arguments:
        part: "compress", "condense", "normalize", or "all".
        members: Nets in the teacher ensemble of "compress".
        steps: Steps of each distillation.
        seed: Seeds everything.
        as_json: Whether to print JSON instead of tables.
        progress: Whether to show bars.
        folder: For result folders, pictures and the page. Default: "limbeck-demo".
    """
    from limbeck.demo import compression, condensation, normalization
    from limbeck.demo.tour import Tour

    if part != "all" and part not in PARTS:
        raise ArgumentError.unknown("part", part, ("all", *PARTS))
    console = Console(stderr=as_json)
    tour = Tour(Path(folder), steps, seed, console, progress, not as_json)
    results: dict[str, Any] = {}
    if part in ("all", "compress"):
        results["compress"] = compression.run(tour, members)
    if part in ("all", "condense"):
        results["condense"] = condensation.run(tour)
    if part in ("all", "normalize"):
        results["normalize"] = normalization.run(tour)
    console.print(f"\n{tour.write()}", soft_wrap=True)
    if as_json:
        print(json.dumps(results, indent=1))
