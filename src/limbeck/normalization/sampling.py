r"""Draws of the target for an estimate: how many chains, from where, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.arguments import whole_number
from limbeck.arrays import as_part
from limbeck.errors import ArgumentError
from limbeck.normalization.densities import Densities, Logs
from limbeck.normalization.walk import KERNELS, Walk, settle, starts

__all__ = ["Draws", "Plan", "Start", "Starts", "as_start", "draws_of", "plan"]

Start = str | Tensor
r"""Where chains begin: "proposal", "target", or events (m, *shape)."""

Starts = tuple[Start, ...]
r"""Several of them, each for an equal part of the chains."""

Judge = Callable[[Logs, Logs, Logs], bool]
r"""Says whether chains have forgotten their start, from log densities at the start, early, now."""

BURN_IN = 2000
r"""Sweeps by default, as in the source text."""

POLISH = 10
r"""Sweeps after the last step of Metropolis: they must change nothing."""

SHORTEST, LONGEST = 8, 4096
r"""Steps before the first look at whether chains have forgotten their starts, and at the last."""

SECOND = 500
r"""Chains from the second start that come on top of few chains with many draws."""

STARTS = ("proposal", "target")


class Draws(NamedTuple):
    r"""What chains have given.

    Attributes:
        x: The draws, (chains, draws, *shape).
        logs: At the draws, (chains, draws).
        start: Where the chains began, (chains,).
        early: Where they were after a quarter of the burn-in (before the polish, for Metropolis).
        steps: Steps of each chain before its first draw.
        sweeps: Sweeps of single chains in all.
        acceptance: The fraction of the proposal's events that were accepted; NaN if none was tried.
        moved: Whether any chain is elsewhere than where it started.
    """

    x: Tensor
    logs: Logs
    start: Logs
    early: Logs
    steps: int
    sweeps: int
    acceptance: float
    moved: bool


class Plan(NamedTuple):
    r"""How the target is drawn from; `log_partition` says what the fields mean."""

    kernel: str
    start: Start
    second_start: Starts | None
    chains: int
    per_chain: int
    thin: int
    burn_in: int | None


def plan(
    samples: int,
    kernel: str,
    start: Any,
    second_start: Any,
    chains: int | None,
    thin: int,
    burn_in: int | str | None,
) -> Plan:
    r"""A plan of what the user asked for; burn_in is None where the chains decide."""
    if kernel not in KERNELS:
        raise ArgumentError.unknown("kernel", kernel, KERNELS)
    expected = f"a whole number from 1 to {samples}, the number of samples"
    chains = samples if chains is None else whole_number("chains", chains, expected, least=1)
    if chains > samples:
        raise ArgumentError("chains", chains, expected)
    thin = whole_number("thin", thin, "a whole number from 1", least=1)
    if burn_in is None:
        burn_in = BURN_IN if kernel == "target" else "auto"
    expected = "a whole number from 0, or 'auto'"
    steps = None if burn_in == "auto" else whole_number("burn_in", burn_in, expected, least=0)
    start = as_start(start, "start")
    # The starts that limbeck compares with; events that the user gives come on top of them.
    others: Starts = STARTS
    if isinstance(start, str):
        others = tuple(name for name in STARTS if name != start)
    if second_start is None:
        others = ()
    elif not isinstance(second_start, str) or second_start != "auto":
        given = as_start(second_start, "second_start")
        others = others if isinstance(given, str) else (*others, given)
    return Plan(kernel, start, others or None, chains, math.ceil(samples / chains), thin, steps)


def as_start(start: Any, argument: str) -> Start:
    r"""A start that is known by name, or events as a tensor."""
    if isinstance(start, str):
        if start not in STARTS:
            raise ArgumentError(argument, repr(start), f"{STARTS} or events (m, *shape)")
        return start
    if start is None:
        raise ArgumentError(argument, None, f"{STARTS} or events (m, *shape)")
    return as_part(start, argument).values


def draws_of(
    densities: Densities,
    how: Plan,
    log_ratio: Tensor,
    forgotten: Judge,
    progress: bool,
) -> tuple[Draws, Draws | None]:
    r"""Draws from the first start, and from the second one if there is one.

    The second start has a quarter of the chains. Where chains have several draws each, it has some
    of its own, with one draw each.

    Arguments:
        densities: The target and the proposal.
        how: The plan.
        log_ratio: log p̃ − log q (n,) at samples of the proposal.
        forgotten: Judges whether chains have forgotten their start: see `draw`.
        progress: Whether to show bars.
    """
    single = how.per_chain == 1
    second = 0 if how.second_start is None else how.chains // 4 if single else SECOND
    generator = densities.generator("chains")
    x = starts(densities, how.start, how.chains - second * single, generator)
    walk = Walk(densities, x, generator, progress)
    found = draw(walk, how.kernel, how.burn_in, how.per_chain, how.thin, forgotten)
    if lost := int((found.logs.target == -math.inf).sum()):
        received = f"chains at events of zero density ({lost:,} of {found.logs.target.numel():,})"
        raise ArgumentError("target", received, "chains within the target's mass; see start")
    if not second or how.second_start is None:
        return found, None
    generator = densities.generator("chains from the second start")
    others = starts(densities, how.second_start, second, generator)
    walk = Walk(densities, others, generator, progress)
    settle(walk, log_ratio, found.sweeps // len(x))
    return found, draw(walk, "mixed", 0, 1, 1, forgotten)


def draw(
    walk: Walk,
    kernel: str,
    burn_in: int | None,
    per_chain: int,
    thin: int,
    forgotten: Judge,
) -> Draws:
    r"""Draws of chains that run `burn_in` steps first.

    Without a number, chains run until `forgotten(start, early, now)` says that they have forgotten
    their starts, twice as many steps at each look, and then as many again; early is where they were
    after a quarter of the steps.

    Arguments:
        walk: The chains at their start.
        kernel: How they move: one of `KERNELS`.
        burn_in: Steps before the first draw, or None.
        per_chain: Draws of each chain.
        thin: Steps between two draws.
        forgotten: The judge, which sees log densities (chains,).
    """
    start, origin = walk.logs().cpu(), walk.x.clone()
    if burn_in is None:
        steps, early = _until_forgotten(walk, kernel, start, forgotten)
    else:
        steps, quarter = burn_in, min(burn_in, max(1, burn_in // 4))
        walk.go(kernel, quarter)
        early = walk.logs().cpu()
        walk.go(kernel, steps - quarter)
    if kernel == "metropolis":
        early = walk.logs().cpu()
        walk.sweep(POLISH)
    found, x = [walk.logs().cpu()], [walk.x]
    for _ in range(per_chain - 1):
        walk.go(kernel, thin)
        found.append(walk.logs().cpu())
        x.append(walk.x)
    logs = Logs(*(torch.stack(part, 1) for part in zip(*found, strict=True)))
    moved = bool((walk.x != origin).any())
    return Draws(torch.stack(x, 1), logs, start, early, steps, walk.sweeps, walk.acceptance, moved)


def _until_forgotten(walk: Walk, kernel: str, start: Logs, forgotten: Judge) -> tuple[int, Logs]:
    r"""The steps that were made, and where the chains were after a quarter of them."""
    steps = SHORTEST // 4
    walk.go(kernel, steps)
    looks = [walk.logs().cpu()] * 3  # after a quarter, a half and all of the steps
    while steps < LONGEST and not (steps >= SHORTEST and forgotten(start, looks[0], looks[2])):
        walk.go(kernel, steps)
        steps, looks = 2 * steps, [*looks[1:], walk.logs().cpu()]
    walk.go(kernel, steps)
    return 2 * steps, looks[1]
