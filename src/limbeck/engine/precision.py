r"""How float32 matrix products are rounded while training on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["tensor_float"]


@contextmanager
def tensor_float() -> Iterator[None]:
    r"""Tensor cores (TF32) for float32 matrix products, for as long as it lasts."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
