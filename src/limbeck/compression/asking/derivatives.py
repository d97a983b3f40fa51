r"""A torch teacher's derivatives with respect to inputs, asked for and kept like its answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from limbeck.compression.asked import Asked
from limbeck.compression.asking.keys import Array, count
from limbeck.core.evaluation import evaluate
from limbeck.errors import ArgumentError

__all__ = ["Derivatives"]

MOST = 2**31
r"""Bytes that all derivatives may take in memory."""

BLOCK = 256
r"""Rows that are differentiated together."""


class Derivatives:
    r"""The derivatives of every output with respect to every number of a row, as `label` asks them.

    Calls give (n, K · D). A cache keeps them beside the answers, under the same teacher, by domain.

    Arguments:
        predictor: The teacher, a torch module.
        domain: "log", of log probabilities, or "plain".
        inputs: Numbers in a row D.
    """

    def __init__(self, predictor: Any, domain: str, inputs: int) -> None:
        self.predictor, self.domain, self.inputs = predictor, domain, inputs
        self.classes, self.outputs = predictor.classes, predictor.outputs * inputs
        self.kept_as = f"derivatives, {domain}"

    def fingerprint(self) -> str | None:
        r"""The teacher's own."""
        found: str | None = self.predictor.fingerprint()
        return found

    def check_size(self, n: int) -> None:
        r"""Refuse numbers of rows whose derivatives would not fit into memory."""
        total = 8 * n * self.outputs
        if total > MOST:
            received = f"{n:,} inputs, whose derivatives take {total / 2**30:.0f} GiB"
            accepted = f"at most {MOST // (8 * self.outputs):,}; without a cache, any number"
            raise ArgumentError("size", received, accepted)

    def __call__(self, X: Any) -> Array:
        n, outputs = count(X), self.predictor.outputs
        x = self.predictor.tensors(X)
        one = torch.ones(outputs, device=x.device, dtype=x.dtype)
        model = Asked(self.predictor, torch.zeros_like(one), one)
        blocks = [
            evaluate(model, part, "derivatives", output=model.output_form, domain=self.domain)
            .derivatives.double().cpu().numpy()  # type: ignore[union-attr]
            for part in x.split(BLOCK)
        ]  # fmt: skip
        return np.concatenate(blocks).reshape(n, self.outputs)
