r"""A density that is averaged over a group of symmetries, exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from limbeck.arguments import Count, UserObject, checked_arguments
from limbeck.arrays import float_tensor, random
from limbeck.errors import ArgumentError, shown
from limbeck.models.checks import Generator, Inner, Specified
from limbeck.supports import Discrete, Support

SYMMETRIES = ("spin flip", "translations")
MOST_ELEMENTS = 4096  # of a group

Symmetry = str | Sequence[str]
Element = tuple[bool, tuple[int, ...]]  # whether all variables are reflected, and shifts along axes


class Symmetrized(Specified):
    r"""q̄(x), the mean of q(g x) over the elements g of a group: symmetric by construction.

    If the target has the symmetries, q̄ is at least as close to it as q, in either direction of the
    KL divergence, and covers all modes that the symmetries map to each other. A density costs as
    many evaluations of q as the group has elements, such as 2 for a spin flip.

    A spin flip exchanges the first and the last value of every variable, 0 and 1, −1 and +1, x and
    −x over real numbers; a translation moves all variables along the axes, periodically.

    Arguments:
        model: A model with `log_prob`, `sample(n, generator)` and a `support`, such as a MADE.
        symmetry: "spin flip", "translations" (periodic, along all axes of an event), or a list of
            both.

    >>> from limbeck.models.made import MADE
    >>> student = Symmetrized(MADE(9, 20), "spin flip")
    >>> x = student.sample(5)
    >>> torch.allclose(student.log_prob(x), student.log_prob(1 - x))
    True
    """

    output_form = "log_density"
    fields: ClassVar[Mapping[str, Any]] = {"symmetry": tuple[str, ...], "model": Inner}

    @checked_arguments
    def __init__(self, model: nn.Module, symmetry: UserObject[Symmetry]) -> None:
        super().__init__()
        support = getattr(model, "support", None)
        able = all(callable(getattr(model, name, None)) for name in ("log_prob", "sample"))
        if not isinstance(support, Support) or not able:
            expected = "a model with log_prob, sample and a support, such as an lb.MADE"
            raise ArgumentError("model", f"a {type(model).__name__}", expected)
        self.model, self.support = model, support
        several = isinstance(symmetry, Sequence) and not isinstance(symmetry, str)
        names: list[Any] = list(symmetry) if several else [symmetry]
        if not names or not all(isinstance(name, str) and name in SYMMETRIES for name in names):
            expected = f"{' or '.join(map(repr, SYMMETRIES))}, or a list of both"
            raise ArgumentError("symmetry", shown(symmetry), expected)
        self.symmetry = [name for name in SYMMETRIES if name in names]
        self.total = support.values[0] + support.values[-1] if isinstance(support, Discrete) else 0
        flips = (False, True) if "spin flip" in names else (False,)
        sizes = support.shape if "translations" in names else (1,) * len(support.shape)
        if len(flips) * math.prod(sizes) > MOST_ELEMENTS:
            received = f"a group of {len(flips) * math.prod(sizes):,} elements"
            raise ArgumentError("symmetry", received, f"one of at most {MOST_ELEMENTS:,}")
        shifts = itertools.product(*map(range, sizes))
        self.elements: list[Element] = list(itertools.product(flips, shifts))

    def log_prob(self, x: Tensor) -> Tensor:
        r"""log q̄(x), (n,), of events x (n, *shape)."""
        images = torch.cat(list(self.images(x)))
        log: Tensor = self.model.log_prob(images)  # type: ignore[operator]
        log = log.unflatten(0, (len(self.elements), -1))
        return log.logsumexp(0) - math.log(len(log))

    forward = log_prob

    @checked_arguments
    def sample(self, n: Count, generator: Generator = None) -> Tensor:
        r"""Independent events (n, *shape), exactly from q̄: those of q under random elements."""
        x: Tensor = self.model.sample(n, generator)  # type: ignore[operator]
        like = float_tensor(self.model, x)
        uniform = random(torch.rand, (n,), like, generator).to(x.device)
        elements = (uniform * len(self.elements)).long().clamp_max(len(self.elements) - 1)
        for number, image in enumerate(self.images(x.clone())):
            chosen = (elements == number).view(-1, *[1] * (x.dim() - 1))
            x = torch.where(chosen, image, x)
        return x

    def images(self, x: Tensor, elements: Sequence[Element] | None = None) -> Iterator[Tensor]:
        r"""Events (n, *shape) under every element; the first leaves them as they are."""
        axes = tuple(range(1, x.dim()))
        for flip, shifts in self.elements if elements is None else elements:
            moved = x.roll(shifts, axes) if any(shifts) else x
            yield self.total - moved if flip else moved

    @torch.no_grad()
    def check_target(self, target: Any, x: Tensor) -> None:
        r"""Refuse a target whose log density at events x (n, *shape) changes under the group."""
        # products of a flip and of shifts by one are all elements
        generators = [e for e in self.elements if e[0] + sum(e[1]) == 1]
        log = target.log_unnormalized(x)
        scale = max(1.0, float(log[log.isfinite()].abs().amax())) if log.isfinite().any() else 1.0
        for element, image in zip(generators, self.images(x, generators), strict=True):
            moved = target.log_unnormalized(image)
            if not torch.allclose(log, moved, rtol=0, atol=1e-5 * scale, equal_nan=True):
                name = SYMMETRIES[0] if element[0] else f"a shift by {element[1]}"
                received = f"{', '.join(self.symmetry)}, but {name} changes log p̃ of the target"
                raise ArgumentError("symmetry", received, "symmetries that the target has")
