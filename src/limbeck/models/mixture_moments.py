r"""A mixture's moments, and the unconstrained parameters that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from limbeck.errors import ArgumentError
from limbeck.models.gaussians import TINY, Moments, factor, has_matrices

__all__ = ["checked_moments", "numbers", "parameters_of", "scale_of"]

ROUNDING = 1e-3
r"""How far weights may be from summing to one, and matrices from being what they should be."""


def scale_of(log_scale: Tensor, below: Tensor | None, dim: int) -> Tensor:
    r"""Deviations (K, D), or triangular factors (K, D, D) if something is below the diagonal.

    Arguments:
        log_scale: Logarithms of the diagonal, (K, D), or (K, 1) for all variables.
        below: What is below it, row by row, (K, D(D − 1)/2).
        dim: The number of variables D.
    """
    deviations = log_scale.exp().expand(-1, dim)
    if below is None:
        return deviations
    flat = below.new_zeros(len(below), dim * dim).index_copy(1, _places(dim, below.device), below)
    return flat.unflatten(1, (dim, dim)) + torch.diag_embed(deviations)


def parameters_of(moments: Moments, kind: str) -> dict[str, Tensor]:
    r"""The parameters of a mixture by name: the inverse of `scale_of`, and of a softmax."""
    dim = moments.means.shape[-1]
    matrices = has_matrices(kind, dim)
    scale = factor(moments.covariances, matrices)
    deviations = scale.diagonal(dim1=1, dim2=2) if matrices else scale
    found = {
        "logits": moments.weights.clamp_min(TINY).log(),
        "means": moments.means,
        "log_scale": (deviations[:, :1] if kind == "spherical" else deviations).log(),
    }
    if matrices:
        found["below"] = scale.flatten(1).index_select(1, _places(dim, scale.device))
    return found


def _places(dim: int, device: torch.device) -> Tensor:
    rows, columns = torch.tril_indices(dim, dim, -1, device=device)
    return rows * dim + columns


def checked_moments(kind: str, like: Tensor, weights: Any, means: Any, covariances: Any) -> Moments:
    r"""Moments of the user's, in float64, or an error that says what is wrong with them.

    Arguments:
        kind: The kind of covariances.
        like: The means that are there, (K, D), for shape and device.
        weights: (K,).
        means: (K, D), or (K,) of one variable.
        covariances: (K, D, D), (K, D) or (K,).
    """
    count, dim = like.shape
    pi = numbers("weights", weights, like.device)
    m = numbers("means", means, like.device)
    s = numbers("covariances", covariances, like.device)
    m = m.unsqueeze(1) if dim == 1 and m.ndim == 1 else m
    for name, found, shape in (("weights", pi, (count,)), ("means", m, (count, dim))):
        if found.shape != shape:
            raise ArgumentError(name, f"shape {tuple(found.shape)}", f"shape {shape}")
    if bool((pi < 0).any()) or abs(pi.sum().item() - 1) > ROUNDING:
        accepted = "nonnegative numbers with the sum 1"
        raise ArgumentError("weights", f"{pi.tolist()} with the sum {pi.sum():g}", accepted)
    return Moments(pi / pi.sum(), m, _covariances(s, kind, count, dim))


def numbers(argument: str, value: Any, device: torch.device) -> Tensor:
    r"""Finite float64 numbers of a tensor, an array or a list."""
    accepted = "a tensor or an array of finite numbers"
    try:
        given = value.detach() if isinstance(value, Tensor) else np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ArgumentError(argument, f"a {type(value).__name__}", accepted) from None
    found = torch.as_tensor(given).to(device, torch.float64)
    if not bool(found.isfinite().all()):
        raise ArgumentError(argument, "NaN or infinity", accepted)
    return found


def _covariances(s: Tensor, kind: str, count: int, dim: int) -> Tensor:
    r"""In the form that the kind wants: matrices (K, D, D) or variances (K, D)."""
    if s.shape == (count,):
        s = s.unsqueeze(1).expand(count, dim)
    if s.shape == (count, dim):
        s = torch.diag_embed(s)
    if s.shape != (count, dim, dim):
        accepted = f"shape {(count, dim, dim)}, {(count, dim)} or {(count,)}"
        raise ArgumentError("covariances", f"shape {tuple(s.shape)}", accepted)
    broken = torch.linalg.cholesky_ex(s)[1] != 0
    size = s.diagonal(dim1=1, dim2=2).amax(1)
    broken |= (s - s.mT).abs().amax((1, 2)) > ROUNDING * size
    if bool(broken.any()):
        which = int(broken.nonzero()[0])
        received = f"no symmetric positive definite matrix for component {which}"
        raise ArgumentError("covariances", received, "variances above zero, or such matrices")
    if has_matrices(kind, dim):
        return (s + s.mT) / 2
    variances = s.diagonal(dim1=1, dim2=2)
    simple = torch.diag_embed(variances.mean(1, keepdim=True).expand(-1, dim))
    simple = torch.diag_embed(variances) if kind != "spherical" else simple
    if bool(((s - simple).abs().amax((1, 2)) > ROUNDING * size).any()):
        accepted = f"{kind} ones, or a mixture of another kind"
        raise ArgumentError("covariances", f"matrices that are not {kind}", accepted)
    return simple.diagonal(dim1=1, dim2=2)
