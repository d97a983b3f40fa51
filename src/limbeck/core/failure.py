r"""What went wrong: which term, at which inputs, at which step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad

from limbeck.core.batch import Batch
from limbeck.core.objective import Objective, Plan

__all__ = ["Failure", "diagnose"]


@dataclass(frozen=True)
class Failure:
    r"""A loss or gradient that was not finite.

    Attributes:
        step: The step at which it was met; the student is as it was before.
        terms: The loss terms that were not finite, or whose gradients were not.
        examples: The places in the batch.
        batch: The batch itself.
    """

    step: int
    terms: list[str]
    examples: list[int]
    batch: Batch

    def __str__(self) -> str:
        at = f"inputs {_few(self.examples)} of the batch" if self.examples else "the whole batch"
        if self.examples and self.batch.index is not None:
            at += f" (rows {_few(self.batch.index[self.examples].tolist())} of the data)"
        return f"non-finite {', '.join(self.terms)} at step {self.step}, at {at}"


def diagnose(objective: Objective, plan: Plan, step: int) -> Failure:
    r"""Find which terms and which inputs of a plan are not finite, by doing the step again."""
    buffers = dict(objective.named_buffers())

    def again(parameters: dict[str, Tensor]) -> tuple[Tensor, ...]:
        copies = {name: buffer.clone() for name, buffer in buffers.items()}  # a look moves none
        return functional_call(objective, {**parameters, **copies}, (plan,))

    with torch.no_grad():
        found = again({})
    batch = objective.batch(plan)
    bad = {name: ~each.isfinite() for name, each in zip(objective.names, found, strict=True)}
    terms = [name for name, where in bad.items() if where.any()]
    if terms:
        where = torch.stack([bad[name] for name in terms]).any(0)
        return Failure(step, terms, where.nonzero().flatten().tolist(), batch)
    leaves = {name: p.detach() for name, p in objective.named_parameters() if p.requires_grad}
    for i, name in enumerate(objective.names):
        gradients = grad(lambda p, i=i: again(p)[i].mean())(leaves)
        if not all(g.isfinite().all() for g in gradients.values()):
            terms.append(f"gradient of {name}")
    return Failure(step, terms or ["gradient"], [], batch)


def _few(numbers: list[int], most: int = 8) -> str:
    more = f", … ({len(numbers)} in all)" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more
