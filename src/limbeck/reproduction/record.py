r"""What a result was made with: hardware, versions, the moment."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import limbeck

__all__ = ["circumstances", "write"]


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
