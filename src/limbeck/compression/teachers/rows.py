r"""Rows of whatever the user has, as teachers eat them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.compression.asking.keys import as_rows
from limbeck.errors import ArgumentError

__all__ = ["as_given", "dense"]


def as_given(X: Any) -> Any:
    r"""Tensors and lists as arrays; frames, sparse matrices and arrays as they came."""
    if isinstance(X, dict):
        return {name: as_given(part) for name, part in X.items()}
    if not isinstance(X, Tensor):
        return as_rows(X)
    X = X.detach().cpu()
    return (X.float() if X.dtype == torch.bfloat16 else X).numpy()  # which NumPy does not have


def dense(X: Any) -> np.ndarray:
    r"""One array: a frame's columns side by side, a sparse matrix with its zeros."""
    if isinstance(X, dict):
        raise ArgumentError("X", f"a dict of {', '.join(map(repr, X))}", "one array")
    X = as_given(X)
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X)
