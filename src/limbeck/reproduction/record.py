r"""What a result was made with: hardware, versions, the moment."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

import limbeck

__all__ = ["Asked", "circumstances", "write"]


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


def circumstances(device: torch.device | str) -> dict[str, Any]:
    r"""Hardware, versions and date of a run on a device."""
    place = torch.device(device)
    gpu = torch.cuda.get_device_name(place) if place.type == "cuda" else None
    return {
        "hardware": gpu or f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "limbeck": limbeck.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    r"""JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
