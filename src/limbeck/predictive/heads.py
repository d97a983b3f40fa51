r"""From what a student gives to a distribution, and to the tensors that the loop works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from limbeck.core import forms
from limbeck.core.batch import X
from limbeck.errors import ArgumentError
from limbeck.predictive.base import Distribution
from limbeck.predictive.calling import class_logs
from limbeck.predictive.continuous import Normal
from limbeck.predictive.discrete import Bernoulli, Categorical, Poisson
from limbeck.predictive.mixtures import Mixture
from limbeck.predictive.pairing import unpaired

__all__ = ["ClassLogs", "Head", "Means", "PairDensity"]

OUTPUTS = {
    "Normal": "2 (mean, log scale), or 3·M from 6 on (logits, means, log scales of a mixture of M)",
    "Poisson": "1 (the logarithm of the rate)",
}


@dataclass(frozen=True)
class Head:
    r"""How a module's outputs are to be read: by the kind of what the teacher predicts.

    Attributes:
        kind: "Bernoulli", "Categorical", "Normal", "Poisson", or the name of another distribution,
            which only a student that gives distributions itself can have.
        form: The form of a classifier's outputs, one of `forms.FORMS`.
    """

    kind: str
    form: str = "auto"

    @classmethod
    def of(cls, found: Any) -> Head:
        r"""The kind of a distribution of the batch shape (n,); mixtures are looked into."""
        inner = found
        while isinstance(inner, Mixture):
            inner = inner.components
        return cls(type(inner).__name__ if len(found.batch_shape) == 1 else "")

    @property
    def classes(self) -> bool:
        r"""Whether predictions are probabilities of classes."""
        return self.kind in ("Bernoulli", "Categorical")

    def read(self, raw: Any) -> Any:
        r"""The distribution that outputs stand for."""
        if isinstance(raw, Distribution):
            return raw
        if self.classes:
            logs = forms.log_probabilities(forms.values(raw), self.form)
            if self.kind == "Bernoulli":
                return Bernoulli(logits=logs[:, 1] - logs[:, 0])
            return Categorical(logits=logs)
        return self._density(raw)

    def _density(self, raw: Any) -> Any:
        columns = forms.values(raw) if isinstance(raw, Tensor) and raw.ndim else None
        size = 0 if columns is None else columns.shape[1]
        if columns is not None and self.kind == "Poisson" and size == 1:
            return Poisson(log_rate=columns[:, 0])
        if columns is not None and self.kind == "Normal" and size == 2:
            return Normal(columns[:, 0], columns[:, 1].exp())
        if columns is not None and self.kind == "Normal" and size >= 6 and size % 3 == 0:
            logits, loc, log_scale = columns.chunk(3, 1)
            return Mixture(components=Normal(loc, log_scale.exp()), logits=logits)
        received = f"outputs of shape {tuple(getattr(raw, 'shape', ()))}"
        also = "a module that gives one of limbeck's distributions, or a SampleBag"
        outputs = f"outputs (n, {OUTPUTS[self.kind]}), " if self.kind in OUTPUTS else ""
        raise ArgumentError("student", received, outputs + also)


class ClassLogs(nn.Module):
    r"""A student of distributions over classes as one of log probabilities (n, K)."""

    output_form = "log_probabilities"

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student

    def forward(self, x: X) -> Tensor:
        return class_logs(self.student(x))


class Means(nn.Module):
    r"""A student of distributions as one of their means: of classes, of their probabilities."""

    def __init__(self, student: nn.Module, head: Head) -> None:
        super().__init__()
        self.student, self.head = student, head

    def forward(self, x: X) -> Tensor:
        mean: Tensor = self.head.read(self.student(x)).mean
        return mean


class PairDensity(nn.Module):
    r"""A student of densities of y given x as the log density (n,) of pairs."""

    output_form = "log_density"

    def __init__(self, student: nn.Module, head: Head) -> None:
        super().__init__()
        self.student, self.head = student, head

    def forward(self, pairs: X) -> Tensor:
        pair = unpaired(pairs)
        logs: Tensor = self.head.read(self.student(pair.x)).log_prob(pair.y)
        return logs if logs.ndim == 1 else logs.flatten(1).sum(1)  # independent outcomes
