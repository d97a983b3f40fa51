r"""Inputs that seek high loss: the student practises where it is still wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limbeck.arguments import number, whole_number
from limbeck.arrays import Batch, map_tensors, rows
from limbeck.errors import ArgumentError
from limbeck.inputs.base import Nested
from limbeck.inputs.convert import as_inputs
from limbeck.inputs.munge import widest_float

__all__ = ["Seek"]


class Seek(Nested):
    r"""Candidates from a source, resampled in proportion to the student's loss on them.

    Of m = candidates · n inputs with losses l, n are drawn with replacement with probabilities
    q_i = uniform / m + (1 − uniform) l_i / Σ l, and get the weight 1 / (m q_i), times their own:
    the weighted mean over the batch has the expectation of the plain mean over the source, for
    the loss and for its gradient. Losses of which some are negative are taken from their minimum,
    and a candidate whose loss is not finite gets no more than the uniform part.

    Arguments:
        source: Anything that `as_inputs` takes.
        candidates: How many candidates there are for each input that is kept.
        uniform: The part of the probability that is shared out equally, in (0, 1]; it bounds the
            weights by 1 / uniform.
        seed: The generator's seed; None takes the seed of the distillation.
    """

    def __init__(
        self, source: Any, candidates: int = 4, uniform: float = 0.1, seed: int | None = None
    ) -> None:
        self.source = as_inputs(source, "source")
        super().__init__([self.source], seed)
        self.candidates = whole_number("candidates", candidates, "a positive integer", least=1)
        self.uniform = number("uniform", uniform, "a number in (0, 1]", lambda u: 0 < u <= 1)
        self.loss_of: Callable[[Batch], Tensor] | None = None

    def bind(self, loss_of: Callable[[Batch], Tensor]) -> None:
        super().bind(loss_of)
        self.loss_of = loss_of

    def probe(self, n: int) -> Batch:
        r"""Candidates of weight one, since there is no loss yet before the first step."""
        batch = self.source.probe(n)
        if batch.weight is not None:
            return batch
        dtype = self.dtype or torch.get_default_dtype()
        return batch._replace(weight=torch.ones(rows(batch.x), dtype=dtype, device=self.device))

    def draw(self, n: int) -> Batch:
        if self.loss_of is None:
            raise ArgumentError(
                "inputs", "a Seek without a loss", "one that bind(loss_of) was called on"
            )
        m = n * self.candidates
        batch = self._candidates(n)
        loss = self.loss_of(batch).detach()
        if loss.shape != (m,):
            raise ArgumentError("loss_of", f"losses of shape {tuple(loss.shape)}", f"({m},)")
        q = self.probabilities(loss)
        chosen = torch.multinomial(q, n, replacement=True, generator=self.generator)
        weight = (1 / (m * q[chosen])).to(loss.dtype)
        kept: Batch = map_tensors(lambda t: t.index_select(0, chosen), batch)
        return kept._replace(weight=weight if kept.weight is None else weight * kept.weight)

    def probabilities(self, loss: Tensor) -> Tensor:
        r"""How likely each candidate is to be drawn, from the losses (m,)."""
        loss = loss.to(widest_float(loss.device))
        finite = torch.isfinite(loss)
        loss = torch.where(finite, loss, 0)
        loss = torch.where(finite, loss - loss.amin().clamp_max(0), 0)
        largest = loss.amax()
        loss = torch.where(largest > 0, loss / largest, 1)  # the sum cannot overflow
        return self.uniform / len(loss) + (1 - self.uniform) * loss / loss.sum()

    def _candidates(self, n: int) -> Batch:
        try:
            return self.source(n * self.candidates)
        except ArgumentError as error:
            if error.argument != "batch_size":
                raise
            received = f"{self.candidates}, which makes {n * self.candidates} of batch_size {n}"
            raise ArgumentError("candidates", received, error.expected) from None
