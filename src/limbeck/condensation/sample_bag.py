r"""A bag of few, trained draws: the form of a Monte Carlo average, at a fraction of its size."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import X, map_tensors, rows
from limbeck.condensation.marginal import PARAMETERS, WarnOnce, marginal
from limbeck.condensation.supports import Supports
from limbeck.condensation.teachers import strata
from limbeck.distributions import averaged, broadcast
from limbeck.distributions.base import D, mapped, random
from limbeck.errors import ArgumentError
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.read import as_draws
from limbeck.posteriors.stream import Stream
from limbeck.posteriors.structure import Structure, as_parts

__all__ = ["SampleBag", "over_draws"]

try:
    from torch._C._functorch import (
        _add_batch_dim,
        _remove_batch_dim,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
    )
except ImportError:  # what torch.vmap is made of has no promise to stay
    BARE = False
else:
    BARE = True


def over_draws(function: Callable[[X], D], draws: X) -> D:
    r"""What a function says of each draw: parameters (S, ...).

    The same operations as `torch.vmap` calls, so the same numbers and derivatives. But `vmap` takes
    ten times as long to look at arguments and results of unknown kinds as a small bag takes to
    predict; here both are known.

    Arguments:
        function: From one draw to a distribution whose parameters are tensors.
        draws: A tensor (S, ...), or by name such tensors.
    """
    if not BARE or torch.compiler.is_compiling():
        return torch.vmap(function)(draws)
    _load()
    count = rows(draws)
    level = _vmap_increment_nesting(count, "error")
    try:
        found = function(map_tensors(lambda part: _add_batch_dim(part, 0, level), draws))
        return mapped(found, lambda value, dims: _remove_batch_dim(value, level, count, 0))
    finally:
        _vmap_decrement_nesting()


@cache
def _load() -> None:
    r"""Let torch load the rules that it maps some operations by, which its own `vmap` does."""
    torch.vmap(torch.clone)(torch.zeros(1))


LOOKED_AT = 1000
r"""Draws by which the scale of each number is told, at most."""

FROM_STREAM = 10
r"""Draws of a stream for each component to choose from: neighbours in time are alike."""

APART = 0.01
r"""By how many deviations components are moved apart that would start at the same place."""


class SampleBag(nn.Module):
    r"""f(y|x) = Σ_k π_k p(y|x, w_k): a Monte Carlo average of few components, which are trained.

    The pseudo-draws w_k have the posterior's structure. They start at draws of the posterior, and
    are free from then on, within their supports. Calling the bag gives the distribution of y, of
    the kind that `predict` gives, averaged.

    Arguments:
        predict: The user's function of one draw and all of x, in torch.
        like: The posterior, stored or a stream, of which a few draws are taken; or a `Structure`,
            for a bag whose parameters will be loaded.
        components: The number of pseudo-draws.
        support: Where variables are to stay: by name "positive", "unit", "simplex", or (low,
            high). "auto" keeps a variable with a name positive if all stored draws of it are. None
            is for no restriction.
        weighted: Whether components have trained weights; otherwise they count equally.
        start: Where components start: at "draws" of the posterior, or at "normal" random numbers,
            in free space, as the source text's experiments seem to.
        scaled: Whether the trained numbers are in units of the posterior's deviations, about its
            means, so that one learning rate fits all; otherwise they are the draws themselves.
        dtype: The parameters' type; None is that of draws which came as tensors, else torch's
            default.
        device: Where the parameters live.
        generator: Where the first components are drawn from; None is a new one, seeded with 0.

    Attributes:
        structure: What one draw looks like.

    >>> from limbeck.distributions.discrete import Bernoulli
    >>> posterior = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> bag = SampleBag(lambda w, x: Bernoulli(logits=x @ w), like=posterior, components=3)
    >>> bag(torch.zeros(5, 2)).mean
    tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000], grad_fn=...)
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        predict: Callable[..., Any],
        like: Any,
        components: int = 10,
        *,
        support: Any = "auto",
        weighted: bool = False,
        start: str = "draws",
        scaled: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not callable(predict):
            raise ArgumentError("predict", f"a {type(predict).__name__}", "a function of (draw, x)")
        if start not in ("draws", "normal"):
            raise ArgumentError.unknown("start", start, ("draws", "normal"))
        count = whole_number("components", components, "a whole number from 1", least=1)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self._predict = (predict,)  # so that a module's own parameters are not the bag's
        rows, self.structure, support = _looked_at(like, count, support, generator)
        self.supports = Supports.of(support, self.structure)
        self.supports.check(rows, self.structure)
        if dtype is None:
            held = list(like.values()) if isinstance(like, dict) else [like]
            typed = all(isinstance(each, Tensor) for each in held)
            dtype = rows.dtype if typed else torch.get_default_dtype()
        free = self.supports.free(rows.double().cpu())
        centre, scale = torch.zeros_like(free[0]), torch.ones_like(free[0])
        if scaled:
            centre, deviation = free.mean(0), free.std(0, correction=0)
            scale = torch.where(deviation > 0, deviation, 1.0)
        if start == "draws":
            chosen = _spread(free, count, generator)
        else:
            chosen = random(torch.randn, (count, free.shape[1]), free, generator)
        chosen = (chosen - centre) / scale
        like_this = torch.empty(0, dtype=dtype, device=device)
        self.register_buffer("centre", centre.to(like_this))
        self.register_buffer("scale", scale.to(like_this))
        self.free = nn.Parameter(chosen.to(like_this))
        self.logits = nn.Parameter(like_this.new_zeros(count)) if weighted else None
        self._once, self._trained = WarnOnce(), False
        self._start_version = self.free._version

    @property
    def predict(self) -> Callable[..., Any]:
        r"""The user's function."""
        return self._predict[0]

    @property
    def components(self) -> int:
        r"""The number of pseudo-draws."""
        return len(self.free)

    @property
    def flat(self) -> Tensor:
        r"""The pseudo-draws as rows of numbers (components, dim); see `draws`."""
        self._warn_of_parameters()
        return self._flat

    @property
    def draws(self) -> X:
        r"""The pseudo-draws in the posterior's structure, (components, ...) each.

        Once they are trained they are no draws of the posterior: parameters and their uncertainty
        cannot be read off them. A `limbeck.PseudoDrawWarning` says so, once for each bag.
        """
        self._warn_of_parameters()
        return self._draws

    @property
    def _flat(self) -> Tensor:
        return self.supports.held(torch.addcmul(self.centre, self.scale, self.free))

    @property
    def _draws(self) -> X:
        return self.structure.unflatten(self._flat)

    def mark_trained(self) -> None:
        r"""Note that the pseudo-draws have left the posterior's draws that they started at."""
        self._trained = True

    def _warn_of_parameters(self) -> None:
        # Before any training the components are draws of the posterior.
        if self._trained or self.free._version != self._start_version:
            self._once(PARAMETERS)

    @property
    def weights(self) -> Tensor:
        r"""The weights of the components, (components,), with the sum 1."""
        if self.logits is None:
            return self.free.new_full((self.components,), 1 / self.components)
        return self.logits.softmax(0).clamp_min(torch.finfo(self.free.dtype).tiny)

    @property
    def _log_weights(self) -> Tensor:
        if self.logits is None:
            return self.free.new_full((self.components,), -math.log(self.components))
        return self.logits.log_softmax(0)

    def forward(self, x: Any) -> Any:
        r"""The predictive distribution of y at each x, whose floats become the bag's type.

        It is right at each single x. Its samples at several x are independent of each other, which
        those of the posterior are not: a `limbeck.PseudoDrawWarning` says so, once for each bag.
        """
        dtype = self.free.dtype
        x = map_tensors(lambda part: part.to(dtype) if part.is_floating_point() else part, x)
        predict = self.predict
        stacked = over_draws(lambda draw: broadcast(predict(draw, x)), self._draws)
        return marginal(averaged(stacked, self._log_weights), self._once)

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        r"""Be ready for the state of a bag with other supports."""
        if (table := tensors.get("_extra_state")) is not None:
            self.set_extra_state(table)

    def get_extra_state(self) -> Tensor:
        r"""The supports, which are part of what the parameters mean."""
        return self.supports.encoded()

    def set_extra_state(self, state: Tensor) -> None:
        r"""Take the supports of a saved bag."""
        self.supports = Supports.decoded(state)

    def extra_repr(self) -> str:
        weights = "equal weights" if self.logits is None else "trained weights"
        return f"{self.components} components of {self.structure}, {weights}"


def _looked_at(
    like: Any, components: int, support: Any, generator: torch.Generator
) -> tuple[Tensor, Structure, Any]:
    r"""Draws (n, dim) to start from, what one looks like, and the supports that are meant."""
    if isinstance(like, Structure):
        rows = random(torch.randn, (LOOKED_AT, like.dim), torch.empty(0), generator)
        support = None if isinstance(support, str) and support == "auto" else support
        return Supports.of(support, like).held(rows), like, support
    draws = like if isinstance(like, Draws | Stream) else as_draws(like)
    structure, automatic = draws.structure, isinstance(support, str) and support == "auto"
    if isinstance(draws, Stream):
        rows = structure.flatten(draws.next(FROM_STREAM * components))
        return rows, structure, None if automatic else support
    if draws.count < components:
        expected = f"at most {draws.count}, the number of draws"
        raise ArgumentError("components", components, expected)
    count = max(components, min(draws.count, LOOKED_AT))
    rows = structure.flatten(draws.take(strata(draws.count, count, generator)))
    return rows, structure, positive_variables(draws) if automatic else support


def positive_variables(draws: Draws) -> dict[str, str] | None:
    r"""The variables with names of which all draws are above zero."""
    if draws.structure.vector:
        return None
    least = {name: float("inf") for name in draws.structure.names}
    for block in draws.blocks(max(1, 2**20 // max(1, draws.structure.dim))):
        for name, part in as_parts(block).items():
            least[name] = min(least[name], part.min().item() if part.numel() else -1.0)
    return {name: "positive" for name, lowest in least.items() if lowest > 0}


def _spread(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    r"""Some rows, over all of the time and all chains, no two of them the same."""
    chosen = rows[strata(len(rows), count, generator)].clone()
    noise = random(torch.randn, tuple(chosen.shape), chosen, generator)
    same = (chosen[:, None] == chosen[None]).all(-1).tril(-1).any(1)  # as one before
    chosen[same] += APART * rows.std(0, correction=0) * noise[same]
    return chosen
