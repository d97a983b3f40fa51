r"""Stored targets: a teacher's outputs at each row of a data set, computed once and looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import Tensor

from limbeck import outputs as forms
from limbeck.arguments import Choice, Dict, checked_arguments, choice
from limbeck.arrays import Batch, X, leaves, map_tensors, part_of, rows
from limbeck.errors import ArgumentError, NotDifferentiableError
from limbeck.evaluation import View
from limbeck.losses.base import Loss
from limbeck.teachers.base import Teacher

POOL = 4  # stored random projections per row, for each that a step uses; steps choose among them


class Stored(Teacher):
    r"""A teacher that looks up its targets by the row numbers of a batch.

    Arguments:
        values: Outputs (N, I) or (N,) at the N rows of the data set.
        output: Their form.
        derivatives: Derivatives (N, I, D) by domain ("log" or "plain"). Default: None.
        pools: By (domain, weight), random cotangents (N, r, I) and the derivatives (N, r, D)
            of those combinations of the outputs. Default: None.
        hidden: Hidden layers (N, ...) by name. Default: None.
    """

    @checked_arguments
    def __init__(
        self,
        values: Tensor,
        output: Annotated[str, Choice(*forms.FORMS, "auto")] = "auto",
        *,
        derivatives: Dict[dict[str, Tensor]] | None = None,
        pools: Dict[dict[tuple[str, str], tuple[Tensor, Tensor]]] | None = None,
        hidden: Dict[dict[str, Tensor]] | None = None,
    ) -> None:
        super().__init__(self._missing, output, differentiable=bool(derivatives or pools))
        self.values, self.derivatives = values, derivatives or {}
        self.pools, self.hidden = pools or {}, hidden or {}
        # pools of any size pick evenly from numbers up to a multiple of all sizes
        self.choices = math.lcm(*(cotangents.shape[1] for cotangents, _ in self.pools.values()))

    @property
    def bytes(self) -> int:
        r"""The memory that the targets take."""
        targets = (self.values, self.derivatives, self.pools, self.hidden)
        return sum(tensor.nbytes for tensor in leaves(targets))

    def _missing(self, x: X) -> Tensor:
        expected = "a Dataset over the rows that targets are stored for"
        raise ArgumentError("inputs", "no row numbers", expected)

    def to(self, device: torch.device) -> None:
        for name in ("values", "derivatives", "pools", "hidden"):
            setattr(self, name, map_tensors(lambda t: t.to(device), getattr(self, name)))

    def signs(self, k: int, n: int, outputs: int, generator: torch.Generator) -> Tensor:
        if not self.pools:
            return super().signs(k, n, outputs, generator)
        return torch.randint(self.choices, (k, n), generator=generator, device=generator.device)

    def view(self, batch: Batch, drawn: object = None) -> StoredView:
        if batch.index is None:
            self._missing(batch.x)
        return StoredView(self, batch)

    def __repr__(self) -> str:
        return "the teacher (stored targets)"


class StoredView(View):
    r"""Stored targets at a batch, as losses see them."""

    def __init__(self, stored: Stored, batch: Batch) -> None:
        self.stored, self.index = stored, batch.index
        super().__init__(lambda x: stored.values[self.index], batch.x, stored.form)

    def derivatives(self, domain: str) -> Tensor:
        if domain not in self.stored.derivatives:
            message = f"teacher: no derivatives in the {domain} domain are stored"
            raise NotDifferentiableError(message)
        return self.stored.derivatives[domain][self.index]

    def projected(self, domain: str, cotangents: Tensor) -> Tensor:
        return torch.einsum("kni,nid->nkd", cotangents, self.derivatives(domain))

    def projection(self, domain: str, weight: str, signs: Tensor) -> tuple[Tensor, Tensor]:
        pool = self.stored.pools.get((domain, weight))
        if pool is None:
            return super().projection(domain, weight, signs)
        cotangents, projected = pool
        size = cotangents.shape[1]
        picked = signs if size == self.stored.choices else signs % size
        return cotangents[self.index, picked], projected[self.index, picked].transpose(0, 1)

    def directional(self, domain: str, directions: X) -> Tensor:
        raise NotDifferentiableError("teacher: derivatives along directions are not stored")

    def hidden(self, name: str) -> Tensor:
        choice("hints", name, self.stored.hidden)
        return self.stored.hidden[name][self.index]


@torch.no_grad()
def precompute(
    teacher: Teacher,
    x: X,
    terms: Iterable[Loss],
    *,
    seed: int = 0,
    block: int = 1000,
    watch: Callable[[list[Batch]], Iterable[Batch]] = iter,
) -> Stored:
    r"""Evaluate a teacher once at every row of x, as losses need it; `watch` may count blocks."""
    generator = torch.Generator(leaves(x)[0].device).manual_seed(seed)
    # a model's own logs are kept, since those of its probabilities would underflow
    logs = teacher.form == "probabilities" and hasattr(teacher.source, "log_probabilities")
    ordered = sorted(terms, key=lambda term: term.projections or 0)  # the largest pool stays

    def targets_at(batch: Batch) -> dict[str, Any]:
        view = teacher.view(batch, teacher.prepare(batch))
        values = view.log_probabilities() if logs else view.raw()
        result: dict[str, Any] = {"values": values, "derivatives": {}, "pools": {}, "hidden": {}}
        for term in ordered:  # what two terms need is stored once
            if "hidden" in term.requires:
                layer = term.teacher_layer  # type: ignore[attr-defined]
                result["hidden"][layer] = view.hidden(layer)
            if "derivatives" in term.requires and term.projections is None:
                result["derivatives"][term.domain] = view.derivatives(term.domain)
            elif "derivatives" in term.requires:
                (n, outputs), pool = view.outputs(term.domain).shape, POOL * (term.projections or 0)
                signs = Teacher.signs(teacher, pool, n, outputs, generator)
                weight = term.weight  # type: ignore[attr-defined]
                cotangents, projected = view.projection(term.domain, weight, signs)
                pair = (cotangents.transpose(0, 1).contiguous(), projected)
                result["pools"][term.domain, weight] = pair
        return result

    starts = range(0, rows(x), block)
    targets = [targets_at(batch) for batch in watch([Batch(part_of(x, i, block)) for i in starts])]
    parts = zip(*map(leaves, targets), strict=True)
    joined = map_tensors(lambda first: torch.cat(next(parts)), targets[0])
    form = "log_probabilities" if logs else teacher.form
    return Stored(joined.pop("values"), form, **joined)
