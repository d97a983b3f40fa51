r"""Hardware, versions and date of a result; and libraries that may be missing."""

from __future__ import annotations

import importlib
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


def import_extra(module: str, extra: str, users: str) -> ModuleType:
    r"""Import a library that may be missing, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"pip install 'limbeck[{extra}]'"
        raise LimbeckError(f"{users} {module}, which is not installed: {install}") from error


def load_matplotlib() -> ModuleType:
    r"""Import matplotlib for pictures."""
    return import_extra("matplotlib", "plots", "pictures need")
