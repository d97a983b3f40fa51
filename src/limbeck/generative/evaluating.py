r"""Log densities that enter an estimate: in full precision, in blocks, and checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.core.checks import whole_number
from limbeck.core.modes import evaluating
from limbeck.engine.precision import full_precision
from limbeck.errors import ArgumentError
from limbeck.generative.enumeration import place_of
from limbeck.generative.proposal import Proposal, as_proposal
from limbeck.generative.repeatability import EVENTS, check_repeatable, compare
from limbeck.models.supports import Support

__all__ = ["Densities", "Logs"]

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
        target: What follows `limbeck.models.target.Target`.
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
            accepted = "a student or distribution with log_prob(x) and sample(n)"
            raise ArgumentError("proposal", None, accepted)
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
