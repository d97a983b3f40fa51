r"""What every predictive distribution has: means, intervals, log densities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from limbeck.arguments import number
from limbeck.errors import LimbeckError

__all__ = [
    "ABSENT",
    "Distribution",
    "Shape",
    "as_events",
    "as_shape",
    "bisected",
    "broadcast",
    "end_of",
    "given",
    "mapped",
    "random",
    "readable",
    "tail_of",
    "tensors",
    "with_tensors",
]

HALVINGS = 100
r"""Enough for any bracket: what is left of it is far below the digits of a float64 number."""


def tail_of(level: float) -> float:
    r"""The probability on either side of a central interval.

    >>> tail_of(0.5)
    0.25
    """
    return (1 - number("level", level, "a number between 0 and 1", lambda p: 0 < p < 1)) / 2


@torch.no_grad()
def bisected(
    holds: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, whole: bool = False
) -> Tensor:
    r"""The smallest numbers between low and high from which on a condition holds.

    Arguments:
        holds: Whether it holds at each of the numbers; once it does, it does from there on.
        low: Numbers at which it does not hold yet.
        high: Numbers at which it holds.
        whole: Whether to look at whole numbers only.

    >>> bisected(lambda x: x**2 >= 2, torch.tensor(0.0), torch.tensor(2.0))
    tensor(1.4142)
    """
    low, high = torch.broadcast_tensors(low, high)
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        middle = middle.floor() if whole else middle
        between = (middle > low) & (middle < high)
        if not bool(between.any()):
            break
        found = holds(middle)
        low = torch.where(between & ~found, middle, low)
        high = torch.where(between & found, middle, high)
    return high


def end_of(
    tail: Callable[[Tensor, bool], Tensor],
    mass: float,
    upper: bool,
    low: Tensor,
    high: Tensor,
    whole: bool = False,
) -> Tensor:
    r"""An end of a central interval, by bisection.

    Arguments:
        tail: P(Y ≤ y), or P(Y > y) if its second argument is true.
        mass: The probability beyond the end.
        upper: Whether it is the upper end.
        low: Numbers below the end.
        high: Numbers that are not.
        whole: Whether Y is a whole number.
    """

    def passed(y: Tensor) -> Tensor:
        found = tail(y, upper)
        return found <= mass if upper else found >= mass

    return bisected(passed, low, high, whole)


ABSENT: Any = ()
r"""The value of a parameter that was not given."""

Shape = int | tuple[int, ...]
r"""How many samples of each distribution."""


class Distribution:
    r"""A batch of distributions, as a plain named tuple of their parameters.

    So `torch.vmap`, `torch.func` and the compiler see through it. A parameter that was not given
    is the empty tuple, in which they see nothing. Parameters are broadcast to one batch shape.

    Attributes:
        trailing: How many dimensions of each parameter belong to one distribution.
        either: Parameters of which one is to be given.
        form: The form, among `limbeck.outputs.FORMS`, of what a student of it gives.
    """

    __slots__ = ()
    trailing: ClassVar[tuple[int, ...]]
    either: ClassVar[tuple[str, ...]] = ()
    form: Any = "log_density"

    @property
    def event(self) -> int:
        r"""How many dimensions an event has."""
        return 0

    @property
    def mean_dims(self) -> int:
        r"""How many dimensions the mean has."""
        return self.event

    @property
    def discrete(self) -> bool:
        r"""Whether events are whole numbers."""
        return False

    @property
    def batch_shape(self) -> torch.Size:
        r"""The shape of the batch, to which all parameters are broadcast."""
        own: Any = self
        shapes = [
            value.shape[: value.ndim - dims]
            for value, dims in zip(own, self.trailing, strict=True)
            if given(value)
        ]
        longer = [shape for shape in shapes if len(shape)] or shapes
        return longer[0] if len(longer) == 1 else torch.broadcast_shapes(*shapes)

    def expand(self, shape: tuple[int, ...]) -> Self:
        r"""The same as a batch of this shape, without copies."""
        return mapped(
            self, lambda value, dims: value.expand((*shape, *value.shape[value.ndim - dims :]))
        )

    @property
    def mean(self) -> Tensor:
        r"""The mean of an event."""
        raise NotImplementedError

    @property
    def variance(self) -> Tensor:
        r"""The variance of an event."""
        raise NotImplementedError

    def log_prob(self, y: Any) -> Tensor:
        r"""The log density, or log probability, at y; −∞ at what cannot be."""
        raise NotImplementedError

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Independent events (*shape, ...).

        Arguments:
            shape: How many of each distribution.
            generator: The source of randomness; None is torch's global one.
        """
        raise NotImplementedError

    def cdf(self, y: Any) -> Tensor:
        r"""P(Y ≤ y)."""
        return self.tail(as_events(y, self.mean), False)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        r"""The central interval: at most ½(1 − level) of the probability is beyond either end."""
        mass = tail_of(level)
        return self.end(mass, False), self.end(mass, True)

    def tail(self, y: Tensor, upper: bool) -> Tensor:
        r"""P(Y ≤ y), or P(Y > y)."""
        raise self._vectors()

    def end(self, mass: float, upper: bool) -> Tensor:
        r"""The end of a central interval with this probability beyond it."""
        raise self._vectors()

    def _vectors(self) -> LimbeckError:
        name = type(self).__name__
        return LimbeckError(f"{name} is of vectors, which have no order: take quantiles of samples")

    def mixed(self, log_weights: Tensor) -> Any:
        r"""The mixture over the last batch dimension, with log weights (..., K)."""
        from limbeck.distributions.mixtures import Mixture

        return Mixture(components=self, logits=log_weights)


D = TypeVar("D", bound=Distribution)


def given(value: Any) -> bool:
    r"""Whether a parameter was given."""
    return not isinstance(value, tuple) or isinstance(value, Distribution)


def mapped(distribution: D, function: Callable[[Any, int], Any], more: int = 0) -> D:
    r"""A function of each parameter and of how many of its dimensions belong to a distribution.

    Arguments:
        distribution: The distribution; the components of a mixture are its parameters too.
        function: From (parameter, dimensions) to a new parameter.
        more: Dimensions that belong to an outer distribution.
    """
    own: Any = distribution
    found = []
    for value, dims in zip(own, own.trailing, strict=True):
        if isinstance(value, Distribution):
            found.append(mapped(value, function, more + dims))
        else:
            found.append(function(value, more + dims) if given(value) else ABSENT)
    return type(own)(*found)


def tensors(distribution: Any) -> Iterator[Any]:
    r"""All parameters that were given."""
    for value in distribution:
        if isinstance(value, Distribution):
            yield from tensors(value)
        elif given(value):
            yield value


def with_tensors(distribution: D, like: Tensor | None = None) -> D:
    r"""The same with numbers, lists and arrays as tensors.

    Arguments:
        distribution: The distribution.
        like: Of which type and device to make them; None is that of the tensors that are there.
    """
    held = list(tensors(distribution))
    floating = [each for each in held if isinstance(each, Tensor) and each.is_floating_point()]
    if len(floating) == len(held):
        return distribution
    kind = next(iter(floating), torch.empty(0)) if like is None else like

    def as_tensor(value: Any, dims: int) -> Tensor:
        if isinstance(value, Tensor):
            return value if value.is_floating_point() else value.to(kind.dtype)
        return torch.tensor(value, dtype=kind.dtype, device=kind.device)

    return mapped(distribution, as_tensor)


def broadcast(distribution: D) -> D:
    r"""The same with all parameters as tensors of the whole batch shape.

    What a function gives inside `torch.vmap` should be passed through it: loc (n,) and scale ()
    of one draw would else become (S, n) and (S,), which do not fit each other.
    """
    whole = with_tensors(distribution)
    if len(list(tensors(whole))) == 1:
        return whole
    return whole.expand(whole.batch_shape)


def as_events(y: Any, like: Tensor) -> Tensor:
    r"""Events as a tensor of the parameters' type."""
    return torch.as_tensor(y, device=like.device).to(like.dtype)


def as_shape(shape: Shape) -> tuple[int, ...]:
    r"""A shape, or a number of samples as one."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


def random(
    draw: Callable[..., Tensor],
    shape: tuple[int, ...],
    like: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    r"""Random numbers by `torch.rand` or `torch.randn`, drawn where the generator lives."""
    lives = like.device if generator is None else generator.device
    return draw(shape, generator=generator, device=lives, dtype=like.dtype).to(like.device)


def readable(tensor: Tensor) -> bool:
    r"""Whether to look at numbers is cheap and allowed.

    That is so on the CPU, and neither where derivatives are taken nor under maps and compilers.
    """
    return (
        not torch.compiler.is_compiling()
        and type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not torch.jit.is_tracing()
    )
