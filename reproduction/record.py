r"""What every chapter is given, and how its results are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Asked", "write"]


class Asked(NamedTuple):
    r"""What every chapter is asked for.

    Attributes:
        folder: Where the data are; None takes the folder that the environment names.
        out: Where results go.
        device: Where to run.
        progress: Whether to show bars.
    """

    folder: Path | None
    out: Path
    device: str = "auto"
    progress: bool = True


def write(path: Path, content: dict[str, Any]) -> None:
    r"""JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
