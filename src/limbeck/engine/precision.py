r"""How float32 matrix products are rounded on a GPU: in training, and in estimates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

__all__ = ["full_precision", "tensor_float"]


def tensor_float() -> AbstractContextManager[None]:
    r"""Tensor cores (TF32) for float32 matrix products, for as long as it lasts."""
    return _rounded(True)


def full_precision() -> AbstractContextManager[None]:
    r"""Matrix products of float32 without TF32, for as long as it lasts."""
    return _rounded(False)


@contextmanager
def _rounded(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
