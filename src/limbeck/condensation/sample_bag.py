r"""A bag of a few trained pseudo-draws: a Monte Carlo average at a fraction of its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Annotated, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from limbeck.arguments import Choice, Count, Device, Flag, UserObject, checked_arguments, choice
from limbeck.arrays import X, as_dict, as_numbers, as_part, map_tensors, random, rows
from limbeck.condensation.teachers import WarnOnce, marginal, strata
from limbeck.distributions import broadcast, weighted_average
from limbeck.distributions.base import D, Distribution, map_parameters
from limbeck.distributions.conversion import adapt, validation
from limbeck.errors import ArgumentError, shown
from limbeck.posteriors.draws import Draws, Structure
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


class Segment(NamedTuple):
    r"""Neighbouring numbers of a draw in one support: between two ends, or simplexes."""

    size: int
    simplex: int = 0  # the numbers of each simplex; 0 of numbers between two ends
    low: float = -math.inf
    high: float = math.inf

    def constrain(self, free: Tensor) -> Tensor:
        if self.simplex:
            return free.unflatten(-1, (-1, self.simplex)).softmax(-1).flatten(-2)
        if self.low == -math.inf:
            return free if self.high == math.inf else self.high - free.exp()
        if self.high == math.inf:
            return self.low + free.exp()
        return self.low + (self.high - self.low) * free.sigmoid()

    def unconstrain(self, values: Tensor) -> Tensor:
        r"""The inverse of `constrain`; a number at an end is moved inwards a little."""
        tiny, eps = torch.finfo(values.dtype).tiny, torch.finfo(values.dtype).eps
        if self.simplex:
            return values.clamp_min(tiny).log()
        if self.low == -math.inf:
            return values if self.high == math.inf else (self.high - values).clamp_min(tiny).log()
        if self.high == math.inf:
            return (values - self.low).clamp_min(tiny).log()
        return ((values - self.low) / (self.high - self.low)).logit(eps)

    def outside(self, values: Tensor) -> Tensor:
        if not self.simplex:
            return (values < self.low) | (values > self.high)
        sums = values.unflatten(-1, (-1, self.simplex)).sum(-1)
        return (values < 0) | ((sums - 1).abs() > 1e-3).repeat_interleave(self.simplex, -1)

    def __str__(self) -> str:
        if self.simplex:
            return f"{self.simplex} nonnegative numbers with the sum 1"
        return f"numbers between {self.low:g} and {self.high:g}"


NAMES = {"real": (None, None), "positive": (0, None), "unit": (0, 1)}


def as_segment(value: Any, shape: tuple[int, ...], argument: str) -> Segment:
    r"""The support of a variable, by name or as (low, high)."""
    if isinstance(value, str):
        choice(argument, value, (*NAMES, "simplex"))
    size = math.prod(shape)
    if isinstance(value, str) and value == "simplex":
        if not shape or shape[-1] < 2:
            received = f"a simplex for a variable of shape {shape}"
            raise ArgumentError(argument, received, "a variable whose last axis is a simplex")
        return Segment(size, shape[-1], 0.0, 1.0)
    try:
        low, high = NAMES[value] if isinstance(value, str) else value
        low = -math.inf if low is None else float(low)
        high = math.inf if high is None else float(high)
    except (TypeError, ValueError):
        expected = f"{', '.join(map(repr, NAMES))}, 'simplex', or (low, high), one maybe None"
        raise ArgumentError(argument, shown(value), expected) from None
    if not low < high:
        raise ArgumentError(argument, shown(value), "ends with low < high")
    return Segment(size, 0, low, high)


class Supports:
    r"""The supports of all numbers of a draw: the way between draws and unconstrained numbers."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = [
            Segment(sum(segment.size for segment in same), *support)
            for support, same in groupby(segments, lambda segment: segment[1:])
        ]
        self.plain = all(segment[1:] == Segment(0)[1:] for segment in self.segments)

    @classmethod
    def of(cls, support: object, structure: Structure) -> Supports:
        r"""The supports by name, of a vector by place, or one for all; unnamed ones are real."""
        supports: Any = {} if support is None else support
        known: list[Any] = ["", *range(structure.dim)] if structure.vector else [*structure.names]
        if structure.vector and not isinstance(supports, Mapping):
            simplex = isinstance(support, str) and support == "simplex"
            supports = dict.fromkeys(known[:1] if simplex else known[1:], support)
        if not isinstance(supports, Mapping):
            raise ArgumentError("support", shown(support), "a dict of supports by variable")
        for name in supports:
            if name not in known:
                raise ArgumentError("support", f"a support of {name!r}", f"a dict of {structure}")
        variables: Any = zip(structure.names, structure.shapes, strict=True)
        if structure.vector and "" not in supports:
            variables = ((place, ()) for place in range(structure.dim))
        return cls(
            as_segment(supports.get(name, "real"), shape, f"support[{name!r}]")
            for name, shape in variables
        )

    def constrain(self, free: Tensor) -> Tensor:
        r"""Rows of draws (..., dim), of rows of unconstrained numbers (..., dim)."""
        if self.plain:
            return free
        return torch.cat([segment.constrain(part) for segment, part in self._parts(free)], -1)

    def unconstrain(self, rows: Tensor) -> Tensor:
        return torch.cat([segment.unconstrain(part) for segment, part in self._parts(rows)], -1)

    def _parts(self, rows: Tensor) -> Iterator[tuple[Segment, Tensor]]:
        parts = rows.split([segment.size for segment in self.segments], -1)
        return zip(self.segments, parts, strict=True)

    def check(self, rows: Tensor, structure: Structure) -> None:
        r"""Refuse draws (n, dim) that are not in their supports."""
        start = 0
        for segment, part in self._parts(rows):
            outside = segment.outside(part)
            if bool(outside.any()):
                label = structure.label(start + int(outside.any(0).nonzero()[0]))
                count = f"{int(outside.any(1).sum()):,} of {len(rows):,} draws of {label} are not"
                expected = "a support that holds all draws"
                raise ArgumentError("support", f"{segment}, and {count}", expected)
            start += segment.size

    def encoded(self) -> Tensor:
        r"""The supports as a table of numbers (segments, 4), which `decoded` reads."""
        return torch.tensor(self.segments, dtype=torch.float64)

    @classmethod
    def decoded(cls, table: Tensor, dim: int) -> Supports:
        r"""The supports of `dim` numbers, from such a table; refuse what is none."""
        rows: list[Any] = table.tolist() if table.ndim == 2 and table.shape[1] == 4 else []
        valid = sum(row[0] for row in rows) == dim and all(
            size >= 1 and size == int(size) and low < high
            and (simplex == 0 or (simplex >= 2 and size % simplex == 0))
            for size, simplex, low, high in rows
        )  # fmt: skip
        if not valid:
            received = f"a table {tuple(table.shape)} of others, or not finite"
            raise ArgumentError("supports", received, f"sizes and ends of {dim:,} numbers")
        return cls(Segment(int(n), int(simplex), *ends) for n, simplex, *ends in rows)


class SampleBag(nn.Module):
    r"""f(y|x) = Σ_k π_k p(y|x, w_k): a Monte Carlo average of few components, which are trained.

    The pseudo-draws w_k have the posterior's structure. They start at draws of the posterior and
    are then trained, within their supports. Calling the bag returns the distribution of y.

    Arguments:
        predict: The user's function of one draw and all of x, in torch.
        like: The posterior, stored or a stream; or a `Structure`, for parameters to be loaded.
        components: The number of pseudo-draws. Default: 10.
        support: Bounds of variables, by name: "positive", "unit", "simplex", or (low, high). None
            means no bounds; "auto" keeps variables positive whose stored draws all are. Default:
            "auto".
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
        rows, self.structure, support = _initial_draws(like, count, support, generator)
        self.supports = Supports.of(support, self.structure)
        self.supports.check(rows, self.structure)
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
            first = free[strata(len(free), count, generator)]
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

    @checked_arguments
    @torch.no_grad()
    def start_at(self, rows: Tensor) -> None:
        r"""Set the components to draws (components, dim)."""
        if rows.shape != self.free.shape or not rows.is_floating_point():
            received = f"{rows.dtype} of shape {tuple(rows.shape)}"
            raise ArgumentError("rows", received, f"draws {tuple(self.free.shape)}")
        rows = as_numbers(rows, "rows").double().cpu()
        free = self.supports.unconstrain(rows).to(self.free)
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
        means = self._stacked(x).mean.flatten(1).double()
        weights = self.weights.double()
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
) -> tuple[Tensor, Structure, object]:
    r"""Draws (n, dim) to start from, their structure, and the supports without "auto"."""
    automatic = isinstance(support, str) and support == "auto"
    support = None if automatic else support
    if isinstance(like, Structure):
        rows = random(torch.randn, (SCALE_DRAWS, like.dim), torch.empty(0), generator)
        return Supports.of(support, like).constrain(rows), like, support
    draws = like if isinstance(like, Draws | Stream) else as_draws(like)
    structure = draws.structure
    if isinstance(draws, Stream):  # ten times as many, since neighbours in time are similar
        return structure.flatten(draws.next(10 * components)), structure, support
    if draws.count < components:
        raise ArgumentError("components", components, f"at most {draws.count}, the number of draws")
    count = max(components, min(draws.count, SCALE_DRAWS))
    rows = structure.flatten(draws.take(strata(draws.count, count, generator)))
    return rows, structure, positive_variables(draws) if automatic else support


def positive_variables(draws: Draws) -> dict[str, str] | None:
    r"""The variables with names of which all draws are above zero."""
    if draws.structure.vector:
        return None
    positive = dict.fromkeys(draws.structure.names, "positive")
    for block in draws.blocks(max(1, 2**20 // max(1, draws.structure.dim))):
        for name, part in as_dict(block).items():
            if not part.numel() or part.min() <= 0:
                positive.pop(name, None)
    return positive
