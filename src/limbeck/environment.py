r"""Hardware, versions and date of a result."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

import torch

import limbeck


def environment(device: torch.device | str) -> dict[str, Any]:
    r"""Hardware, versions and date of a run on a device."""
    device = torch.device(device)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "hardware": gpu or f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "limbeck": limbeck.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
