r"""A target and a proposal, evaluated and sampled in full precision."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from limbeck.arguments import whole_number
from limbeck.arrays import full_precision, tensor_float
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.inputs.generated import SeededCall, parameters_of
from limbeck.normalization.exact import place_of
from limbeck.normalization.repeatability import EVENTS, check_repeatable, compare
from limbeck.supports import Support

__all__ = ["Captured", "Densities", "Logs", "Proposal", "as_proposal"]


class Captured:
    r"""Advances chains in place, beside whatever else the GPU is doing.

    Factors of float32 products are rounded to TF32, as in training; estimates advance their
    chains elsewhere, at full precision.

    Arguments:
        target: A target whose `advance` never waits for the GPU.
        x: The chains, which stay where they are.
        sweeps: Sweeps at each call.
        generator: Where random numbers come from; it goes on as if nothing were captured.
    """

    def __init__(self, target: Any, x: Tensor, sweeps: int, generator: torch.Generator) -> None:
        self.stream = torch.cuda.Stream(x.device)
        self._asked, self._done = torch.cuda.Event(), torch.cuda.Event()
        self._pending = False
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(generator)
        state = generator.get_state()
        self.stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.stream), tensor_float(), torch.no_grad():
            target.advance(x, sweeps, generator)  # so that libraries have chosen their kernels
        self.stream.synchronize()
        with torch.cuda.graph(self._graph, stream=self.stream), tensor_float(), torch.no_grad():
            x.copy_(target.advance(x, sweeps, generator))
        generator.set_state(state)

    def __call__(self) -> None:
        r"""Start on the next sweeps, once what was asked for before is done."""
        here = torch.cuda.current_stream(self.stream.device)
        self._asked.record(here)
        self._asked.wait(self.stream)
        torch.cuda.set_stream(self.stream)  # a context manager costs as much as the replay
        try:
            self._graph.replay()
        finally:
            torch.cuda.set_stream(here)
        self._done.record(self.stream)
        self._pending = True

    def wait(self) -> None:
        r"""Make whatever is asked for from now on wait for the chains."""
        if self._pending:
            self._done.wait(torch.cuda.current_stream(self.stream.device))
            self._pending = False


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
                expected = "a student or distribution with log_prob(x) and sample(n)"
                raise ArgumentError("proposal", received, expected)
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


BLOCK = 2**23
r"""Numbers of events that are evaluated together."""


LOOK = 8
r"""Samples of a proposal that are looked at before anything runs."""


class Logs(NamedTuple):
    r"""log p̃(x) and log p̃(x) − log q(x) at events, of any one shape, in float64.

    The second is +∞ where the proposal has no mass, and −∞ where the target has none.
    """

    target: Tensor
    ratio: Tensor

    def cpu(self) -> Logs:
        return Logs(self.target.cpu(), self.ratio.cpu())


class Densities:
    r"""A target and, if there is one, a proposal over the same support.

    Arguments:
        target: What follows `limbeck.models.energy.Target`.
        proposal: A student or a distribution; None where none is needed.
        seed: Seeds all that is drawn. The streams have names, so that they differ from one another
            and from those that a student was fitted with.

    Attributes:
        device: Where the target lives, and chains run.
        dtype: The floating type of events.
    """

    def __init__(self, target: Any, proposal: Any = None, seed: int = 0) -> None:
        self.target = target
        self.support: Support = target.support
        self.seed = whole_number("seed", seed, "a whole number from 0", least=0)
        self.device, self.dtype = place_of(target)
        self._proposal = None if proposal is None else as_proposal(proposal)
        if self._proposal is not None:
            self._check_proposal(self._proposal)

    @property
    def proposal(self) -> Proposal:
        if self._proposal is None:
            expected = "a student or distribution with log_prob(x) and sample(n)"
            raise ArgumentError("proposal", None, expected)
        return self._proposal

    @property
    def exact(self) -> bool:
        r"""Whether the target says that its sweeps leave it invariant."""
        return bool(getattr(self.target, "exact", True))

    def generator(self, stream: str) -> torch.Generator:
        r"""A new generator on the target's device, for one purpose."""
        digest = hashlib.sha256(f"limbeck log_partition {stream} {self.seed}".encode()).digest()
        seed = int.from_bytes(digest[:7], "little")
        return torch.Generator(self.device).manual_seed(seed)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        r"""Events (n, *shape) of the proposal, where the target expects them."""
        x = self.proposal.sample(n, generator)
        if not x.is_floating_point():
            x = x.to(self.dtype)
        return self.support.check(x, "proposal").to(self.device, self.dtype)

    def log_target(self, x: Tensor) -> Tensor:
        r"""log p̃(x), (n,), in float64."""
        log = self._blocks(self.target.log_unnormalized, x, "target")
        _refuse(log.isnan() | (log == math.inf), log, "target")
        return log

    def logs(self, x: Tensor) -> Logs:
        r"""Both log densities at events (n, *shape)."""
        target, q = self.log_target(x), self._blocks(self.proposal.log_prob, x, "proposal")
        _refuse(q.isnan() | (q == math.inf), q, "proposal")
        neither = (target == -math.inf) & (q == -math.inf)
        ratio = torch.where(neither, -math.inf, target - q)
        return Logs(target, ratio)

    def drawn(self, n: int, stream: str) -> tuple[Tensor, Logs]:
        r"""Samples of the proposal (n, *shape) and their log densities, on the CPU."""
        x = self.sample(n, self.generator(stream))
        check_repeatable(self.target.log_unnormalized, x, "target")
        logs = self.logs(x).cpu()
        nowhere = int((logs.ratio == math.inf).sum())
        if nowhere or (logs.ratio == -math.inf).all():
            what = "proposal" if nowhere else "target"
            received = f"zero density at {nowhere or n:,} of {n:,} samples of the proposal"
            raise ArgumentError(what, received, f"a {what} with mass there")
        return x, logs

    @contextmanager
    def at_work(self) -> Iterator[None]:
        r"""No gradients, no dropout, full precision; afterwards all is as it was.

        The target must have the same values at the end as at the beginning.
        """
        with self._modes():
            x = self.support.start(EVENTS, self.generator("repeated"), self.device, self.dtype)
            before = check_repeatable(self.target.log_unnormalized, x, "target")
            yield
            compare(before, self.target.log_unnormalized(x), "target")

    @contextmanager
    def _modes(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast(self.device.type, enabled=False))
            stack.enter_context(full_precision())
            stack.enter_context(evaluating(self.target))
            if self._proposal is not None:
                stack.enter_context(evaluating(self._proposal.model))
            yield

    @torch.no_grad()
    def _blocks(self, function: Any, x: Tensor, argument: str) -> Tensor:
        rows = max(1, BLOCK // self.support.size)
        found = [function(part) for part in x.split(rows)]
        for part, log in zip(x.split(rows), found, strict=True):
            if not isinstance(log, Tensor) or log.shape != (len(part),):
                kind = tuple(log.shape) if isinstance(log, Tensor) else type(log).__name__
                received = f"log densities {kind} of {len(part)} events"
                raise ArgumentError(argument, received, f"a tensor of shape ({len(part)},)")
        return torch.cat(found).double()

    def _check_proposal(self, proposal: Proposal) -> None:
        own = proposal.support
        if own is not None and own != self.support:
            raise ArgumentError("proposal", f"one over {own!r}", f"one over {self.support!r}")
        with self._modes():
            self.logs(self.sample(LOOK, self.generator("look")))
            x = self.sample(EVENTS, self.generator("repeated"))
            check_repeatable(proposal.log_prob, x, "proposal")


def _refuse(bad: Tensor, log: Tensor, argument: str) -> None:
    if count := int(bad.sum()):
        received = f"log densities such as {log[bad][0].item()} at {count:,} of {len(log):,} events"
        raise ArgumentError(argument, received, "numbers, or −∞ where there is no mass")
