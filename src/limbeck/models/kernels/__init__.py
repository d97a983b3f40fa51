r"""Kernels: the inner loops of models, in plain torch, in C++ and for GPUs."""

import functools
import importlib
from types import ModuleType

__all__ = ["triton_kernels"]


@functools.cache
def triton_kernels() -> ModuleType | None:
    r"""The kernels for a GPU; None on platforms without Triton."""
    try:
        return importlib.import_module("limbeck.models.kernels.nade_triton")
    except ImportError:
        return None
