r"""Losses and heads for outcomes of every distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck import outputs as forms
from limbeck.arrays import Batch, X, floats
from limbeck.condensation.predict_function import class_logs
from limbeck.distributions.base import Distribution, Mixture
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.gaussians import Normal
from limbeck.errors import ArgumentError
from limbeck.evaluation import View
from limbeck.inputs.base import Inputs, Nested
from limbeck.inputs.dataset import Dataset
from limbeck.losses.base import Loss
from limbeck.losses.densities import kl
from limbeck.losses.derivatives import derivative_error
from limbeck.losses.values import cross_entropy
from limbeck.storage.files import under

__all__ = [
    "ClassLogs",
    "Head",
    "Means",
    "Pair",
    "PairDensity",
    "Pairs",
    "pair_losses",
    "paired",
    "unpaired",
]


class Pair(NamedTuple):
    r"""An input, an outcome drawn there, and the posterior draw it came from, if that is kept.

    Attributes:
        x: Inputs.
        y: Outcomes (n, ...).
        draw: Draws as rows of numbers (n, dim).
    """

    x: X
    y: Tensor
    draw: Tensor | None = None


def paired(pair: Pair) -> dict[str, Tensor]:
    r"""A pair as one input of the loop; what can be differentiated of x comes first.

    >>> list(paired(Pair(torch.zeros(2, 3), torch.ones(2))))
    ['x', 'y']
    """
    x = {"x": pair.x} if isinstance(pair.x, Tensor) else {f"x.{k}": v for k, v in pair.x.items()}
    return x | {"y": pair.y} | ({} if pair.draw is None else {"draw": pair.draw})


def unpaired(x: Any) -> Pair:
    r"""The inverse of `paired`."""
    beside = {name: x[name] for name in ("y", "draw") if name in x}
    if "x" in x:
        return Pair(x["x"], **beside)
    named = {k.removeprefix("x."): v for k, v in x.items() if k.startswith("x.")}
    return Pair(named, **beside)


class Pairs(Nested):
    r"""Inputs with an outcome each, of the posterior predictive distribution.

    An outcome is drawn by the teacher: one posterior draw an input, then y of its prediction. So
    −log f(y|x) is in the mean the cross entropy with the average over all draws, however few of
    them are in memory.

    Arguments:
        inputs: The source of x.
        outcomes: From (x, generator) to a Pair; it may hold a state of its own.
        state: That state: something with `state_dict` and `load_state_dict`, or None.
    """

    def __init__(
        self,
        inputs: Inputs,
        outcomes: Callable[[Batch, torch.Generator], Pair],
        state: Any = None,
    ) -> None:
        super().__init__([inputs])
        self.outcomes, self.state = outcomes, state
        self.own_batches, self.batch_size = inputs.own_batches, inputs.batch_size

    def draw(self, n: int) -> Batch:
        source = self.sources[0]
        if isinstance(source, Dataset):  # of which n may be more than all: outcomes are fresh
            return self._with_outcomes(source.build(source.next_rows(n)))
        return self._with_outcomes(source(n))

    def own_batch(self) -> Batch:
        source = self.sources[0]
        return self._with_outcomes(source.build(source.own_batch()))

    def probe(self, n: int) -> Batch:
        r"""A few inputs with outcomes; draws of a stream that they take do not come again."""
        before = self.generator.get_state()
        batch = self._with_outcomes(self.sources[0].probe(n))
        self.generator.set_state(before)
        return batch

    def _with_outcomes(self, batch: Batch) -> Batch:
        with torch.no_grad():
            pair = self.outcomes(batch, self.generator)
        return Batch(paired(pair), weight=batch.weight)

    def state_dict(self) -> dict[str, Tensor]:
        own = {} if self.state is None else self.state.state_dict()
        return super().state_dict() | {f"draws.{key}": value for key, value in own.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        if self.state is not None:
            self.state.load_state_dict(under("draws.", state))


class pair_derivative_error(Loss):  # noqa: N801 - losses are written as functions
    r"""½‖∂log f(y|x) − ∂log t(y|x)‖² with respect to x, at outcomes y of the teacher.

    It is `derivative_error(weight="teacher")` where classes are too many to be summed over.
    """

    name = "derivative_error"
    asks = frozenset({"derivatives"})
    domain = "density"
    needs = "density"
    differentiates = True
    storable = False

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Any = None) -> Tensor:
        size = sum(part[0].numel() for part in floats(unpaired(batch.x).x).values())
        residual = student.derivatives("density") - teacher.derivatives("density")  # (n, 1, D)
        return residual[:, 0, :size].square().sum(1) / 2


def pair_losses(loss: Loss) -> Loss:
    r"""The losses on pairs that stand for losses on classes."""
    total: Any = 0
    for coefficient, term in loss:
        total = total + coefficient * _on_pairs(term)
    return total


def _on_pairs(term: Loss) -> Loss:
    if isinstance(term, kl) or (isinstance(term, cross_entropy) and term.temperature == 1):
        return kl()
    if isinstance(term, pair_derivative_error):
        return term
    if isinstance(term, derivative_error) and (term.domain, term.weight) == ("log", "teacher"):
        return pair_derivative_error()
    expected = 'cross_entropy(), or derivative_error(weight="teacher"), where y is not a class'
    raise ArgumentError("loss", repr(term), expected)


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
