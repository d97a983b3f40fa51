r"""A torch teacher as the loop sees it: labels as probabilities, values in units of their own."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Asked", "divisor"]


class Asked(nn.Module):
    r"""A torch teacher's answers as losses take them, with derivatives, in the inputs' precision.

    Arguments:
        predictor: The teacher.
        shift: What is taken from values, (K,).
        scale: What they are divided by; 0 stands for a constant, and divides nothing.
    """

    def __init__(self, predictor: Any, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.module, self.task, self.form = predictor.module, predictor.task, predictor.module_form
        held = chain(self.module.parameters(), self.module.buffers())
        self.dtype = next((t.dtype for t in held if t.is_floating_point()), None)
        self.output_form = self.form if self.task == "classification" else "values"
        self.register_buffer("shift", shift)
        self.register_buffer("scale", divisor(scale))

    def forward(self, x: Tensor) -> Tensor:
        y = self.module(x.to(self.dtype or x.dtype)).to(x.dtype)
        if self.task == "classification":
            return y
        if self.task == "multilabel" and self.form != "probabilities":
            return y.sigmoid() if self.form == "logits" else y.exp()
        return (y.reshape(len(y), -1) - self.shift) / self.scale


def divisor(scale: Tensor) -> Tensor:
    r"""What targets are divided by: the scale, or 1 where they are constant."""
    return torch.where(scale > 0, scale, 1.0)
