r"""Hardware, versions and date of a result; and matplotlib, which may be missing."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import torch

import limbeck
from limbeck.errors import LimbeckError


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


def load_matplotlib() -> ModuleType:
    r"""Import matplotlib, or raise an error that says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise LimbeckError(
            "pictures need matplotlib, which is not installed: pip install 'limbeck[plots]'"
        ) from None
    return matplotlib
