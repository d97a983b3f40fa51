r"""Fit a bag to the average over draws, from chosen draws, as far as held-out inputs allow."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from limbeck.arrays import X, as_dict, join, part_of, rows
from limbeck.condensation import teachers
from limbeck.condensation.agreement import posterior_divergence
from limbeck.condensation.condensed import Condensed, check_student, run_steps
from limbeck.condensation.held_out import GIVEN, MEASURED, HeldOut, check_new_inputs, sources_of
from limbeck.condensation.lbfgs import LBFGS
from limbeck.condensation.pool import (
    CANDIDATES,
    FEATURES,
    Covariances,
    DrawBlocks,
    Pool,
    PoolDivergence,
    average_at,
    choose_draws,
    draws_curve,
    neighbours,
    pair_function,
    pair_up,
    ratios,
    worth,
)
from limbeck.condensation.predict_function import OutputFamily, PredictFunction
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import RecordedStream, strata
from limbeck.errors import ArgumentError, user_stacklevel
from limbeck.inputs import Dataset, Loader, Seek
from limbeck.inputs.base import Inputs
from limbeck.losses.values import kl
from limbeck.posteriors.draws import Diagnostics, Draws
from limbeck.posteriors.stream import Stream, StreamBroken
from limbeck.training.config import Training

PREDICTIONS = 3 * 10**7  # single predictions of outcomes that the average at a pool may take
POOL = 4_000, 1_500  # inputs of a pool at most: of classes, and of drawn outcomes
COVARIANCE_INPUTS = 128  # inputs whose covariances are compared, at most
STOP = "the divergence at held-out inputs also decided when to stop"


def can_pool(source: Inputs) -> bool:
    r"""Whether inputs can be drawn once: not from loaders, nor by the loss."""
    return not any(isinstance(part, Loader | Seek) for part in sources_of(source))


def _sizes(function: PredictFunction, draws: int, components: int, pool: int | str) -> int:
    r"""The number of inputs of a pool, so that steps and the average over draws are affordable."""
    if isinstance(pool, int):
        return pool
    classes = function.classes
    affordable = PREDICTIONS // (5 * draws if classes is None else draws * classes // 3 + 1)
    at_once = 2 * 10**7 // (components * function.numbers)
    return max(500, min(POOL[classes is None], affordable, at_once))


def _rows_of(data: Dataset, most: int, generator: torch.Generator) -> Tensor:
    index = torch.arange(len(data), device=data.device)
    if data.weight is not None and bool((data.weight > 0).any()):
        index = index[data.weight > 0]
    order = torch.randperm(len(index), generator=generator)[:most]
    return index[order.to(index.device)]


def _with_neighbours(x: X, size: int, noise: float, generator: torch.Generator) -> tuple[X, Tensor]:
    r"""Rows, and neighbours of them up to a number; and the row that each started from."""
    origin, near = torch.arange(rows(x)), neighbours(x, size - rows(x), noise, generator)
    if near is None:
        return x, origin
    return join([x, near[0]]), torch.cat([origin, near[1].cpu()])


def fit_bag(
    training: Training, bag: SampleBag, function: PredictFunction, draws: Draws | Stream,
    split: HeldOut, pool: int | str, noise: float, samples: int, joint: bool,
    diagnostics: Diagnostics | None,
) -> Condensed:  # fmt: skip
    r"""The fit, and its result; see `limbeck.condense` for the arguments."""
    seed, device, dtype = training.seed, bag.free.device, bag.free.dtype
    generator = torch.Generator().manual_seed(seed + 4)
    classes = function.classes is not None
    source: Draws | RecordedStream
    if isinstance(draws, Draws):
        source = draws.to(device, dtype)
    else:
        source = RecordedStream(draws, seed + 3)
    blocks = DrawBlocks(source, samples)
    size = _sizes(function, blocks.count, bag.components, pool)
    given, weight = 0, None
    if isinstance(data := split.training, Dataset):
        index = _rows_of(data, max(1, size // 2), generator)
        batch = data.build(index)
        x, origin = _with_neighbours(batch.x, size, noise, generator)
        weight = None if batch.weight is None else batch.weight[origin.to(index.device)]
        given = len(index)
    else:
        batch = data(size)
        x, weight, given = batch.x, batch.weight, size
    new = _held_out_inputs(split, max(100, size // 4), noise, generator)
    new = x if new is None else new  # with other outcomes
    marginal, singles, pairs = function, (x, new), None
    if joint:
        x, new, pairs = pair_up(x, generator), pair_up(new, generator), pair_function(bag.predict)
        function = PredictFunction(pairs, draws.structure.unflatten(bag._flat.detach()[:8]), x)
        given, weight, classes = rows(x), None, False
    everything = join([x, new])
    outcomes = PREDICTIONS // (blocks.count * rows(everything))
    outcomes = max(16, min(256, outcomes, 40_000 // rows(everything)))
    targets = average_at(function, blocks, everything, outcomes, generator)
    finite = targets.pool.log_t.isfinite().flatten(1).all(1).cpu()
    if bad := int((~finite[:given]).sum()):
        received = f"log probabilities that are NaN or infinite at {bad:,} of {given:,} inputs"
        raise ArgumentError("predict", received, "finite ones at outcomes of the draws")
    place = torch.arange(len(finite))
    inside = place[finite & (place < rows(x))]
    outside = place[finite & (place >= rows(x))]
    trained = targets.pool.take(inside)
    watched = targets.pool.take(outside) if len(outside) else trained
    recorded = source if isinstance(source, Draws) else source.recorded()
    assert recorded is not None
    most = min(recorded.count, CANDIDATES)
    candidates = recorded.take(strata(recorded.count, most, generator))
    ratio, outcome_weight = ratios(function, candidates, trained, generator, FEATURES)
    chosen = choose_draws(ratio, outcome_weight, bag.components, classes)
    bag.start_at(draws.structure.flatten(candidates)[chosen])
    some = [part_of(part, 0, COVARIANCE_INPUTS) for part in singles if joint]
    covariances: list[Any] = [Covariances.of(marginal, recorded, part) for part in some] or [None]
    wrapped = PoolDivergence(bag, classes, pairs, covariances[0])
    start = {name: value.clone() for name, value in bag.state_dict().items()}
    before = _error(wrapped, watched)
    metrics = {k: lambda _, f=f: f(bag) for k, f in (training.metrics or {}).items()}
    settings = replace(
        training, update=LBFGS(), batch_size=rows(trained.x), engine="eager",
        held_out=watched.data(), patience=training.patience or 8, metrics=metrics or None,
    )  # fmt: skip
    weights = None if weight is None else weight[inside.to(weight.device)]
    # nearer than the draws themselves are to the posterior; covariances need all steps
    enough = -math.inf if joint else targets.noise / 4
    run, outcome = run_steps(None, wrapped, trained.data(weights), kl(), settings, enough)
    if run.best and run.plateau is not None and run.plateau.best < before:
        wrapped.load_state_dict(run.best)
    else:  # never worse than the draws that it started from
        bag.load_state_dict(start)
    bag.joint, wrapped.covariances = joint, None
    after = _error(wrapped, watched)
    notes = [*draws.notes, *function.notes]
    if lost := int((~finite).sum()):
        notes.append(f"{lost:,} inputs between rows were left out: predict is not finite there")
    if blocks.end is not None:
        outcome["stop_reason"] += f"; {blocks.end}"
        if isinstance(blocks.end, StreamBroken):
            message = f"{blocks.end}; the student of the draws so far is returned"
            warnings.warn(message, stacklevel=user_stacklevel())
    stored = blocks.count if isinstance(draws, Draws) else recorded.count
    result = Condensed(
        bag, **outcome, diagnostics=diagnostics or teachers.diagnose(draws), notes=notes,
        used=blocks.done, draw_bytes=teachers.bytes_of(stored, draws.structure, dtype),
        head=OutputFamily.of(marginal.example), calling=marginal, posterior=draws,
    )  # fmt: skip
    check_student(result, part_of(singles[0], 0, 8))
    ratio, outcome_weight = ratios(function, candidates, watched, generator, 4 * FEATURES)
    curve = draws_curve(ratio, outcome_weight, classes, generator)
    measure = partial(posterior_divergence, marginal, recorded, result.predict, seed)
    new_inputs = check_new_inputs(split, split.training, measure, seed, STOP, 1e-3)
    result.new_inputs = replace(
        new_inputs, start=before, best=after, worth=worth(curve, after), curve=tuple(curve.items()),
        noise=targets.noise, drift=targets.drift,
        covariance=_covariance_error(bag, covariances[-1]),
    )  # fmt: skip
    return result


@torch.no_grad()
def _covariance_error(bag: SampleBag, covariances: Covariances | None) -> float | None:
    if covariances is None:
        return None
    return float(covariances.error(bag.covariances(covariances.x)))


def _held_out_inputs(
    split: HeldOut, size: int, noise: float, generator: torch.Generator
) -> X | None:
    r"""Inputs that decide when to stop: held-out rows and their neighbours, or fresh inputs."""
    if isinstance(split.source, Dataset):
        x = split.source.build(_rows_of(split.source, MEASURED, generator)).x
        if split.kind == GIVEN:
            return x
        return _with_neighbours(x, max(size, rows(x)), noise, generator)[0]
    if isinstance(split.training, Dataset):  # without held-out rows
        near = neighbours(split.training.x, size, noise, generator)
        return None if near is None else near[0]
    return (split.training if split.source is None else split.source)(size).x


@torch.no_grad()
def _error(wrapped: PoolDivergence, pool: Pool) -> float:
    r"""The mean divergence at a pool."""
    parts: Any = as_dict(pool.data().x)
    blocks = (part_of(parts, start, 1000) for start in range(0, rows(pool.x), 1000))
    return float(torch.cat([-wrapped(block).double() for block in blocks]).mean())
