r"""A bag of a few trained pseudo-draws: a Monte Carlo average at a fraction of its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from typing import Annotated, Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.distributions.transforms import Transform

from limbeck.arguments import Choice, Count, Device, Flag, UserObject, checked_arguments
from limbeck.arrays import X, as_part, as_tensor, map_tensors, random, rows
from limbeck.condensation.teachers import WarnOnce, marginal
from limbeck.distributions import broadcast, weighted_average
from limbeck.distributions.base import D, Distribution, map_parameters
from limbeck.distributions.conversion import adapt, validation
from limbeck.errors import ArgumentError
from limbeck.posteriors.coordinates import NAMED, Part, as_constraint, parts_of
from limbeck.posteriors.draws import Draws, Structure, strata
from limbeck.posteriors.read import as_draws
from limbeck.posteriors.stream import Stream

PARAMETERS = (
    "draws: pseudo-draws are trained to predict well together and are not posterior draws. "
    "Their means, spreads and intervals are not those of the parameters. For these, use the "
    "posterior's own draws"
)
SCALE_DRAWS = 1000  # draws that give the scale of each number, at most

VMAP = ("_vmap_increment_nesting", "_add_batch_dim", "_remove_batch_dim", "_vmap_decrement_nesting")
native: Any = getattr(torch._C, "_functorch", None)  # has no promise to stay
BARE = all(hasattr(native, name) for name in VMAP)


def over_draws(function: Callable[[X], D], draws: X) -> D:
    r"""The distributions that a function gives for each draw: parameters (S, ...).

    The operations and numbers of `torch.vmap`, which inspects arguments and results of unknown
    kinds, and takes ten times as long for that as a small bag takes to predict.
    """
    if not BARE or torch.compiler.is_compiling():
        return torch.vmap(function)(draws)
    _load_rules()
    count = rows(draws)
    level = native._vmap_increment_nesting(count, "error")
    try:
        stacked = function(map_tensors(lambda part: native._add_batch_dim(part, 0, level), draws))
        return map_parameters(
            stacked, lambda value, dims: native._remove_batch_dim(value, level, count, 0)
        )
    finally:
        native._vmap_decrement_nesting()


# the rules that torch maps some operations by, as its own `vmap` does
_load_rules = cache(lambda: torch.vmap(torch.clone)(torch.zeros(1)))


# constraints of vectors, with the ends that stand for them in files
VECTORS = {(0.0, 1.0): NAMED["simplex"], (-math.inf, math.inf): NAMED["ordered"]}


class Segment(NamedTuple):
    r"""Neighbouring numbers of a draw in one support: between two ends, or vectors."""

    size: int
    length: int = 0  # of each simplex or ordered vector, see `VECTORS`; 0 of single numbers
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, part: Part) -> Segment:
        constraint, size = part.constraint, len(part.columns)
        for ends, vector in VECTORS.items():
            if type(constraint) is type(vector):
                return cls(size, part.shape[-1], *ends)
        low = torch.as_tensor(getattr(constraint, "lower_bound", -math.inf))
        high = torch.as_tensor(getattr(constraint, "upper_bound", math.inf))
        if low.ndim or high.ndim or constraint.event_dim:
            expected = "numbers between two ends, a simplex or an ordered vector, for a bag"
            raise ArgumentError("support", f"{part.support} of {part.name}", expected)
        return cls(size, 0, low.item(), high.item())


class Supports:
    r"""The supports of all numbers of a draw: the way between draws and unconstrained numbers."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = [
            Segment(sum(segment.size for segment in same), *support)
            for support, same in groupby(segments, lambda segment: segment[1:])
        ]
        self.transforms = [  # of as many real numbers as there are: K to a simplex of K numbers
            transform_to(VECTORS[ends] if length else as_constraint(ends, "supports"))
            for length, ends in ((segment.length, segment[2:]) for segment in self.segments)
        ]
        self.plain = all(segment[1:] == Segment(0)[1:] for segment in self.segments)

    @classmethod
    def of(cls, support: object, structure: Structure) -> Supports:
        r"""The supports that a user gave; see `parts_of`."""
        return cls(map(Segment.of, parts_of(structure, support)))

    def constrain(self, free: Tensor) -> Tensor:
        r"""Rows of draws (..., dim), of rows of unconstrained numbers (..., dim)."""
        return free if self.plain else self._map(lambda t, v, _: t(v), free)

    def unconstrain(self, rows: Tensor) -> Tensor:
        r"""The inverse of `constrain`; numbers at an end are moved inwards a little."""
        info = torch.finfo(rows.dtype)

        def inverse(transform: Transform, values: Tensor, bounded: bool) -> Tensor:
            free: Tensor = transform.inv(values)
            if bounded:
                return free.clamp_min(math.log(info.eps))
            return free.nan_to_num(math.nan, math.inf, math.log(info.tiny))

        return self._map(inverse, rows)

    def _map(self, function: Callable[[Transform, Tensor, bool], Tensor], rows: Tensor) -> Tensor:
        r"""What a function gives for the numbers of each segment, with vectors on an axis."""
        results, pieces = [], rows.split([segment.size for segment in self.segments], -1)
        for segment, transform, piece in zip(self.segments, self.transforms, pieces, strict=True):
            length, bounded = segment.length, math.isfinite(segment.high - segment.low)
            vectors = piece.unflatten(-1, (-1, length)) if length else piece
            result = function(transform, vectors, bounded)
            results.append(result.flatten(-2) if length else result)
        return torch.cat(results, -1)

    def encoded(self) -> Tensor:
        r"""The supports as a table of numbers (segments, 4), which `decoded` reads."""
        return torch.tensor(self.segments, dtype=torch.float64)

    @classmethod
    def decoded(cls, table: Tensor, dim: int) -> Supports:
        r"""The supports of `dim` numbers, from such a table; refuse what is none."""
        rows: list[Any] = table.tolist() if table.ndim == 2 and table.shape[1] == 4 else []
        valid = sum(row[0] for row in rows) == dim and all(
            size >= 1 and size == int(size) and low < high
            and (length == 0 or (length >= 1 and size % length == 0 and (low, high) in VECTORS))
            for size, length, low, high in rows
        )  # fmt: skip
        if not valid:
            received = f"a table {tuple(table.shape)} of others, or not finite"
            raise ArgumentError("supports", received, f"sizes and ends of {dim:,} numbers")
        return cls(Segment(int(n), int(length), *ends) for n, length, *ends in rows)


class SampleBag(nn.Module):
    r"""f(y|x) = Σ_k π_k p(y|x, w_k): a Monte Carlo average of few components, which are trained.

    The pseudo-draws w_k have the posterior's structure. They start at draws of the posterior and
    are then trained, within their supports. Calling the bag returns the distribution of y.

    Arguments:
        predict: The user's function of one draw and all of x, in torch.
        like: The posterior, stored or a stream; or a `Structure`, for parameters to be loaded.
        components: The number of pseudo-draws. Default: 10.
        support: By name, the supports of variables that are not real, as in `log_evidence`, but no
            Cholesky factors. None means that all are real; "auto" keeps variables positive whose
            stored draws all are. Default: "auto".
        weighted: Whether components have trained weights, or equal ones. Default: False.
        start: "draws" of the posterior, or "normal" random numbers in unconstrained space, as in
            the source text's experiments. Default: "draws".
        scaled: Whether the trained numbers are in units of the posterior's deviations, about its
            means, so that one learning rate fits all, or the draws themselves. Default: True.
        dtype: The parameters' type. Default: that of draws which are tensors, else torch's default.
        device: The parameters' device. Default: the CPU.
        generator: The generator of the first components. Default: a new one, seeded with 0.

    >>> from limbeck.distributions.discrete import Bernoulli
    >>> posterior = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> bag = SampleBag(lambda w, x: Bernoulli(logits=x @ w), like=posterior, components=3)
    >>> bag(torch.zeros(5, 2)).mean
    tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000], grad_fn=...)
    """

    centre: Tensor
    scale: Tensor

    @checked_arguments
    def __init__(
        self,
        predict: UserObject[Callable[..., Distribution]],
        like: UserObject[object],
        components: Count = 10,
        *,
        support: UserObject[object] = "auto",
        weighted: Flag = False,
        start: Annotated[str, Choice("draws", "normal")] = "draws",
        scaled: Flag = True,
        dtype: torch.dtype | None = None,
        device: Device | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not callable(predict):
            raise ArgumentError("predict", f"a {type(predict).__name__}", "a function of (draw, x)")
        count = components
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self._predict = (predict,)  # so that a module's own parameters are not the bag's
        rows, order, self.structure, support = _initial_draws(like, count, support, generator)
        self.supports = Supports.of(support, self.structure)
        for part in parts_of(self.structure, support):
            part.check(rows.double())
        if dtype is None:
            parts = like.values() if isinstance(like, dict) else [like]
            typed = all(isinstance(part, Tensor) for part in parts)
            dtype = rows.dtype if typed else torch.get_default_dtype()
        free = self.supports.unconstrain(rows.double().cpu())
        deviation, shape = free.std(0, correction=0), (count, free.shape[1])
        centre, scale = torch.zeros_like(deviation), torch.ones_like(deviation)
        if scaled:
            centre, scale = free.mean(0), torch.where(deviation > 0, deviation, 1.0)
        if start == "draws":  # over all of the time and all chains
            first = free[order[strata(len(free), count, generator)]]
            noise = random(torch.randn, shape, free, generator)
            same = (first[:, None] == first[None]).all(-1).tril(-1).any(1)  # as one before
            first[same] += 0.01 * deviation * noise[same]
        else:
            first = random(torch.randn, shape, free, generator)
        self.register_buffer("centre", centre.to(device, dtype))
        self.register_buffer("scale", scale.to(device, dtype))
        self.free = nn.Parameter(((first - centre) / scale).to(device, dtype))
        self.logits = nn.Parameter(torch.zeros_like(self.free[:, 0])) if weighted else None
        self._once, self._trained = WarnOnce(), False
        self.joint = False  # whether it was trained on covariances too
        self._start_version = self.free._version

    @classmethod
    def from_tensors(
        cls, predict: UserObject[Callable[..., Distribution]], structure: Structure,
        tensors: UserObject[dict[str, Tensor]],
    ) -> Self:  # fmt: skip
        r"""A bag of the sizes of a saved one, whose tensors are to be loaded into it."""
        free = tensors.get("free", torch.empty(0))
        if free.ndim != 2 or not free.numel() or free.shape[1] != structure.dim:
            expected = f"pseudo-draws of {structure.dim:,} numbers, as their structure says"
            raise ArgumentError("free", f"a tensor of shape {tuple(free.shape)}", expected)
        if not free.is_floating_point():
            raise ArgumentError("free", f"a tensor of {free.dtype}", "a floating-point type")
        weighted = "logits" in tensors
        return cls(predict, structure, len(free), weighted=weighted, dtype=free.dtype)

    @torch.no_grad()
    def _start_at(self, rows: Tensor) -> None:
        r"""Set the components to draws (components, dim)."""
        free = self.supports.unconstrain(rows.double().cpu()).to(self.free)
        self.free.copy_((free - self.centre) / self.scale)
        self._start_version = self.free._version

    @property
    def predict(self) -> Callable[..., Any]:
        return self._predict[0]

    @property
    def components(self) -> int:
        return len(self.free)

    @property
    def flat(self) -> Tensor:
        r"""The pseudo-draws as rows of numbers (components, dim); see `draws`."""
        # before any training the components are draws of the posterior
        if self._trained or self.free._version != self._start_version:
            self._once(PARAMETERS)
        return self._flat

    @property
    def draws(self) -> X:
        r"""The pseudo-draws in the posterior's structure, (components, ...) each.

        After training they are not draws of the posterior: parameters and their uncertainty cannot
        be estimated from them. A `limbeck.PseudoDrawWarning` says this, once for each bag.
        """
        return self.structure.unflatten(self.flat)

    @property
    def _flat(self) -> Tensor:
        return self.supports.constrain(torch.addcmul(self.centre, self.scale, self.free))

    @property
    def _draws(self) -> X:
        return self.structure.unflatten(self._flat)

    @property
    def weights(self) -> Tensor:
        r"""The weights of the components, (components,), with the sum 1."""
        return self._log_weights.exp().clamp_min(torch.finfo(self.free.dtype).tiny)

    @property
    def _log_weights(self) -> Tensor:
        if self.logits is None:
            return self.free.new_full((self.components,), -math.log(self.components))
        return self.logits.log_softmax(0)

    def forward(self, x: UserObject[X]) -> Any:
        r"""The predictive distribution of y at each x, whose floats become the bag's type.

        It is right at each single x. Its samples at several x are independent of each other, which
        those of the posterior are not: a `limbeck.PseudoDrawWarning` says so, once for each bag.
        """
        return marginal(weighted_average(self._stacked(x), self._log_weights), self._once)

    def _stacked(self, x: X) -> Any:
        dtype, predict = self.free.dtype, self.predict
        x = x if isinstance(x, Tensor | dict) else as_part(x, "x").values
        x = map_tensors(lambda part: part.to(dtype) if part.is_floating_point() else part, x)
        with validation(False):
            return over_draws(lambda draw: broadcast(adapt(predict(draw, x))), self._draws)

    def covariances(self, x: UserObject[X]) -> Tensor:
        r"""The covariances (n, n) of the means of y at n inputs, over the components.

        For different inputs they are those of y; the variance of y is that of `forward(x)`. They
        are those of the posterior if the bag was condensed with `joint=True`.
        """
        weights = self.weights.double()
        means = self._stacked(x).mean.reshape(len(weights), -1).double()
        apart = means - weights @ means
        return (apart * weights[:, None]).T @ apart

    @checked_arguments
    @torch.no_grad()
    def sample_jointly(
        self, x: UserObject[X], count: Count = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        r"""Samples of y at all inputs together, (count, n, ...), each of one component.

        Arguments:
            x: Inputs.
            count: Number of samples. Default: 1.
            generator: The generator. Default: None, torch's own.
        """
        if not self.joint:
            received = "a bag that was trained for one input at a time"
            raise ArgumentError("joint", received, "lb.condense(..., joint=True)")
        stacked, pieces = self._stacked(x), []
        chosen = torch.multinomial(self.weights.cpu(), count, True, generator=generator)
        for k in range(self.components):
            select: Any = lambda value, dims, k=k: value[k]  # noqa: E731
            one = map_parameters(stacked, select)
            pieces.append(one.sample((int((chosen == k).sum()),), generator))
        order = chosen.argsort(stable=True).argsort()
        return torch.cat(pieces)[order]

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        r"""Take the supports of a saved bag, before its other tensors are loaded."""
        if (table := tensors.get("_extra_state")) is not None:
            self.set_extra_state(table)

    def get_extra_state(self) -> Tensor:
        return self.supports.encoded()

    def set_extra_state(self, state: Tensor) -> None:
        self.supports = Supports.decoded(state, self.structure.dim)

    def extra_repr(self) -> str:
        kind = "equal" if self.logits is None else "trained"
        return f"{self.components} components of {self.structure}, {kind} weights"


def _initial_draws(
    like: object, components: int, support: object, generator: torch.Generator
) -> tuple[Tensor, Tensor, Structure, object]:
    r"""Draws (n, dim), their order by chain, their structure, and the supports without "auto"."""
    automatic = isinstance(support, str) and support == "auto"
    support = None if automatic else support
    if isinstance(like, Structure):
        rows = random(torch.randn, (SCALE_DRAWS, like.dim), torch.empty(0), generator)
        return Supports.of(support, like).constrain(rows), torch.arange(len(rows)), like, support
    draws = like if isinstance(like, Draws | Stream) else as_draws(like)
    structure = draws.structure
    if isinstance(draws, Stream):  # ten times as many, since neighbours in time are similar
        count = 10 * components
        return structure.flatten(draws.next(count)), torch.arange(count), structure, support
    if draws.count < components:
        raise ArgumentError("components", components, f"at most {draws.count}, the number of draws")
    count = max(components, min(draws.count, SCALE_DRAWS))
    number = draws.in_time(strata(draws.count, count, generator))
    support = positive_variables(draws) if automatic else support
    return structure.flatten(draws.take(number)), number.argsort(), structure, support


def positive_variables(draws: Draws) -> dict[str, str]:
    r"""The variables with names of which all draws are above zero."""
    named = {} if draws.structure.vector else draws.parts
    tensors = {name: as_tensor(part) for name, part in named.items()}
    return {n: "positive" for n, part in tensors.items() if part.numel() and part.min() > 0}
