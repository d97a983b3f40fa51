r"""Teachers made of draws: averages over all, or one draw at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arrays import Batch, X, leaves, map_tensors, rows
from limbeck.condensation.predict_function import PredictFunction, class_logs, unpair
from limbeck.distributions.base import Distribution, Shape, average
from limbeck.errors import ArgumentError, PseudoDrawWarning, warn
from limbeck.evaluation import View
from limbeck.inputs import Dataset
from limbeck.inputs.base import Stateful
from limbeck.posteriors.draws import Diagnostics, Draws, Structure
from limbeck.posteriors.stream import Stream
from limbeck.teachers.base import Teacher
from limbeck.training.config import Training, choose_device

AT_ONCE = 2**26  # bytes that predictions of a block of draws may take
IN_MEMORY = 2**30  # bytes of stored draws above which they are used one by one, not averaged over


class FreshDraws(Stateful):
    r"""Draws for single use: the next ones of a stream, or stored ones at random.

    Some draws of a stream are recorded, all with the same chance, in constant memory.
    """

    STATE = ("rows", "seen")

    def __init__(self, posterior: Draws | Stream, seed: int = 0) -> None:
        self.posterior, self.structure = posterior, posterior.structure
        self.generator = torch.Generator().manual_seed(seed)
        self.seen, count, dtype = 0, 0, posterior.dtype or torch.get_default_dtype()
        if isinstance(posterior, Stream):  # at most 64 MiB of draws
            count = max(2, min(1000, 2**26 // max(1, bytes_of(1, self.structure, dtype))))
        self.rows = torch.empty(count, self.structure.dim, dtype=dtype)

    @property
    def used(self) -> int:
        return self.posterior.used if isinstance(self.posterior, Stream) else self.seen

    def next(self, n: int) -> X:
        if isinstance(self.posterior, Draws):
            self.seen += n
            index = torch.randint(self.posterior.count, (n,), generator=self.generator)
            return self.posterior.take(index)
        draws = self.posterior.next(n)
        # reservoir sampling: the i-th draw takes a random one of i places, if there is such
        number = torch.arange(self.seen, self.seen + n)
        place = torch.rand(n, dtype=torch.float64, generator=self.generator) * (number + 1)
        place = torch.where(number < len(self.rows), number, place.long())
        self.seen += n
        sources = {int(place[i]): int(i) for i in (place < len(self.rows)).nonzero()[:, 0]}
        if sources:
            flat = self.structure.flatten(draws)[[*sources.values()]]
            self.rows[[*sources]] = flat.detach().to(self.rows)
        return draws

    def recorded(self) -> Draws | None:
        r"""All stored draws, or those of a stream that were recorded, if it gave any."""
        if isinstance(self.posterior, Draws) or not self.seen:
            return self.posterior if isinstance(self.posterior, Draws) else None
        draws = Draws.one_chain(self.structure.unflatten(self.rows[: self.seen]))
        return draws.to(self.posterior.device)

    def stateful_parts(self) -> dict[str, Any]:
        return {"stream": self.posterior} if isinstance(self.posterior, Stream) else {}


def stored_draws(posterior: Draws | Stream, count: int, short: bool = False) -> Draws:
    r"""Stored draws; of a stream its next ones, or `StreamEnded`; or, if `short`, what is left."""
    if isinstance(posterior, Draws):
        return posterior
    return Draws.one_chain(posterior.next(count, short))


def is_online(online: bool | str, draws: Draws | Stream) -> bool:
    r"""Whether to use one draw per input; "auto" depends on the kind and size of the draws."""
    if isinstance(draws, Stream) and online is False:
        raise ArgumentError("online", False, "True or 'auto' for a stream, which is not kept")
    if online == "auto" and isinstance(draws, Draws):
        return bytes_of(draws.count, draws.structure, draws.dtype) > IN_MEMORY
    return isinstance(draws, Stream) or bool(online)


def bytes_of(count: int, structure: Structure, dtype: torch.dtype) -> int:
    r"""The bytes of so many draws."""
    return count * structure.dim * dtype.itemsize


@dataclass(frozen=True)
class Request:
    r"""The arguments of `condense` after they were read."""

    draws: Any  # Draws or a Stream; None beside predictions
    predict: Any  # a function of a draw; None likewise
    inputs: object
    student: nn.Module | None
    components: int | str
    support: object  # of the bag's variables
    weighted: bool
    preset: str
    held_out: object  # inputs of the user's own, or None
    held_out_fraction: float | str
    pool: int | str | None
    samples: int
    noise: float
    joint: bool
    training: Training

    @property
    def count(self) -> int:
        r"""The number of components, where covariances do not decide it."""
        return 10 if self.components == "auto" else int(self.components)

    @property
    def device(self) -> torch.device:
        return choose_device(self.training.device)

    @cached_property
    def dtype(self) -> torch.dtype:
        r"""The student's floating type, or that of the user's tensors, or torch's default."""
        values: list[object] = [] if self.student is None else list(self.student.parameters())
        x = self.inputs.x if isinstance(self.inputs, Dataset) else self.inputs
        values += list(x.values()) if isinstance(x, dict) else [x]
        values += list(self.draws.parts.values()) if self.draws is not None else []
        dtypes = (v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point())
        return next(dtypes, torch.get_default_dtype())

    def bind(self, x: X | None) -> tuple[PredictFunction, Draws | Stream]:
        r"""A function checked at a few draws, and draws that are converted when they are taken."""
        draws = self.draws.to(self.device, self.dtype)
        if isinstance(draws, Stream):
            return PredictFunction(self.predict, draws.peek(8), x), draws
        some = draws.take(torch.linspace(0, draws.count - 1, min(8, draws.count)).long())
        return PredictFunction(self.predict, some, x), draws


def diagnose(draws: Draws | Stream) -> Diagnostics | None:
    r"""R̂ and effective sizes of draws, with a warning if there are reasons to distrust them."""
    diagnostics = draws.diagnostics()
    if diagnostics is not None and diagnostics.reasons:
        warn(f"posterior: {'; '.join(diagnostics.reasons)}")
    return diagnostics


class Average(nn.Module):
    r"""log ⟨p(y|x, w)⟩ over blocks of stored draws w: of classes y, (n, K), or at y, (n,)."""

    flat: Tensor
    next = None  # nothing is drawn

    def __init__(self, predict: PredictFunction, draws: Draws, pairs: bool = False) -> None:
        super().__init__()
        self.predict, self.structure, self.pairs = predict, draws.structure, pairs
        self.output_form = "log_density" if pairs else "log_probabilities"
        self.register_buffer("flat", draws.flat, persistent=False)

    def forward(self, x: X) -> Tensor:
        blocks = [self.logs(x, block) + math.log(share) for block, share in self.blocks(rows(x))]
        return blocks[0] if len(blocks) == 1 else torch.stack(blocks).logsumexp(0)

    def blocks(self, n: int) -> Iterator[tuple[Tensor, float]]:
        r"""Rows of draws (size, dim), with the share of all draws that they are."""
        count, draw_bytes = len(self.flat), n * self.predict.numbers * self.flat.element_size()
        pieces = max(1, math.ceil(count * draw_bytes / AT_ONCE))
        for block in self.flat.split(math.ceil(count / pieces)):
            yield block, len(block) / count

    def logs(self, x: X, block: Tensor) -> Tensor:
        r"""The logarithm of the average over a block of draws."""
        draws = self.structure.unflatten(block)
        if not self.pairs:
            return class_logs(average(self.predict.stacked(draws, x)))
        pair = unpair(x)
        logs = self.predict.stacked(draws, pair.x).log_prob(pair.y)
        return logs.logsumexp(0) - math.log(len(block))


class BlockView(View):
    r"""An `Average` at a batch, whose derivatives are taken block by block too.

    ∂log t = Σ_b w_b ∂log t_b with w_b the share of block b in t: memory holds one block at a time.
    """

    model: Average

    def _linear(self, domain: str) -> Any:
        blocks = list(self.model.blocks(rows(self.x)))
        if len(blocks) == 1:
            return super()._linear(domain)
        outputs = self.outputs(domain)

        def pull(cotangent: Tensor) -> Any:
            total: dict[str, Tensor] = {}
            for block, share in blocks:
                part = lambda x, block=block: self.model.logs(x, block)  # noqa: E731
                values, back = View(part, self.x, self.form)._linear(domain)
                weight = share if domain == "plain" else share * (values - outputs).exp()
                slopes = back(cotangent * weight)[0]
                total = {name: total.get(name, 0) + slope for name, slope in slopes.items()}
            return (total,)

        return outputs, pull


class OneDraw:
    r"""log p(y|x, w) of all classes y, (n, K), with one draw w per input, or a mean of `share`."""

    output_form = "log_probabilities"

    def __init__(self, predict: PredictFunction, source: FreshDraws, share: int = 1) -> None:
        self.predict, self.share = predict, share
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict
        self.next = source.next

    def __call__(self, x: X, drawn: X | None = None) -> Tensor:
        n = rows(x)
        drawn = self.next(n) if drawn is None else drawn
        share = min(self.share, n)
        if share == 1:
            return class_logs(self.predict.paired(drawn, x))
        places = torch.arange(n, device=leaves(x)[0].device)
        index = ((places + places[:share, None]) % n).flatten()  # (share · n,)
        draws = map_tensors(lambda part: part[index], drawn)
        repeated = map_tensors(lambda part: part.repeat(share, *[1] * (part.ndim - 1)), x)
        logs = class_logs(self.predict.paired(draws, repeated)).unflatten(0, (share, n))
        return logs.logsumexp(0) - math.log(share)


class PosteriorTeacher(Teacher):
    r"""Predictions of draws; a function that torch cannot map is called outside the step."""

    source: Any  # an `Average` or `OneDraw`

    def __init__(self, source: Average | OneDraw) -> None:
        self.predict, self.opaque = source.predict, not source.predict.vmapped
        draw, differentiable = (None, False) if self.opaque else (source.next, None)
        exact = isinstance(source, Average)
        super().__init__(source, exact=exact, draw=draw, differentiable=differentiable)

    @torch.no_grad()
    def prepare(self, batch: Batch) -> Any:
        return self.source(batch.x) if self.opaque else super().prepare(batch)

    def view(self, batch: Batch, drawn: Any = None) -> View:
        if self.opaque:
            targets = self.prepare(batch) if drawn is None else drawn
            return View(lambda x: targets, batch.x, self.form)
        if isinstance(self.source, Average):
            return BlockView(self.source, batch.x, self.form)
        return super().view(batch, drawn)

    def refuse_derivatives(self, loss: str) -> None:
        self.predict.refuse_derivatives(loss)
        super().refuse_derivatives(loss)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.source.state_dict())

    def __repr__(self) -> str:
        average = isinstance(self.source, Average)
        return f"the average over {len(self.source.flat):,} draws" if average else "a draw an input"


JOINT = (
    "sample: a condensed posterior draws each input independently. The samples of each single "
    "input are right; sums, differences, maxima and other joint quantities of several inputs are "
    "not, since what the inputs share through one posterior draw is lost. For these, predict all "
    "inputs with each of the posterior's own draws"
)


class WarnOnce(set[str]):
    r"""A warning that is given at most once for a bag or a result."""

    def __call__(self, message: str) -> None:
        if message not in self:
            self.add(message)
            hint = "filter lb.PseudoDrawWarning to silence this"
            warn(f"{message} ({hint}).", PseudoDrawWarning)


class _Marginal:
    r"""Adds a warning of joint samples at several inputs to a distribution."""

    once: WarnOnce | None = None
    batch_shape: torch.Size

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        if self.once is not None and self.batch_shape.numel() > 1:
            self.once(JOINT)
        return super().sample(shape, generator)  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        fields: Any = self
        return type(self).__bases__[1], tuple(fields)


@cache
def _with_warning(base: type[Any]) -> type[Any]:
    r"""The same kind of distribution, by the same name, with the warning."""
    about = {"__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (_Marginal, base), about)


def marginal(prediction: Any, once: WarnOnce) -> Any:
    r"""A student's distribution, which warns when it is sampled at several inputs together."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    plain = not isinstance(prediction, Distribution) or isinstance(prediction, _Marginal)
    if plain or traced or torch._C._are_functorch_transforms_active():
        return prediction
    kind: Any = type(prediction)
    tagged = _with_warning(kind)(*prediction)
    tagged.once = once
    return tagged
