r"""The output forms of models, and conversions between them without loss of precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.errors import ArgumentError, shown

# outputs of a model: class scores in one of three forms, plain values, or log densities
FORMS = ("logits", "probabilities", "log_probabilities", "values", "log_density")

TOLERANCE = 1e-3  # of sums of probabilities: half precision and rounded exports pass


def values(y: Tensor) -> Tensor:
    r"""Outputs as a matrix: (n,) becomes (n, 1), trailing dimensions become one."""
    return y.reshape(y.shape[0], -1)


def check_class_axis(y: Tensor, argument: str) -> Tensor:
    r"""Class outputs as they are, unless they have more axes than examples and classes."""
    if y.ndim > 2:
        expected = (
            "(n,) or (n, classes): a softmax over several axes would mix positions with classes. "
            "If all axes but one have size 1, end the model in nn.Flatten(). Numbers of any shape "
            "are compared by square_error, with teacher_output='values', student_output='values'"
        )
        raise ArgumentError(argument, f"class outputs of shape {tuple(y.shape)}", expected)
    return y


def same_layout(one: torch.Size, other: torch.Size) -> bool:
    r"""Whether outputs of two shapes, but for axes of size 1, can be compared number by number."""
    a, b = ([size for size in shape[1:] if size != 1] for shape in (one, other))
    return a == b or len(a) < 2 or len(b) < 2


def probabilities(y: Tensor, form: str) -> Tensor:
    r"""Probabilities of class outputs (n,), (n, 1) or (..., classes), in the same shape."""
    if form == "logits":
        return torch.sigmoid(y) if y.ndim == 1 or y.shape[-1] == 1 else F.softmax(y, dim=-1)
    return y.exp() if form == "log_probabilities" else y


def log_probabilities(y: Tensor, form: str) -> Tensor:
    r"""Log probabilities (..., classes) of outputs; one output becomes [log(1 − p), log p].

    So that logs and their derivatives are finite, a probability of 0 is taken as the smallest
    normal number, a log probability of −∞ as the most negative one.

    >>> log_probabilities(torch.tensor([[1e4]]), "logits")
    tensor([[-10000.,      0.]])
    """
    if form not in FORMS[:3]:
        expected = "a model of logits, probabilities or log probabilities"
        raise ArgumentError("output", shown(form), expected)
    y = y.unsqueeze(1) if y.ndim == 1 else y
    one = y.shape[-1] == 1
    if form == "logits":
        return columns(F.logsigmoid(-y), F.logsigmoid(y)) if one else F.log_softmax(y, dim=-1)
    limits = torch.finfo(y.dtype)
    if form == "probabilities":
        return (columns(1 - y, y) if one else y).clamp_min(limits.tiny).log()
    y = y.clamp_min(limits.min)
    if not one:
        return y
    # log(1 − exp(y)) for y ≤ 0; each branch is kept finite where the other one is taken
    near = (-torch.expm1(y)).clamp_min(limits.tiny).log()
    far = torch.log1p(-y.clamp_max(-math.log(2)).exp())
    return columns(torch.where(y > -math.log(2), near, far), y)


def columns(of_0: Tensor, of_1: Tensor) -> Tensor:
    r"""The two classes of a one-output model side by side."""
    return torch.cat([of_0, of_1], dim=-1)


def check_probabilities(y: Tensor, argument: str) -> None:
    r"""Refuse outputs that are no probabilities, within tolerance."""
    y = values(y)
    low, high = y.min().item(), y.max().item()
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        received = f"outputs between {low:.4g} and {high:.4g}"
        raise ArgumentError(argument, received, "probabilities, between 0 and 1")
    if y.shape[1] > 1:
        sums = y.sum(1)
        worst = sums[(sums - 1).abs().argmax()].item()
        if abs(worst - 1) > TOLERANCE:
            received = f"a row of outputs that sums to {worst:.4g}"
            raise ArgumentError(argument, received, "probabilities that sum to 1")


def recognise(y: Tensor) -> str | None:
    r"""The form that outputs must have, or None where they could be logits or plain values."""
    if y.ndim != 2 or y.shape[1] < 2 or not y.is_floating_point():
        return None
    y = y.detach()
    if ((y >= 0).all() and ((y.sum(1) - 1).abs() < TOLERANCE).all()).item():
        return "probabilities"
    if ((y <= 0).all() and (y.logsumexp(1).abs() < TOLERANCE).all()).item():
        return "log_probabilities"
    return None
