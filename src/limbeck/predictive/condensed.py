r"""What `condense` gives back: a small student, how far its draws can be trusted, its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from limbeck.core.batch import X, map_tensors
from limbeck.core.checks import whole_number
from limbeck.core.result import Result
from limbeck.draws.diagnostics import Diagnostics
from limbeck.draws.read import as_draws
from limbeck.draws.stored import Draws
from limbeck.draws.stream import Stream
from limbeck.draws.structure import as_parts as parts_of
from limbeck.errors import ArgumentError
from limbeck.inputs.parts import as_parts
from limbeck.predictive.agreement import Agreement, agreement, density_agreement
from limbeck.predictive.calling import Predict
from limbeck.predictive.heads import Head, Means

__all__ = ["Condensed"]


@dataclass(repr=False)
class Condensed(Result):
    r"""A condensed posterior.

    Attributes:
        diagnostics: R̂ and effective sizes of the draws, with reasons to distrust them; None where
            they cannot be told.
        notes: What there is to know beside.
        used: How many draws were used; those of a stored posterior count once.
        draw_bytes: The bytes of the draws that were in memory at once.
        head: How the student's outputs are read; None of a density without inputs.
        calling: The user's function; None where predictions were given.
        posterior: The draws; None likewise.
    """

    diagnostics: Diagnostics | None = None
    notes: list[str] = field(default_factory=list)
    used: int = 0
    draw_bytes: int = 0
    head: Head | None = None
    calling: Predict | None = None
    posterior: Draws | Stream | None = None

    @property
    def bytes(self) -> int:
        r"""The bytes of the student."""
        state = self.student.state_dict().values()
        return sum(tensor.numel() * tensor.element_size() for tensor in state)

    @torch.no_grad()
    def predict(self, x: Any = None) -> Any:
        r"""The distribution of y at inputs x, an array, a tensor or a dict of such.

        Of a density without inputs it is the density itself.
        """
        if self.head is None:
            return self.student
        return self.head.read(self.student(self._placed(x)))

    def report(
        self, x: Any = None, y: Any = None, *, posterior: Any = None, draws: int = 10_000
    ) -> Agreement:
        r"""The student beside the average over all draws: errors, divergence, bytes, time.

        Arguments:
            x: Inputs, best such as the student has not seen; None for a density without inputs,
                which is compared at samples of the average.
            y: Outcomes there, if known, whose log probabilities are compared.
            posterior: Draws to average over; None takes those that were condensed. Of a stream,
                further ones are taken.
            draws: How many draws to take of a stream.
        """
        if self.calling is None:
            accepted = "a result that was made of draws and predict"
            raise ArgumentError("report", "a result of predictions", accepted)
        given = self.posterior if posterior is None else as_draws(posterior)
        if isinstance(given, Stream):
            some = parts_of(given.next(whole_number("draws", draws, "a whole number", 2)))
            given = Draws({name: part[None] for name, part in some.items()})
        assert given is not None
        like = next(self.student.parameters())
        stored = given.to(like.device, like.dtype)
        size = stored.count * stored.structure.dim * like.element_size()
        outcomes = None if y is None else torch.as_tensor(y).to(like.device)
        if self.head is None:
            return density_agreement(
                self.calling, stored, self.student, outcomes, (size, self.bytes)
            )
        return agreement(
            self.calling, stored, self.predict, self._placed(x), outcomes, (size, self.bytes)
        )

    def portable(self) -> Any:
        r"""What leaves when it is exported: means of y, of classes their probabilities.

        Of a density without inputs it is its logarithm.
        """
        from limbeck.export.portable import of_result

        doubts = () if self.diagnostics is None else tuple(self.diagnostics.reasons)
        told: dict[str, Any] = {"draws": f"{self.used:,}"} if self.used else {}
        if self.head is None:
            return of_result(self, verb="condense", doubts=doubts, about=told)
        form = "probabilities" if self.head.classes else "means"
        means = Means(self.student, self.head)
        return of_result(self, means, form, verb="condense", doubts=doubts, about=told)

    def table(self) -> Table:
        r"""The result as a table."""
        table = super().table()
        table.title = "condensation"
        if self.draw_bytes:
            table.add_row("draws", f"{self.used:,}, {self.draw_bytes:,} bytes of them at once")
        table.add_row("bytes", f"{self.bytes:,}")
        if self.diagnostics is not None and len(self.diagnostics.r_hat):
            worst = self.diagnostics.r_hat.nan_to_num(0.0).max().item()
            least = self.diagnostics.ess.nan_to_num(torch.inf).min().item()
            table.add_row("R̂, effective size", f"at most {worst:.3f}, at least {least:,.0f}")
            for reason in self.diagnostics.reasons:
                table.add_row("doubt", reason)
        for note in self.notes:
            table.add_row("note", note)
        return table

    def _placed(self, x: Any) -> X:
        r"""Inputs of any kind on the student's device and of its floating type."""
        like = next(self.student.parameters())
        parts = {name: part.values for name, part in as_parts(x, "x").items()}

        def placed(part: Tensor) -> Tensor:
            return part.to(like.device, like.dtype if part.is_floating_point() else part.dtype)

        return map_tensors(placed, parts.get("", parts))
