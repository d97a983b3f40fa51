r"""Proposals: anything that can be sampled and has a normalised log density, seen in one way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from limbeck.errors import ArgumentError
from limbeck.inputs.calls import SeededCall, parameters_of
from limbeck.models.supports import Support

__all__ = ["Proposal", "as_proposal"]


class Proposal:
    r"""A normalised density q: a student, or another object with `log_prob` and `sample`.

    Arguments:
        model: Has `log_prob(x)` (n,) and `sample(n)`; `sample(n, generator=)` is preferred. A
            torch.distributions object is asked for the shape (n,), and its batch of distributions
            is taken as one distribution of independent variables.

    >>> coins = Proposal(torch.distributions.Bernoulli(torch.full((3,), 0.5)))
    >>> coins.log_prob(coins.sample(2, torch.Generator())).exp()
    tensor([0.1250, 0.1250])
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        if isinstance(model, Distribution) and model.batch_shape:
            model = Independent(model, len(model.batch_shape))
        for name in ("log_prob", "sample"):
            if not callable(getattr(model, name, None)):
                received = f"a {type(model).__name__} without {name}"
                accepted = "a student or distribution with log_prob(x) and sample(n)"
                raise ArgumentError("proposal", received, accepted)
        self._log_prob = model.log_prob
        self._sample = SeededCall(model.sample, "proposal")
        self.takes_shape = isinstance(model, Distribution) or (
            parameters_of(model.sample)[:1] in (["sample_shape"], ["shape"])
        )

    @property
    def support(self) -> Support | None:
        r"""Where its events live, if it says so."""
        support = getattr(self.model, "support", None)
        return support if isinstance(support, Support) else None

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        r"""log q(x), (n,), of events (n, *shape), on the device of x."""
        like = self._like(x)
        found = self._log_prob(x.to(like.device, like.dtype))
        if not isinstance(found, Tensor) or found.shape != (len(x),):
            kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            received = f"log densities {kind} of {len(x)} events"
            raise ArgumentError("proposal", received, f"a tensor of shape ({len(x)},)")
        return found.to(x.device)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Independent events (n, *shape), on the generator's device if one is given."""
        source = torch.default_generator if generator is None else generator
        x = self._sample(source, (n,) if self.takes_shape else n)
        if not isinstance(x, Tensor) or x.dim() == 0 or len(x) != n:
            kind = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError("proposal", f"{kind} for {n} samples", f"a tensor ({n}, …)")
        return x if generator is None else x.to(generator.device)

    def _like(self, x: Tensor) -> Tensor:
        r"""A tensor of the model's own device and type; x itself if there is none."""
        return next((t for t in _tensors(self.model) if t.is_floating_point()), x)


def as_proposal(model: Any) -> Proposal:
    r"""A proposal of a student or a distribution; one that is a proposal already stays as it is."""
    return model if isinstance(model, Proposal) else Proposal(model)


def _tensors(model: Any) -> Iterator[Tensor]:
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
    elif isinstance(model, Distribution):
        for value in vars(model).values():
            if isinstance(value, Tensor):
                yield value
            else:
                yield from _tensors(value)
