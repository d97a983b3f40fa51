r"""The user's `predict`: how it is called, checked, and what of a draw it reads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limbeck.arrays import X, leaves, map_tensors, part_of, rows
from limbeck.distributions import as_distribution, broadcast, check
from limbeck.distributions.base import Mixture, given, mapped, tensors
from limbeck.distributions.discrete import Bernoulli, Categorical, log_means
from limbeck.errors import ArgumentError

__all__ = [
    "Predict",
    "class_logs",
    "classes_of",
    "first",
    "mean_logs",
    "stack",
    "unread",
    "unread_notes",
]

SHOWN = 5
r"""Names that a note lists."""


class Watched(dict[str, Any]):
    r"""A dict that remembers which of its values were looked at.

    Attributes:
        read: Their names; all of them, once it has been gone through as a whole.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()


def unread(function: Callable[..., Any], draw: Any, *rest: Any) -> tuple[str, ...]:
    r"""The names of variables that a function of a draw does not look at.

    >>> unread(lambda draw, x: draw["beta"] * x, {"beta": 1.0, "mu": 2.0}, 3.0)
    ('mu',)
    """
    if not isinstance(draw, dict):
        return ()
    watched = Watched(draw)
    try:
        function(watched, *rest)
    except Exception:  # of a function that takes nothing but a plain dict
        return ()
    return tuple(name for name in draw if name not in watched.read) if watched.read else ()


def unread_notes(names: tuple[str, ...]) -> list[str]:
    r"""What to tell of variables that are not looked at."""
    if not names:
        return []
    listed = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    left_out = ", ".join(repr(f"~{name}") for name in names[:SHOWN])
    return [f"predict does not use {listed}: var_names=[{left_out}] leaves out what is not needed"]


ALIKE = 1e-3
r"""How far two ways to compute the same prediction may be apart, relative to its size."""


class Predict:
    r"""A function of one draw and all inputs, over many draws at once.

    A function of torch is mapped by `torch.vmap`, and can be differentiated. Any other, one of
    NumPy above all, is called draw by draw with whatever it takes, arrays or tensors, and cannot.

    Arguments:
        function: The user's function of (draw, x), or of a draw alone.
        draws: A few draws (m, ...), in the posterior's structure.
        x: A few inputs; None where the function is of a draw alone.
        argument: What errors call the function.

    Attributes:
        mapped: Whether `torch.vmap` maps it.
        reason: Why not.
        example: What it gave for the first draw.
        classes: The number of classes, of a function that gives Bernoulli or Categorical ones.
        numbers: About how many numbers are in memory at once for each draw and input.
        unread: The names of variables that it does not look at.
    """

    def __init__(
        self, function: Callable[..., Any], draws: X, x: X | None, argument: str = "predict"
    ) -> None:
        if not callable(function):
            raise ArgumentError(argument, f"a {type(function).__name__}", "a function of a draw")
        self.function, self.argument = function, argument
        self.reason, self.arrays, self._known = "", False, False
        self._like, count = leaves(draws)[0], Counting()
        with torch.no_grad():
            try:
                self._stacked(draws, x)  # first: NumPy warns before it fails on plain tensors
            except ArgumentError:
                raise
            except Exception as error:  # the user's own, or what torch cannot map
                self._refuse_randomness(error)
                self.reason = _told(error)
                self._choose(draws, x, error)
            self.mapped = not self.reason
            self._known = self.mapped
            with count:
                found = self._raw(first(draws), x)
            self.example = self._checked(found, x)
            self.unread = unread(self.function, *self._given(first(draws), x))
            for draw in range(1, rows(draws)):
                self._checked(self._raw(first(part_of(draws, draw, 1)), x), x)
            self.numbers = max(1, count.numbers // (1 if x is None else rows(x)))
            self.classes = None if x is None else classes_of(self.example, argument)
            if x is not None:
                self._refuse_mixing(draws, x)

    @property
    def batch(self) -> tuple[int, ...]:
        r"""The shape of the distributions of one input."""
        return tuple(self.example.batch_shape[1:])

    def stacked(self, draws: X, x: X | None = None) -> Any:
        r"""What each of S draws says of all inputs: parameters (S, n, ...)."""
        if self.mapped:
            return self._stacked(draws, x)
        count = rows(draws)
        return stack([self._one(first(part_of(draws, s, 1)), x) for s in range(count)])

    def paired(self, draws: X, x: X | None = None) -> Any:
        r"""What each of n draws says of its own input: parameters (n, ...)."""
        if x is None:
            return self.stacked(draws)
        if self.mapped:
            return torch.vmap(self._pair)(draws, x)
        pairs = ((part_of(draws, i, 1), part_of(x, i, 1)) for i in range(rows(x)))
        return stack([mapped(self._one(first(draw), one), _row) for draw, one in pairs])

    def _stacked(self, draws: X, x: X | None) -> Any:
        return torch.vmap(lambda draw: self._one(draw, x))(draws)

    def _pair(self, draw: X, x: X) -> Any:
        return mapped(self._one(draw, map_tensors(lambda t: t.unsqueeze(0), x)), _row)

    def _one(self, draw: X, x: X | None) -> Any:
        found = self._raw(draw, x)
        if not self._known:
            found = as_distribution(found, self.argument, self._like)
        return broadcast(found)

    def _raw(self, draw: X, x: X | None) -> Any:
        return self.function(*self._given(draw, x))

    def _given(self, draw: X, x: X | None) -> list[Any]:
        r"""What the function is called with."""
        given = [draw] if x is None else [draw, x]
        return [_as_arrays(each) for each in given] if self.arrays else given

    def _checked(self, found: Any, x: X | None) -> Any:
        return check(found, None if x is None else rows(x), self.argument, self._like)

    def _choose(self, draws: X, x: X | None, error: Exception) -> None:
        r"""Find out what a function takes that torch cannot map: arrays, or else tensors."""
        few = [first(part_of(draws, draw, 1)) for draw in range(rows(draws))]
        for self.arrays in (True, False):
            try:
                for draw in few:
                    self._raw(draw, x)
            except Exception as failed:  # the user's own
                error = error if self.arrays else failed
                continue
            if self.arrays:
                self.reason = "it is a function of NumPy arrays"
            else:
                warnings.warn(
                    f"{self.argument}: torch.vmap cannot map it over draws ({self.reason}), so it "
                    "is called draw by draw, which is slow, and without derivatives",
                    stacklevel=5,
                )
            return
        shapes = f"a draw {_described(few[0])}"
        shapes += "" if x is None else f" and inputs {_described(x)}"
        received = f"a function that fails ({_told(error)})"
        raise ArgumentError(self.argument, received, f"a function of {shapes}") from error

    def _refuse_randomness(self, error: Exception) -> None:
        if "randomness" in str(error):
            received = "a function that draws random numbers"
            expected = "one that gives the distribution, and does not draw from it"
            raise ArgumentError(self.argument, received, expected) from error

    def _refuse_mixing(self, draws: X, x: X) -> None:
        r"""Refuse functions whose word on an input depends on the other inputs."""
        n = min(rows(draws), rows(x), 4)
        some, their = part_of(draws, 0, n), part_of(x, 0, n)
        together = mapped(
            self.stacked(some, their), lambda value, dims: value.diagonal(0, 0, 1).movedim(-1, 0)
        )
        for a, b in zip(tensors(together), tensors(self.paired(some, their)), strict=True):
            apart = (a - b).abs() > ALIKE * (1 + a.abs())
            if bool(apart.any()):
                received = "predictions that change with the inputs beside, or from call to call"
                expected = "a function of a draw and of each input by itself"
                raise ArgumentError(self.argument, received, expected)


class Counting(TorchDispatchMode):
    r"""Counts the numbers that operations give, as a bound on what is kept for derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.numbers += sum(leaf.numel() for leaf in leaves(found))
        return found


def classes_of(found: Any, argument: str) -> int | None:
    r"""The number of classes, if a distribution is over classes; mixtures are looked into."""
    inner = found
    while isinstance(inner, Mixture):
        inner = inner.components
    if not isinstance(inner, Bernoulli | Categorical):
        return None
    if len(found.batch_shape) != 1:
        received = f"a {type(found).__name__} of the batch shape {tuple(found.batch_shape)}"
        raise ArgumentError(argument, received, "one label an input: the shape (n,)")
    return 2 if isinstance(inner, Bernoulli) else int(inner.outputs.shape[-1])


def class_logs(found: Any) -> Tensor:
    r"""Log probabilities (..., K) of a distribution over classes, or of a mixture of such."""
    while isinstance(found, Mixture):
        found = found.components.mixed(found.log_weights)
    logs: Tensor = found.log_probabilities
    return logs


def mean_logs(stacked: Any) -> Tensor:
    r"""The logarithm (n, K) of the mean over draws of class probabilities with parameters (S, n).

    It never leaves the log domain, where neither a class nor its derivatives can underflow.
    """
    if isinstance(stacked, Bernoulli) and given(stacked.logits):
        one, zero = log_means(stacked.logits, dim=0)
        return torch.stack([zero, one], -1)
    return class_logs(stacked).logsumexp(0) - math.log(stacked.batch_shape[0])


def first(tree: X) -> Any:
    r"""The first of some draws."""
    return map_tensors(lambda tensor: tensor[0], tree)


def stack(found: Sequence[Any]) -> Any:
    r"""Distributions of the same kind with one more dimension in front."""
    columns = zip(*(tensors(each) for each in found), strict=True)
    return mapped(found[0], lambda value, dims: torch.stack(next(columns)))


def _row(value: Tensor, dims: int) -> Tensor:
    return value[0]


def _as_arrays(tree: X) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().cpu().numpy()
    return {name: part.detach().cpu().numpy() for name, part in tree.items()}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


def _described(tree: X) -> str:
    if isinstance(tree, Tensor | np.ndarray):
        return str(tuple(tree.shape))
    return "{" + ", ".join(f"{name}: {tuple(part.shape)}" for name, part in tree.items()) + "}"
