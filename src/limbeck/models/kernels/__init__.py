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
) -> Callable[..., Any]:
    r"""An operator of torch that calls a function; `fake` gives empty tensors to tracers."""
    LIBRARY.define(name + schema)
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"limbeck::{name}", fake)
    operator = getattr(torch.ops.limbeck, name).default
    return lambda *inputs: operator(*inputs)  # its signature is read faster than an operator's


@functools.cache
def triton_kernels() -> ModuleType | None:
    r"""The kernels for a GPU; None on platforms without Triton."""
    try:
        return importlib.import_module("limbeck.models.kernels.nade_triton")
    except ImportError:
        return None
