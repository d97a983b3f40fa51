r"""The forms that predictions come in, and how one becomes another without losing digits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from limbeck.errors import ArgumentError

__all__ = ["FORMS", "check_probabilities", "log_probabilities", "probabilities", "recognise", "values"]

FORMS = ("logits", "probabilities", "log_probabilities", "values", "log_density")
r"""What a model may give: class scores in one of three forms, plain values, or log densities."""

TOLERANCE = 1e-3
r"""How far probabilities may be from summing to one: half precision and rounded exports pass."""


def values(raw: Tensor) -> Tensor:
    r"""Outputs as a matrix: (n,) becomes (n, 1), trailing dimensions become one."""
    return raw.reshape(raw.shape[0], -1)


def log_probabilities(raw: Tensor, form: str, temperature: float = 1.0) -> Tensor:
    r"""Log probabilities (n, I), softened by the temperature.

    One output is the probability (or logit) of class 1 and becomes two columns.

    >>> log_probabilities(torch.tensor([[200.0]]), "logits")
    tensor([[-200.,    0.]])
    """
    raw = values(raw)
    if form not in FORMS[:3]:
        raise ArgumentError(
            "output", repr(form), "a model of class probabilities, logits or log probabilities here"
        )
    if raw.shape[1] == 1:
        logit = _logit(raw, form)
        raw = torch.cat([F.logsigmoid(-logit / temperature), F.logsigmoid(logit / temperature)], 1)
        return raw
    if form == "probabilities":
        raw = raw.clamp_min(torch.finfo(raw.dtype).tiny).log()
        form = "log_probabilities"
    if form == "log_probabilities" and temperature == 1.0:
        return raw
    return F.log_softmax(raw / temperature, dim=1)


def probabilities(raw: Tensor, form: str, temperature: float = 1.0) -> Tensor:
    r"""Probabilities (n, I), softened by the temperature."""
    if form == "probabilities" and temperature == 1.0:
        raw = values(raw)
        return raw if raw.shape[1] > 1 else torch.cat([1 - raw, raw], 1)
    return log_probabilities(raw, form, temperature).exp()


def _logit(raw: Tensor, form: str) -> Tensor:
    if form == "logits":
        return raw
    tiny = torch.finfo(raw.dtype).tiny
    if form == "probabilities":
        return raw.clamp_min(tiny).log() - torch.log1p(-raw).clamp_min(-1 / torch.finfo(raw.dtype).eps)
    return raw - torch.log(-torch.expm1(raw)).clamp_min(-1 / torch.finfo(raw.dtype).eps)


def check_probabilities(raw: Tensor, argument: str) -> None:
    r"""Refuse outputs that are said to be probabilities and are not, within tolerance."""
    raw = values(raw)
    low, high = raw.min().item(), raw.max().item()
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        raise ArgumentError(
            argument, f"outputs between {low:.4g} and {high:.4g}", "probabilities, between 0 and 1"
        )
    if raw.shape[1] > 1:
        sums = raw.sum(1)
        worst = sums[(sums - 1).abs().argmax()].item()
        if abs(worst - 1) > TOLERANCE:
            raise ArgumentError(
                argument, f"a row of outputs that sums to {worst:.4g}", "probabilities that sum to 1"
            )


def recognise(raw: Tensor) -> str | None:
    r"""The form that outputs must have, or None where they could be logits or plain values."""
    raw = values(raw).detach()
    if raw.shape[1] < 2 or not raw.is_floating_point():
        return None
    if ((raw >= 0).all() and ((raw.sum(1) - 1).abs() < TOLERANCE).all()).item():
        return "probabilities"
    if ((raw <= 0).all() and (raw.logsumexp(1).abs() < TOLERANCE).all()).item():
        return "log_probabilities"
    return None
