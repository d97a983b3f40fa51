r"""Kernels: the inner loops of models, in plain torch, in C++ and for GPUs."""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

__all__ = ["define_operator", "triton_kernels"]

LIBRARY = torch.library.Library("limbeck", "FRAGMENT")


def define_operator(
    name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> None:
    r"""Make `torch.ops.limbeck.<name>` of a function; `fake` gives empty tensors to tracers."""
    LIBRARY.define(name + schema)
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"limbeck::{name}", fake)


@functools.cache
def triton_kernels() -> ModuleType | None:
    r"""The kernels for a GPU; None on platforms without Triton."""
    try:
        return importlib.import_module("limbeck.models.kernels.nade_triton")
    except ImportError:
        return None
