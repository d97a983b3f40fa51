r"""The demo: what limbeck does, on data that come with scikit-learn, in two or three minutes."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    r"""Run one part of the demo, or all of them, and print tables or JSON."""
    from limbeck.demo import compression, condensation, normalization
    from limbeck.demo.tour import Tour

    if part != "all" and part not in PARTS:
        raise ArgumentError.unknown("part", part, ("all", *PARTS))
    console = Console(stderr=as_json)
    tour = Tour(Path(folder), steps, seed, console, progress, not as_json)
    parts: dict[str, Callable[[], Any]] = {
        "compress": lambda: compression.run(tour, members),
        "condense": lambda: condensation.run(tour),
        "normalize": lambda: normalization.run(tour),
    }
    results = {name: run_part() for name, run_part in parts.items() if part in ("all", name)}
    console.print(f"\n{tour.write()}", soft_wrap=True)
    if as_json:
        print(json.dumps(results, indent=1))
