r"""Parallel chains of a target as a source of inputs: they advance as the distillation runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from limbeck.arguments import whole_number
from limbeck.arrays import Batch
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.inputs.base import Inputs
from limbeck.normalization.densities import Captured
from limbeck.progress import tracked
from limbeck.storage.files import differences
from limbeck.supports import Support

__all__ = ["SCHEMES", "Chains", "Continued"]

SCHEMES = ("all", "block")

AT_ONCE = 10
r"""Sweeps of the burn-in between two movements of the progress bar."""


class Chains(Inputs):
    r"""Chains of a target side by side; a block of them, each in its turn, is a batch.

    Samples in a batch are of different chains, hence independent; a chain comes again after all
    the others have been used. What it has forgotten by then is a question of the scheme:

    * "all": after each draw all chains advance, so a chain comes again after count / n draws and
      as many times the sweeps. On a GPU, where a sweep of many chains costs little more than one
      of few, this is the better one.
    * "block": only the block about to be used advances. With few sweeps it is cheap, but the
      student sees nearly the same events again, and the fit is worse for it.

    Arguments:
        target: What the chains run on: `support`, `log_unnormalized`, `advance`.
        count: The number of chains, at least the size of a batch.
        scheme: "all" or "block".
        sweeps: By how many sweeps chains advance at each draw.
        burn_in: Sweeps of all chains before the first draw.
        start: Events (m, *shape) to start from, used in turn; None asks the target or its support.
        seed: The generator's seed; None takes the seed of the distillation.
        progress: Whether the burn-in shows a bar, if a terminal is there.

    Attributes:
        sweeps_done: Sweeps of single chains so far, burn-in included.
    """

    def __init__(
        self,
        target: Any,
        count: int = 2000,
        *,
        scheme: str = "all",
        sweeps: int = 1,
        burn_in: int = 2000,
        start: Tensor | None = None,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(seed)
        support = getattr(target, "support", None)
        if not isinstance(support, Support) or not callable(getattr(target, "advance", None)):
            expected = "a target with a support and advance(x, sweeps, generator)"
            raise ArgumentError("target", f"an object of type {type(target).__name__}", expected)
        if scheme not in SCHEMES:
            raise ArgumentError.unknown("scheme", scheme, SCHEMES)
        self.target, self.support, self.scheme = target, support, scheme
        self.count = whole_number("chains", count, "a whole number from 1", least=1)
        self.sweeps = whole_number("sweeps", sweeps, "a whole number from 1", least=1)
        self.burn_in = whole_number("burn_in", burn_in, "a whole number from 0", least=0)
        self.start = None if start is None else _checked_start(start, support)
        self.progress = progress
        self.dtype: torch.dtype | None = None  # the student's, once it is known
        self._x: Tensor | None = None  # the chains (count, *shape), at a fixed address once made
        self._captured: Captured | None = None
        self.place, self.sweeps_done, self.burnt = 0, 0, False

    @property
    def exact(self) -> bool:
        r"""Whether the target says that its sweeps leave it invariant."""
        return bool(getattr(self.target, "exact", True))

    def draw(self, n: int) -> Tensor:
        r"""The next n chains, (n, *shape), advanced by the scheme."""
        if n > self.count:
            raise ArgumentError("batch_size", n, f"at most {self.count}, the number of chains")
        x = self._burnt()
        if self.scheme == "all":
            block = self._block(n)
            self._advance_all(x)  # for the next draw: a GPU has until then
            self.sweeps_done += self.count * self.sweeps
        else:
            block = self._advance(self._block(n), self.sweeps)
            self._put(block)
            self.sweeps_done += n * self.sweeps
        self.place = (self.place + n) % self.count
        return block if self.dtype is None else block.to(self.dtype)

    def build(self, drawn: Tensor) -> Batch:
        return Batch(drawn)

    def probe(self, n: int) -> Batch:
        r"""A few chains as they are: where they start, if there was no draw yet."""
        x = self._begun()[:n].clone()
        return Batch(x if self.dtype is None else x.to(self.dtype))

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        self.dtype = dtype
        if isinstance(self.target, nn.Module):
            self.target.to(device)
        self._restart()

    def state_dict(self) -> dict[str, Tensor]:
        x = self._begun().clone()  # before the generator's state, since it may draw
        position = [self.place, self.sweeps_done, int(self.burnt)]
        return super().state_dict() | {
            "chains": x,
            "position": torch.tensor(position),
            "settings": torch.tensor(self._settings()),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        saved, here = _described(state["settings"].tolist()), _described(self._settings())
        if found := differences(saved, here):
            raise CheckpointError(f"checkpoint: it is of other chains: {'; '.join(found)}")
        x, kept = self._begun(), state["chains"]
        if kept.shape != x.shape:
            raise CheckpointError(
                f"checkpoint: the chains in it are {tuple(kept.shape)}, and here {tuple(x.shape)}"
            )
        x.copy_(kept)
        super().load_state_dict(state)
        self.place, self.sweeps_done, burnt = state["position"].tolist()
        self.burnt = bool(burnt)

    def _advance_all(self, x: Tensor) -> None:
        r"""All chains advanced in place; on a GPU beside the step that uses the block."""
        if x.device.type != "cuda" or not getattr(self.target, "capturable", False):
            x.copy_(self._advance(x, self.sweeps))
            return
        if self._captured is None:
            self._captured = Captured(self.target, x, self.sweeps, self.generator)
        self._captured()

    def _advance(self, x: Tensor, sweeps: int) -> Tensor:
        with torch.no_grad():
            moved: Tensor = self.target.advance(x, sweeps, self.generator)
        if not isinstance(moved, Tensor) or moved.shape != x.shape:
            received = f"chains of shape {tuple(getattr(moved, 'shape', ()))} from advance"
            raise ArgumentError("target", received, f"the shape given, {tuple(x.shape)}")
        return moved

    def _restart(self) -> None:
        self._x = self._captured = None
        self.place, self.sweeps_done, self.burnt = 0, 0, False

    def _begun(self) -> Tensor:
        r"""The chains, which are made here if there are none yet."""
        if self._x is None:
            with torch.no_grad():
                self._x = self._first().to(self.device, self._target_dtype(), copy=True)
        if self._captured is not None:
            self._captured.wait()
        return self._x

    def _first(self) -> Tensor:
        if self.start is not None:
            return self.start[torch.arange(self.count) % len(self.start)]
        own = getattr(self.target, "start", None)
        if callable(own):
            return _checked_start(own(self.count, self.generator), self.support, self.count)
        return self.support.start(
            self.count, self.generator, self.device, self._target_dtype() or torch.float32
        )

    def _target_dtype(self) -> torch.dtype | None:
        r"""The floating type that the target computes with; the student's, if it has no own."""
        held: Any = ()
        if isinstance(self.target, nn.Module):
            held = (*self.target.parameters(), *self.target.buffers())
        return next((t.dtype for t in held if t.is_floating_point()), self.dtype)

    def _burnt(self) -> Tensor:
        r"""The chains after their burn-in, which happens once."""
        x = self._begun()
        if not self.burnt:
            rest = [AT_ONCE] * (self.burn_in // AT_ONCE) + [self.burn_in % AT_ONCE]
            for sweeps in tracked(rest, "burning in", self.progress):
                if sweeps:
                    x.copy_(self._advance(x, sweeps))
            self.burnt, self.sweeps_done = True, self.count * self.burn_in
            self._check()
        return x

    def _check(self) -> None:
        r"""Refuse chains that left the support, or stand where the density is not a number > 0."""
        x = self._begun()
        self.support.check(x, "target.advance")
        density = getattr(self.target, "log_unnormalized", None)
        if density is None:
            return
        with torch.no_grad():
            bad = int((~density(x).isfinite()).sum())
        if bad:
            received = f"a log density that is not finite at {bad:,} of {self.count:,} chains"
            expected = "finite ones after the burn-in; a start where the target has mass may help"
            raise ArgumentError("target", received, expected)

    def _block(self, n: int) -> Tensor:
        r"""A copy of the next n chains; after the last comes the first."""
        x, end = self._begun(), self.place + n
        if end <= self.count:
            return x[self.place : end].clone()
        return torch.cat([x[self.place :], x[: end - self.count]])

    def _put(self, block: Tensor) -> None:
        x, before = self._begun(), self.count - self.place
        x[self.place : self.place + len(block)] = block[:before]
        x[: max(0, len(block) - before)] = block[before:]

    def _settings(self) -> list[int]:
        return [self.count, SCHEMES.index(self.scheme), self.sweeps, self.burn_in]


class Continued(Inputs):
    r"""A source that goes on where it stands, where another distillation would start it anew.

    Arguments:
        source: A source that has been placed and seeded.
    """

    def __init__(self, source: Inputs) -> None:
        super().__init__(source.seed)
        self.source = source

    def draw(self, n: int) -> Any:
        return self.source.draw(n)

    def build(self, drawn: Any) -> Batch:
        return self.source.build(drawn)

    def probe(self, n: int) -> Batch:
        return self.source.probe(n)

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        r"""Nothing: it is there already."""

    def state_dict(self) -> dict[str, Tensor]:
        return self.source.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.source.load_state_dict(state)


def _described(settings: list[int]) -> dict[str, Any]:
    count, scheme, sweeps, burn_in = settings
    return {"chains": count, "scheme": SCHEMES[scheme], "sweeps": sweeps, "burn_in": burn_in}


def _checked_start(start: Any, support: Support, count: int | None = None) -> Tensor:
    x = support.check(start, "start")
    if not len(x) or (count is not None and len(x) != count):
        wanted = "one or more" if count is None else f"{count}"
        raise ArgumentError("start", f"{len(x)} events", f"{wanted} events")
    return x.detach()
