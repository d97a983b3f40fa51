r"""Which inputs to ask about: found before the training, which can then be gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["best"]

FILE = "inputs.json"


def best(
    compress: Callable[..., Any], steps: int | None, folder: Path
) -> tuple[str, list[dict[str, Any]]]:
    r"""The inputs that did best in short runs, and what each reached; kept for the next sitting.

    Arguments:
        compress: The verb, with all but inputs and steps.
        steps: Steps of the training.
        folder: Where to keep what was found.
    """
    from limbeck.compression.search import PILOT
    from limbeck.core.checkpoint import write_text

    path = folder / FILE
    if not path.exists():
        pilot = compress(inputs="auto", steps=min(steps or PILOT, PILOT))
        found = {"inputs": pilot.inputs, "tried": pilot.tried}
        write_text(path, json.dumps(found) + "\n")
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["inputs"], found["tried"]
