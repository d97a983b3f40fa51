r"""The user's `predict`: how it is called and checked, and students of the same outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from limbeck import outputs as forms
from limbeck.arrays import X, leaves, map_tensors, part_of, rows
from limbeck.distributions import as_distribution, broadcast, check
from limbeck.distributions.base import Distribution, Mixture, map_parameters
from limbeck.distributions.conversion import adapt, validation
from limbeck.distributions.discrete import Bernoulli, Categorical, Poisson
from limbeck.distributions.gaussians import Normal
from limbeck.errors import ArgumentError, NotDifferentiableError, warn
from limbeck.text import listed


class PredictFunction:
    r"""A function of one draw and all inputs, or of a draw alone, over many draws at once.

    A function of torch is mapped by `torch.vmap`, and can be differentiated. Any other, such as one
    of NumPy, is called draw by draw with arrays or tensors, and cannot.
    """

    def __init__(self, function: Callable[..., Any], draws: X, x: X | None) -> None:
        if not callable(function):
            raise ArgumentError("predict", f"a {type(function).__name__}", "a function of a draw")
        self.function, self.vmapped, self.arrays, self._checked = function, True, False, False
        self.reason = ""  # why `torch.vmap` cannot map it
        self._like, count, singles = leaves(draws)[0], NumberCounter(), _single_draws(draws)
        n = None if x is None else rows(x)
        with torch.no_grad():
            try:
                self.stacked(draws, x)  # first: NumPy warns before it fails on plain tensors
            except ArgumentError:
                raise
            except Exception as error:  # the user's own, or what torch cannot map
                if "randomness" in str(error):
                    received = "a function that draws random numbers"
                    expected = "one that returns the distribution, and does not draw from it"
                    raise ArgumentError("predict", received, expected) from error
                self.vmapped, self.reason = False, _describe_error(error)
                self._choose_arrays(draws, x, error)
            self._checked = self.vmapped
            with count:
                example = self._call(singles[0], x)
            self.example = check(example, n, like=self._like)
            self.unused = self._unused(singles[0], x)
            for draw in singles[1:]:
                check(self._call(draw, x), n, like=self._like)
            self.numbers = max(1, count.numbers // (n or 1))  # in memory for each draw and input
            self.classes = None if x is None else _class_count(self.example)
            if x is not None:
                self._refuse_mixing(draws, x)

    def _unused(self, draw: Any, x: X | None) -> list[str]:
        r"""The names of variables without which the prediction stays the same."""
        names, known = [], leaves(self.example)
        for name in draw if isinstance(draw, dict) else ():
            others = {other: value for other, value in draw.items() if other != name}
            with suppress(Exception):  # of the user's own function, which needs the variable
                again = check(
                    self._call(others, x), None if x is None else rows(x), like=self._like
                )
                names += [name] if all(map(torch.equal, leaves(again), known)) else []
        return names

    @property
    def notes(self) -> list[str]:
        r"""Notes for the user: why it cannot be mapped, and variables that are not needed."""
        notes = [f"predict: {self.reason}"] if self.reason else []
        if self.unused:
            leave_out = f"var_names={['~' + name for name in self.unused]} leaves out what is not "
            notes.append(f"predict does not use {listed(self.unused)}: {leave_out}needed")
        return notes

    def refuse_derivatives(self, loss: str) -> None:
        r"""Raise where a loss needs derivatives, and the function has none."""
        if not self.vmapped:
            raise NotDifferentiableError(
                f"predict: {loss} needs input derivatives, and this function has none, "
                f"since torch cannot map it over draws ({self.reason}). Use a loss on values, or "
                "write the function in torch."
            )

    def stacked(self, draws: X, x: X | None = None) -> Any:
        r"""What each of S draws predicts at all inputs: parameters (S, n, ...)."""
        if self.vmapped:
            return torch.vmap(lambda draw: self._one(draw, x))(draws)
        return stack([self._one(draw, x) for draw in _single_draws(draws)])

    def paired(self, draws: X, x: X | None = None) -> Any:
        r"""What each of n draws predicts at one input of its own: parameters (n, ...)."""
        if x is None:
            return self.stacked(draws)
        row = lambda value, dims: value[0]  # noqa: E731
        if self.vmapped:
            one = lambda draw, x: self._one(draw, map_tensors(lambda t: t[None], x))  # noqa: E731
            return torch.vmap(lambda draw, x: map_parameters(one(draw, x), row))(draws, x)
        pairs = ((draw, part_of(x, i, 1)) for i, draw in enumerate(_single_draws(draws)))
        return stack([map_parameters(self._one(*pair), row) for pair in pairs])

    def _one(self, draw: X, x: X | None) -> Any:
        prediction = self._call(draw, x)
        if not self._checked:
            prediction = as_distribution(prediction, like=self._like)
        return broadcast(prediction)

    def _call(self, draw: X, x: X | None) -> Any:
        with validation(False):
            return adapt(self.function(*self._arguments(draw, x)))

    def _arguments(self, draw: X, x: X | None) -> list[Any]:
        arguments = [draw] if x is None else [draw, x]
        if not self.arrays:
            return arguments
        to_array: Any = lambda tensor: tensor.detach().cpu().numpy()  # noqa: E731
        return [map_tensors(to_array, argument) for argument in arguments]

    def _choose_arrays(self, draws: X, x: X | None, error: Exception) -> None:
        r"""Find out whether a function that torch cannot map accepts arrays or tensors."""
        singles = _single_draws(draws)
        for self.arrays in (True, False):
            try:
                for draw in singles:
                    self._call(draw, x)
            except Exception as failure:  # the user's own
                error = error if self.arrays else failure
                continue
            if self.arrays:
                self.reason = "it is a function of NumPy arrays"
            else:
                warn(
                    f"predict: torch.vmap cannot map it over draws ({self.reason}), so it "
                    "is called draw by draw, which is slow, and without derivatives"
                )
            return
        shapes = f"a draw {_describe_shapes(singles[0])}"
        shapes += " alone, without inputs=" if x is None else f" and inputs {_describe_shapes(x)}"
        received = f"a function that fails ({_describe_error(error)})"
        raise ArgumentError("predict", received, f"a function of {shapes}") from error

    def _refuse_mixing(self, draws: X, x: X) -> None:
        r"""Refuse functions whose prediction at an input depends on the other inputs."""
        n = min(rows(draws), rows(x), 4)
        draws, x = part_of(draws, 0, n), part_of(x, 0, n)
        both = leaves(self.stacked(draws, x)), leaves(self.paired(draws, x))
        for together, alone in zip(*both, strict=True):
            pairs = together.diagonal(0, 0, 1).movedim(-1, 0)  # each draw at its own input
            if bool(((pairs - alone).abs() > 1e-3 * (1 + pairs.abs())).any()):
                received = "predictions that depend on the other inputs, or differ between calls"
                expected = "a function of a draw and of each input by itself"
                raise ArgumentError("predict", received, expected)


class NumberCounter(TorchDispatchMode):
    r"""Counts the results of operations, as a bound on the memory that derivatives need."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numbers += sum(leaf.numel() for leaf in leaves(result))
        return result


def _inner(distribution: Any) -> Any:
    r"""The components of a mixture, of whatever depth; or the distribution itself."""
    while isinstance(distribution, Mixture):
        distribution = distribution.components
    return distribution


def _class_count(distribution: Any) -> int | None:
    r"""The number of classes, if a distribution, or its components, are over classes."""
    inner = _inner(distribution)
    if not isinstance(inner, Bernoulli | Categorical):
        return None
    shape = tuple(distribution.batch_shape)
    if len(shape) != 1:
        received = f"a {type(distribution).__name__} of the batch shape {shape}"
        raise ArgumentError("predict", received, "one label per input: the shape (n,)")
    return 2 if isinstance(inner, Bernoulli) else int(inner.mean.shape[-1])


def class_logs(distribution: Any) -> Tensor:
    r"""Log probabilities (..., K) of a distribution over classes, or of a mixture of such."""
    while isinstance(distribution, Mixture):
        distribution = distribution.components.mix(distribution.log_weights)
    return distribution.log_probabilities


def rows_of(tree: Any, index: Tensor) -> Any:
    r"""The rows of these numbers, of inputs, draws or distributions."""
    return map_tensors(lambda tensor: tensor[index.to(tensor.device)], tree)


def _single_draws(draws: X) -> list[Any]:
    return [map_tensors(itemgetter(i), draws) for i in range(rows(draws))]


def stack(distributions: Sequence[Any]) -> Any:
    r"""Distributions of the same kind with one more dimension in front."""
    columns = zip(*(leaves(each) for each in distributions), strict=True)
    return map_parameters(distributions[0], lambda value, dims: torch.stack(next(columns)))


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


def _describe_shapes(tree: X) -> str:
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape))
    return "{" + ", ".join(f"{name}: {tuple(part.shape)}" for name, part in tree.items()) + "}"


class Pair(NamedTuple):
    r"""An input, an outcome drawn there, and the posterior draw it came from, if that is kept."""

    x: X
    y: Tensor
    draw: Tensor | None = None


def paired(pair: Pair) -> dict[str, Tensor]:
    r"""A pair as one input of the loop; what can be differentiated of x comes first."""
    x = {"x": pair.x} if isinstance(pair.x, Tensor) else {f"x.{k}": v for k, v in pair.x.items()}
    return x | {"y": pair.y} | ({} if pair.draw is None else {"draw": pair.draw})


def unpair(x: Any) -> Pair:
    r"""The inverse of `paired`."""
    inputs = {k.removeprefix("x."): v for k, v in x.items() if k.startswith("x.")}
    return Pair(x.get("x", inputs), x["y"], x.get("draw"))


OUTPUTS = {
    "Normal": "2 (mean, log scale), or 3·M from 6 on (logits, means, log scales of a mixture of M)",
    "Poisson": "1 (the logarithm of the rate)",
}


@dataclass(frozen=True)
class OutputFamily:
    r"""How a module's outputs are to be read: by the kind of what the teacher predicts."""

    kind: str  # the class of a distribution, as "Bernoulli"
    form: str = "auto"  # of a classifier's outputs, one of `outputs.FORMS`

    @classmethod
    def of(cls, distribution: Any) -> OutputFamily:
        r"""The kind of a distribution, or of its components, of the batch shape (n,)."""
        one = len(distribution.batch_shape) == 1
        return cls(type(_inner(distribution)).__name__ if one else "")

    @property
    def classes(self) -> bool:
        r"""Whether predictions are probabilities of classes."""
        return self.kind in ("Bernoulli", "Categorical")

    def distribution(self, logs: Tensor) -> Bernoulli | Categorical:
        r"""The distribution of log probabilities (n, K)."""
        if logs.ndim != 2:
            received = f"inputs at which predictions have the shape {tuple(logs.shape)}"
            raise ArgumentError("x", received, "inputs (n, ...)")
        if self.kind == "Bernoulli":
            return Bernoulli(logits=logs[:, 1] - logs[:, 0])
        return Categorical(logits=logs)

    def read(self, raw: Any) -> Any:
        r"""The distribution that outputs stand for."""
        if isinstance(raw, Distribution):
            return raw
        if self.classes:
            return self.distribution(forms.log_probabilities(forms.values(raw), self.form))
        columns = forms.values(raw) if isinstance(raw, Tensor) and raw.ndim else torch.empty(0, 0)
        size = columns.shape[1]
        if self.kind == "Poisson" and size == 1:
            return Poisson(log_rate=columns[:, 0])
        if self.kind == "Normal" and size == 2:
            return Normal(columns[:, 0], columns[:, 1].exp())
        if self.kind == "Normal" and size >= 6 and size % 3 == 0:
            logits, loc, log_scale = columns.chunk(3, 1)
            return Mixture(components=Normal(loc, log_scale.exp()), logits=logits)
        received = f"outputs of shape {tuple(getattr(raw, 'shape', ()))}"
        also = "a module that gives one of limbeck's distributions, or a SampleBag"
        outputs = f"outputs (n, {OUTPUTS[self.kind]}), " if self.kind in OUTPUTS else ""
        raise ArgumentError("student", received, outputs + also)


class Wrapped(nn.Module):
    r"""A student as the module that a loss is computed of."""

    def __init__(self, student: nn.Module, head: OutputFamily | None = None) -> None:
        super().__init__()
        self.student, self.head = student, head or OutputFamily("")


class ClassLogs(Wrapped):
    r"""A student of distributions over classes as a module of log probabilities (n, K)."""

    output_form = "log_probabilities"

    def forward(self, x: X) -> Tensor:
        return class_logs(self.student(x))


@torch.no_grad()
def class_student(student: nn.Module, x: X) -> nn.Module:
    r"""A student as a module of logits or log probabilities of classes."""
    return ClassLogs(student) if isinstance(student(x), Distribution) else student


class Means(Wrapped):
    r"""A student of distributions as a module of their means; of classes, probabilities."""

    def forward(self, x: X) -> Tensor:
        return self.head.read(self.student(x)).mean


class PairDensity(Wrapped):
    r"""A student of densities of y given x as the log density (n,) of pairs."""

    output_form = "log_density"

    def forward(self, pairs: X) -> Tensor:
        pair = unpair(pairs)
        logs: Tensor = self.head.read(self.student(pair.x)).log_prob(pair.y)
        return logs if logs.ndim == 1 else logs.flatten(1).sum(1)  # independent outcomes
