r"""The loss of students with several independent labels, of which any number may hold at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from limbeck.core.batch import Batch
from limbeck.core.evaluation import View
from limbeck.core.forms import FORMS, check_probabilities
from limbeck.core.loss import Loss, Probe
from limbeck.errors import ArgumentError
from limbeck.losses.values import check_same_values

__all__ = ["multilabel_cross_entropy"]


class multilabel_cross_entropy(Loss):  # noqa: N801 - losses are written as functions
    r"""Σ_k softplus(z_k) − t_k z_k: a cross entropy for each of K independent labels.

    The student's values z (n, K) are the labels' logits, the teacher's values t (n, K) their
    probabilities. Both are values in limbeck's words ("values", not "logits"), since they do not
    sum to one over k.
    """

    name = "multilabel_cross_entropy"
    asks = frozenset({"values"})
    needs = "values"

    def bind(self, probe: Probe) -> nn.Module | None:
        _refuse("student_output", probe.student, FORMS[:3], "logits")
        _refuse("teacher_output", probe.teacher, FORMS[:1], "probabilities")
        check_same_values(probe)
        check_probabilities(probe.teacher.values().reshape(-1, 1), "teacher")  # each by itself
        return None

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Any = None) -> Tensor:
        z = student.values()
        return (F.softplus(z) - teacher.values() * z).sum(1)


def _refuse(argument: str, view: View, refused: Sequence[str], kind: str) -> None:
    if (form := getattr(view, "form", "values")) in refused:
        accepted = f"'values', the {kind} of labels that do not exclude each other"
        raise ArgumentError(argument, repr(form), accepted)
