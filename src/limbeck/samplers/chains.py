r"""Chains of a target, side by side: where they start, how they move, and the draws they give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck.arrays import Batch, float_tensor, tensor_float
from limbeck.errors import ArgumentError, CheckpointError
from limbeck.inputs.base import Inputs
from limbeck.progress import tracked
from limbeck.samplers.diagnostics import acceptance_rate
from limbeck.storage.files import differences
from limbeck.supports import Support

SCHEMES = ("all", "block")
KERNELS = ("target", "metropolis", "mixed")
LONGEST_BURN_IN = 4096  # steps at the last test of whether chains still depend on their start
FINAL_SWEEPS = 10  # after the last step of Metropolis: they must change nothing


@runtime_checkable
class Target(Protocol):
    r"""An unnormalised density p̃(x) = Z p(x) over a `support` that chains can run on.

    A target may also have

    * `start(n, generator)`: events (n, *shape) to start chains from. Default: the support's;
    * `path()`: a `Path` from a distribution with a known normaliser, for annealing;
    * `exact = False`: `advance` leaves the density only approximately invariant, so that results
      from its samples are marked as doubtful.
    """

    @property
    def support(self) -> Support: ...

    def log_unnormalized(self, x: Tensor, /) -> Tensor:
        r"""log p̃(x), (n,), of a batch of events (n, *shape)."""

    def advance(self, x: Tensor, sweeps: int, generator: torch.Generator, /) -> Tensor:
        r"""Chains (n, *shape) after some sweeps, which leave p invariant, as a new tensor."""


class Logs(NamedTuple):
    r"""log p̃(x) and log p̃(x) − log q(x) at events, of any one shape, in float64."""

    target: Tensor
    ratio: Tensor  # +∞ where the proposal has no mass, −∞ where the target has none

    def cpu(self) -> Logs:
        return Logs(self.target.cpu(), self.ratio.cpu())


class Draws(NamedTuple):
    r"""Draws of chains, and log densities on the way to them."""

    x: Tensor  # (chains, draws, *shape)
    logs: Logs  # (chains, draws), at the draws
    start: Logs  # (chains,), where the chains began
    early: Logs  # (chains,), after a quarter of the burn-in; Metropolis: before the last sweeps
    steps: int  # of each chain before its first draw
    sweeps: int  # of single chains in all
    acceptance: float  # share of the proposal's events that were accepted; NaN if none was tried
    moved: bool  # whether any chain is elsewhere than where it started


class Chains(Inputs):
    r"""Chains of a target side by side. As a source of inputs, a block of them is a batch.

    Samples in a batch are of different chains, hence independent. Chains are used in turn.

    Arguments:
        target: What the chains run on: `support`, `log_unnormalized`, `advance`.
        chains: The number of chains, at least the size of a batch. Default: 2000.
        scheme: Which chains advance at a draw: "all", or the "block" about to be used, which is
            cheap, but needs more sweeps until its events are new. Default: "all".
        sweeps: Sweeps at each draw. Default: 1.
        burn_in: Sweeps of all chains before the first draw. Default: 2000.
        start: Events (m, *shape) to start from, in turn. Default: the target's or its support's.
        seed: The generator's seed. Default: the seed of the distillation.
        progress: Whether the burn-in shows a bar, if a terminal is there. Default: True.

    Attributes:
        x: The chains (chains, *shape).
        sweeps_done: Sweeps of single chains so far, burn-in included.
    """

    STATE = ("_x", "place", "sweeps_done", "burnt")
    _x: Tensor | None  # at a fixed address once it exists
    _captured: CapturedAdvance | None
    place: int  # of the next chain to use
    sweeps_done: int
    burnt: bool
    densities: Any  # `normalization.densities.Densities`, of chains for an estimate

    @arg.checked_arguments
    def __init__(
        self, target: arg.UserObject[Target], chains: arg.Count = 2000, *,
        scheme: Annotated[str, arg.Choice(*SCHEMES)] = "all", sweeps: arg.Count = 1,
        burn_in: arg.CountFromZero = 2000, start: Tensor | None = None,
        seed: arg.Seed | None = None, progress: arg.Flag = True,
    ) -> None:  # fmt: skip
        super().__init__(seed)
        support = getattr(target, "support", None)
        if not isinstance(support, Support) or not callable(getattr(target, "advance", None)):
            expected = "a target with a support and advance(x, sweeps, generator)"
            raise ArgumentError("target", f"an object of type {type(target).__name__}", expected)
        self.target, self.support, self.scheme = target, support, scheme
        self.count, self.sweeps, self.burn_in = chains, sweeps, burn_in
        self.start = None if start is None else support.check(start, "start").detach()
        if self.start is not None and not len(self.start):
            raise ArgumentError("start", "0 events", "one or more events")
        self.progress = progress
        self.tried, self.accepted = 0, torch.zeros((), dtype=torch.int64)  # jumps
        self._restart()
        self._logs: Logs | None = None
        self._proposed: list[Tensor] = []

    @classmethod
    def at(
        cls, densities: Any, x: Tensor, generator: torch.Generator,
        progress: bool = False,
    ) -> Chains:  # fmt: skip
        r"""Chains for an estimate, from events x (chains, *shape); they may jump too."""
        chains = cls(densities.target, len(x), burn_in=0, progress=progress)
        chains.densities, chains.device, chains.generator = densities, x.device, generator
        chains._x, chains.burnt = x.clone(), True
        return chains

    @property
    def x(self) -> Tensor:
        if self._x is None:
            like = float_tensor(self.target, None)
            dtype = self.dtype if like is None else like.dtype
            with torch.no_grad():
                if self.start is None:
                    x = own_starts(self.target, self.count, self.generator, self.device, dtype)
                else:
                    x = self.start[torch.arange(self.count) % len(self.start)]
                self._x = x.to(self.device, dtype, copy=True)
        if self._captured is not None:
            self._captured.wait()
        return self._x

    def draw(self, n: int) -> Tensor:
        r"""The next n chains, (n, *shape), advanced by the scheme."""
        if n > self.count:
            raise ArgumentError("batch_size", n, f"at most {self.count}, the number of chains")
        if not self.burnt:
            self.sweep(self.burn_in, "burning in")
            self.burnt = True
            self._check_events()
        x = self.x
        end, beyond = self.place + n, max(0, self.place + n - self.count)
        block = torch.cat([x[self.place : end], x[:beyond]])
        if self.scheme == "block":
            block = self._advanced(block, self.sweeps)
            x[self.place : end], x[:beyond] = block[: n - beyond], block[n - beyond :]
            self.sweeps_done += n * self.sweeps
        elif x.is_cuda and getattr(self.target, "capturable", False):
            if self._captured is None:
                self._captured = CapturedAdvance(self.target, x, self.sweeps, self.generator)
            self._captured()  # for the next draw: the GPU has until then
            self.sweeps_done += self.count * self.sweeps
        else:
            self.advance(self.sweeps)
        self.place = end % self.count
        return block.to(dtype=self.dtype)

    def build(self, drawn: Tensor) -> Batch:
        return Batch(drawn)

    def probe(self, n: int) -> Batch:
        r"""A few chains as they are: where they start, if there was no draw yet."""
        return Batch(self.x[:n].clone().to(dtype=self.dtype))

    def to(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().to(device, dtype, seed)
        if isinstance(self.target, nn.Module):
            self.target.to(device)

    def _restart(self) -> None:
        self.place, self.sweeps_done, self.burnt = 0, 0, False
        self._x = self._captured = None

    def state_dict(self) -> dict[str, Tensor]:
        _ = self.x  # which may draw
        settings = self._settings() | {"scheme": SCHEMES.index(self.scheme)}
        return super().state_dict() | {"settings": torch.tensor(list(settings.values()))}

    def _settings(self) -> dict[str, Any]:
        settings = {"chains": self.count, "scheme": self.scheme}
        return settings | {"sweeps": self.sweeps, "burn_in": self.burn_in}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        settings, here = self._settings(), {"shape": tuple(self.x.shape)}
        saved = dict(zip(settings, state["settings"].tolist(), strict=True))
        saved |= {"scheme": SCHEMES[saved["scheme"]], "shape": tuple(state["x"].shape)}
        if changed := differences(saved, settings | here):
            raise CheckpointError(f"checkpoint: it is of other chains: {'; '.join(changed)}")
        super().load_state_dict(state)
        self._captured = None  # which moves the chains that there were

    def _check_events(self) -> None:
        r"""Refuse chains that left the support, or stand where the density is not a number > 0."""
        self.support.check(self.x, "target.advance")
        density = getattr(self.target, "log_unnormalized", None)
        with torch.no_grad():
            infinite = 0 if density is None else int((~density(self.x).isfinite()).sum())
        if infinite:
            received = f"a log density that is not finite at {infinite:,} of {self.count:,} chains"
            expected = "finite ones after the burn-in; a start where the target has mass may help"
            raise ArgumentError("target", received, expected)

    def sweep(self, count: int, label: str = "moving chains") -> None:
        r"""Advance all chains, in pieces with a bar. Like every move, it leaves p invariant."""
        for done in tracked(range(0, count, 10), label, self.progress):
            self.advance(min(10, count - done))

    @arg.checked_arguments
    def advance(self, sweeps: arg.CountFromZero = 1) -> None:
        r"""Advance all chains by the target's own sweeps."""
        self.x.copy_(self._advanced(self.x, sweeps))
        self._logs = None
        self.sweeps_done += sweeps * self.count

    def _advanced(self, x: Tensor, sweeps: int) -> Tensor:
        with torch.no_grad():
            moved = self.target.advance(x, sweeps, self.generator)
        if not isinstance(moved, Tensor) or moved.shape != x.shape:
            received = f"chains of shape {tuple(getattr(moved, 'shape', ()))} from advance"
            raise ArgumentError("target", received, f"the shape given, {tuple(x.shape)}")
        return moved

    def jump(self, ahead: int = 1) -> None:
        r"""A step of independence Metropolis, the first of `ahead`: to an event of q, or not."""
        n = self.count
        if not self._proposed:  # a proposal gives many samples at once more quickly
            rounds = min(ahead, max(1, 2**15 // n))
            self._proposed = list(self.densities.sample(rounds * n, self.generator).split(n))
        y = self._proposed.pop()
        here, there = self.logs(), self.densities.logs(y)
        uniform = torch.rand(n, generator=self.generator, device=y.device, dtype=torch.float64)
        # Events without mass are left at once, those without density in the proposal never.
        better = (there.ratio - here.ratio).exp() > uniform
        taken = better & (here.ratio < math.inf) | (here.target == -math.inf)
        self.x.copy_(torch.where(taken.view(-1, *[1] * (y.dim() - 1)), y, self.x))
        self._logs = Logs(*(torch.where(taken, *logs) for logs in zip(there, here, strict=True)))
        self.tried += n
        self.accepted = self.accepted.to(y.device) + taken.sum()

    def move(self, kernel: str, steps: int, sweeps: int = 1, label: str = "moving chains") -> None:
        r"""Steps of one of the `KERNELS`: sweeps, jumps, or each time a jump and `sweeps`."""
        if kernel == "target":
            self.sweep(steps)
            return
        for ahead in tracked(range(steps, 0, -1), label, self.progress):
            self.jump(ahead)
            if kernel == "mixed":
                self.advance(sweeps)

    def leave_start(self, log_ratio: Tensor, sweeps: int = 0) -> None:
        r"""Move chains away from any start, given log p̃ − log q (n,) at samples of the proposal."""
        jumps = math.ceil(5 / max(acceptance_rate(log_ratio), 5 / 300))  # 5 accepted; 300 at most
        # Sweeps lead into the modes that are near; jumps then lead from one mode to another, but
        # not out of one that the proposal misses.
        self.sweep(max(50, sweeps // 2))
        self.move("mixed", jumps, max(1, sweeps // (2 * jumps)), "moving chains from their start")

    def logs(self) -> Logs:
        r"""Log densities where the chains are, (chains,)."""
        if self._logs is None:
            self._logs = self.densities.logs(self.x)
        return self._logs

    def collect(
        self, kernel: str, burn_in: int | None, per_chain: int, thin: int | None,
        converged: Callable[[Logs, Logs, Logs], bool],
    ) -> Draws:  # fmt: skip
        r"""Draws after a burn-in; None moves until chains have `converged`, and then as long again.

        `converged` gets log densities at the start, after a quarter of the steps, and now. Without
        `thin`, a 40th of the burn-in lies between two draws of a chain.
        """
        start, origin = self.logs().cpu(), self.x.clone()
        if burn_in is None:
            steps = 2
            self.move(kernel, steps)
            recent = [self.logs().cpu()] * 3  # after a quarter, a half and all of the steps
            while steps < 8 or (steps < LONGEST_BURN_IN and not converged(start, *recent[::2])):
                self.move(kernel, steps)
                steps, recent = 2 * steps, [*recent[1:], self.logs().cpu()]
            self.move(kernel, steps)
            steps, early = 2 * steps, recent[1]
        else:
            steps, quarter = burn_in, min(burn_in, max(1, burn_in // 4))
            self.move(kernel, quarter)
            early = self.logs().cpu()
            self.move(kernel, steps - quarter)
        if kernel == "metropolis":
            early = self.logs().cpu()
            self.sweep(FINAL_SWEEPS)
        parts, x = list[Logs](), list[Tensor]()
        between = max(1, steps // 40) if thin is None else thin
        for draw in range(per_chain):
            self.move(kernel, between if draw else 0)
            parts.append(self.logs().cpu())
            x.append(self.x.clone())
        logs = Logs(*(torch.stack(part, 1) for part in zip(*parts, strict=True)))
        acceptance = int(self.accepted) / self.tried if self.tried else math.nan
        totals = self.sweeps_done, acceptance, bool((self.x != origin).any())
        return Draws(torch.stack(x, 1), logs, start, early, steps, *totals)


class CapturedAdvance:
    r"""Sweeps of chains in place as a CUDA graph, in parallel with the GPU's other work.

    `advance` must not wait for the GPU.
    """

    def __init__(self, target: Target, x: Tensor, sweeps: int, generator: torch.Generator) -> None:
        self.stream = torch.cuda.Stream(x.device)
        self._ready, self._done, self._pending = torch.cuda.Event(), torch.cuda.Event(), False
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
        r"""Start the next sweeps after all that the current stream has to do so far."""
        here = torch.cuda.current_stream(self.stream.device)
        self._ready.record(here)
        self._ready.wait(self.stream)
        torch.cuda.set_stream(self.stream)  # a context manager costs as much as the replay
        try:
            self._graph.replay()
        finally:
            torch.cuda.set_stream(here)
        self._done.record(self.stream)
        self._pending = True

    def wait(self) -> None:
        r"""Make the current stream wait for the chains."""
        if self._pending:
            self._done.wait(torch.cuda.current_stream(self.stream.device))
            self._pending = False


def own_starts(
    target: Target, n: int, generator: torch.Generator, device: torch.device,
    dtype: torch.dtype | None,
) -> Tensor:  # fmt: skip
    r"""Events (n, *shape) that the target gives chains to start from, or else its support."""
    start = getattr(target, "start", None)
    if not callable(start):
        return target.support.start(n, generator, device, dtype or torch.float32)
    x = target.support.check(start(n, generator), "target.start")
    if len(x) != n:
        raise ArgumentError("target", f"{len(x)} events from start({n})", f"{n} events")
    return x.detach().to(device, dtype)


def start_events(
    densities: Any, start: str | Tensor | tuple[str | Tensor, ...], n: int,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    r"""Events (n, *shape) that chains begin at; a tuple of starts for equal parts of the chains."""
    if isinstance(start, tuple):
        sizes = [(n + place) // len(start) for place in reversed(range(len(start)))]
        parts = zip(start, sizes, strict=True)
        return torch.cat([start_events(densities, part, k, generator) for part, k in parts if k])
    if isinstance(start, Tensor):  # events (m, *shape) to choose from at random
        rows = start.detach() if start.is_floating_point() else start.to(densities.dtype)
        densities.support.check(rows, "start")
        if not len(rows):
            raise ArgumentError("start", "no events", "one or more")
        chosen = torch.randint(len(rows), (n,), generator=generator, device=generator.device)
        return rows.to(densities.device, densities.dtype)[chosen]
    if start == "proposal":
        return densities.sample(n, generator)
    x = own_starts(densities.target, n, generator, densities.device, densities.dtype)
    if densities.support.discrete:
        return x
    # over real numbers, no slice can be taken where the density is zero
    inside = (densities.log_target(x) > -math.inf).nonzero()[:, 0]
    return x[inside[torch.arange(n, device=x.device) % len(inside)]] if len(inside) else x
