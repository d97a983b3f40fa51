r"""Fit a bag to the average over draws, from chosen draws, as far as held-out inputs allow."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from limbeck.arrays import X, join, map_tensors, part_of, rows
from limbeck.condensation import held_out, pool
from limbeck.condensation.condensed import Condensed, check_student, run_steps
from limbeck.condensation.held_out import GIVEN, MEASURED, HeldOut, check_new_inputs
from limbeck.condensation.predict_function import OutputFamily, PredictFunction, rows_of
from limbeck.condensation.sample_bag import SampleBag
from limbeck.condensation.teachers import Request, bytes_of, diagnose, stored_draws
from limbeck.errors import ArgumentError, warn
from limbeck.inputs import Dataset, Loader, Seek
from limbeck.inputs.base import Inputs
from limbeck.losses.values import kl
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.stream import Stream, StreamBroken
from limbeck.storage.files import copy_into
from limbeck.training.objective import Objective, Plan
from limbeck.training.update import Progress, Tensors

PREDICTIONS = 3 * 10**7  # single predictions of outcomes that the average at a pool may take
POOL = 4_000, 1_500  # inputs of a pool at most: of classes, and of drawn outcomes
STREAM_BYTES = 2**28  # of the draws of a stream, at most
STOP = "the divergence at held-out inputs also decided when to stop"
JOINT_MARGIN = 1.1  # components of a joint bag, of the least number that covariances need
MEMORY = 20  # past steps that give the curvature
LARGEST_MOVE = 1.0  # root mean square of a step: parameters are in units of deviations


def _pool_size(request: Request, function: PredictFunction, draws: int, components: int) -> int:
    r"""The number of inputs of a pool: steps and the average over draws are affordable."""
    if isinstance(request.pool, int):
        return request.pool
    classes = function.classes
    affordable = PREDICTIONS // (5 * draws if classes is None else draws * classes // 3 + 1)
    at_once = 2 * 10**7 // (components * function.numbers)
    return max(500, min(POOL[classes is None], affordable, at_once))


def can_pool(source: Inputs) -> bool:
    r"""Whether inputs can be drawn once: not from loaders, nor by the loss."""
    return not any(isinstance(part, Loader | Seek) for part in held_out.sources_of(source))


def make_bag(
    function: PredictFunction, draws: Draws | Stream, request: Request, components: int
) -> SampleBag:
    r"""A bag of the posterior's structure."""
    if not function.vmapped:
        received = f"None with a predict that torch cannot map over draws ({function.reason})"
        raise ArgumentError("student", received, "a module; or a predict in torch, for a bag")
    thesis = request.preset == "thesis"
    return SampleBag(
        function.function, draws, components, support=request.support, weighted=request.weighted,
        start="normal" if thesis else "draws", scaled=not thesis, dtype=request.dtype,
        generator=torch.Generator().manual_seed(request.training.seed),
    )  # fmt: skip


def fit_bag(
    request: Request, function: PredictFunction, draws: Draws | Stream, split: HeldOut, steps: int
) -> Condensed:
    r"""The fit, and its result; see `limbeck.condense` for the arguments."""
    training, seed, dtype = request.training, request.training.seed, request.dtype
    generator = torch.Generator().manual_seed(seed + 4)
    most = max(2, min(request.samples, STREAM_BYTES // bytes_of(1, draws.structure, dtype)))
    stored, end = stored_draws(draws, most, short=True), getattr(draws, "end", None)
    covariances, components = None, request.count
    if request.joint:
        # also held-out rows: covariances of a group that is left out cannot be known
        parts = (split.training, None if split.kind == GIVEN else split.source)
        known = [part.x for part in parts if isinstance(part, Dataset)]
        x = join(known) if known else split.training(pool.COVARIANCE_INPUTS).x
        covariances = pool.Covariances.of(function, stored, x)
        if request.components == "auto":
            enough = covariances.components() * JOINT_MARGIN
            components = min(max(components, math.ceil(enough)), stored.count)
    bag = make_bag(function, stored, request, components).to(request.device)
    size = _pool_size(request, function, stored.count, components)
    targets = _Targets.of(function, stored, split, size, request.noise, generator)
    # it starts at draws whose average is near that of all
    most = min(stored.count, pool.CANDIDATES)
    candidates = stored.over_time(most, generator)
    likely = pool.ratios(function, candidates, targets.trained, generator, pool.FEATURES)
    chosen = pool.choose_draws(*likely, bag.components)
    bag._start_at(stored.structure.flatten(candidates)[chosen])
    wrapped = pool.PoolDivergence(bag, targets.trained.classes, covariances)
    start = {name: value.clone() for name, value in bag.state_dict().items()}
    before = float(targets.watched.divergences(bag).mean())
    penalty = float(wrapped.penalty().detach())
    settings = replace(
        training, update=LBFGS(), batch_size=rows(targets.trained.x), engine="eager", steps=steps,
        held_out=targets.watched.data(), patience=training.patience or 8,
    )  # fmt: skip
    # nearer than the draws themselves are to the posterior; covariances need all steps
    enough = -math.inf if request.joint else targets.noise / 4
    data = targets.trained.data(targets.weight)
    run, outcome = run_steps(None, wrapped, data, kl(), settings, enough)
    if not run.plateau.best < before + penalty:
        bag.load_state_dict(start)  # never worse than the draws that it started from
    bag.joint = request.joint
    if end is not None:
        outcome["stop_reason"] += f"; {end}"
        if isinstance(end, StreamBroken):
            warn(f"{end}; the student of the draws so far is returned")
    result = Condensed(
        bag, **outcome, diagnostics=diagnose(draws),
        notes=[*draws.notes, *function.notes, *targets.notes], used=stored.count,
        draw_bytes=bytes_of(stored.count, draws.structure, dtype),
        head=OutputFamily.of(function.example), calling=function, posterior=draws,
    )  # fmt: skip
    check_student(result, part_of(targets.trained.x, 0, 8))
    after = float(targets.watched.divergences(bag).mean())
    likely = pool.ratios(function, candidates, targets.watched, generator, 4 * pool.FEATURES)
    curve = pool.draws_curve(*likely, generator)
    measured: dict[str, Any] = {"start": before, "best": after, "worth": pool.worth(curve, after)}
    if covariances is not None:
        both = covariances, pool.Covariances.of(function, stored, targets.watched.x)
        measured["covariance"] = max(float(each.error(bag).detach()) for each in both)
        measured["needed"] = covariances.components()
    measure = partial(pool.posterior_divergence, function, stored, result.predict, seed)
    seen = split.training if isinstance(split.training, Dataset) else Dataset(targets.trained.x)
    new_inputs = check_new_inputs(split, seen, measure, seed, STOP, 1e-3)
    result.new_inputs = replace(
        new_inputs, curve=tuple(curve.items()), noise=targets.noise, **measured
    )
    return result


class _Targets(NamedTuple):
    r"""The average over draws at the inputs that a bag is trained at, and at others."""

    trained: pool.Pool
    weight: Tensor | None  # of the inputs that it is trained at
    watched: pool.Pool  # decides when to stop
    noise: float  # about the average's own error
    notes: list[str]

    @classmethod
    def of(
        cls, function: PredictFunction, draws: Draws, split: HeldOut, size: int, noise: float,
        generator: torch.Generator,
    ) -> _Targets:  # fmt: skip
        x, weight, given = _inputs(split.training, size, max(1, size // 2), noise, generator)
        new = _held_out_inputs(split, max(100, size // 4), noise, generator)
        new = x if new is None else new  # with other outcomes
        both = join([x, new])
        outcomes = PREDICTIONS // (draws.count * rows(both))
        outcomes = max(16, min(256, outcomes, 40_000 // rows(both)))
        targets, error = pool.average_at(function, draws, both, outcomes, generator)
        # a function may have numbers of another type than the draws
        targets = map_tensors(lambda t: t.to(draws.dtype) if t.is_floating_point() else t, targets)
        finite = targets.log_t.isfinite().flatten(1).all(1).cpu()
        if bad := int((~finite[:given]).sum()):
            received = f"log probabilities that are NaN or infinite at {bad:,} of {given:,} inputs"
            raise ArgumentError("predict", received, "finite ones at outcomes of the draws")
        lost = int((~finite).sum())
        note = f"{lost:,} inputs between rows were left out: predict is not finite there"
        index = finite.nonzero()[:, 0]
        inside, outside = index[index < rows(x)], index[index >= rows(x)]
        trained = rows_of(targets, inside)
        watched = rows_of(targets, outside) if len(outside) else trained
        weight = None if weight is None else weight[inside.to(weight.device)]
        return cls(trained, weight, watched, error, [note] if lost else [])


def _inputs(
    source: Inputs, size: int, most: int, noise: float, generator: torch.Generator
) -> tuple[X, Tensor | None, int]:
    r"""Inputs of a source, with weights, and how many are its own: of a data set, at most `most`
    rows, and neighbours of them up to `size`.
    """
    if not isinstance(source, Dataset):
        batch = source(size)
        return batch.x, batch.weight, size
    batch = source.build(held_out.sample_rows(source, most, generator))
    x, count, weight = batch.x, rows(batch.x), batch.weight
    near = pool.neighbours(x, max(0, size - count), noise, generator)
    if near is not None:
        x = join([x, near[0]])
        weight = None if weight is None else torch.cat([weight, weight[near[1].to(weight.device)]])
    return x, weight, count


def _held_out_inputs(
    split: HeldOut, size: int, noise: float, generator: torch.Generator
) -> X | None:
    r"""Inputs that decide when to stop: held-out rows and their neighbours, or fresh inputs."""
    if split.source is None and isinstance(split.training, Dataset):  # without held-out rows
        near = pool.neighbours(split.training.x, size, noise, generator)
        return None if near is None else near[0]
    source = split.training if split.source is None else split.source
    return _inputs(source, size, MEASURED, 0.0 if split.kind == GIVEN else noise, generator)[0]


class LBFGS:
    r"""Limited-memory BFGS with backtracking; every step needs all inputs, in any order."""

    compilable = False

    def bind(self, objective: Objective, steps: int) -> None:
        self.objective = objective
        self.parameters = [p for p in objective.parameters() if p.requires_grad]
        first = self.parameters[0]
        size = sum(p.numel() for p in self.parameters)
        self.progress = Progress(len(objective.terms), first.device, first.dtype)
        wide: dict[str, Any] = {"dtype": torch.float64, "device": first.device}
        # differences of parameters and of gradients, the newest last; and how many there are
        self._moves, self._slopes = torch.zeros(2, MEMORY, size, **wide)
        self._known = torch.zeros(1, dtype=torch.int64)
        # the means of terms and of the total, and the gradient where the student is; NaN if unknown
        self._here = torch.full((len(objective.terms) + 1 + size,), math.nan, **wide)

    def step(self, plan: Plan, traced: bool) -> None:
        progress, x = self.progress, parameters_to_vector(self.parameters).detach().double()
        if self._here[0].isnan():
            self._here = self._evaluate(plan)
        means, gradient = self._here.split([len(progress.last), len(x)])
        norm = gradient.norm()
        good = progress.finite & norm.isfinite() & means.isfinite().all()
        progress.record(good, means, norm)
        if good and not self._search(plan, x, means[-1], gradient) and self._known:
            self._known.zero_()  # the curvature misleads: begin again along the gradient
            self._search(plan, x, means[-1], gradient)

    def _search(self, plan: Plan, x: Tensor, value: Tensor, gradient: Tensor) -> bool:
        r"""Move to a lower value along the direction; False, and back at x, if there is none."""
        direction = self._direction(gradient)
        slope = float(gradient @ direction)
        length = float(direction.norm()) / math.sqrt(len(x))
        if not slope < 0 or not math.isfinite(length):
            return False
        size = min(1.0, LARGEST_MOVE / length)
        for _ in range(20):
            self._write(x + size * direction)
            here = self._evaluate(plan)
            if here[-len(x) - 1] <= value + 1e-4 * size * slope:
                self._remember(size * direction, here[-len(x) :] - gradient)
                self._here = here
                return True
            size *= 0.3
        self._write(x)
        return False

    def _direction(self, gradient: Tensor) -> Tensor:
        r"""−H⁻¹g by the two-loop recursion; without any past, a gradient step of moderate size."""
        count = int(self._known)
        q = -gradient
        if not count:
            return q * min(1.0, 0.3 * math.sqrt(len(q)) / max(float(q.norm()), 1e-300))
        pairs = list(zip(self._moves[-count:], self._slopes[-count:], strict=True))
        factors = []
        for move, change in reversed(pairs):
            factor = (move @ q) / (move @ change)
            q = q - factor * change
            factors.append(factor)
        move, change = pairs[-1]
        q = q * (move @ change) / (change @ change)
        for (move, change), factor in zip(pairs, reversed(factors), strict=True):
            q = q + move * (factor - (change @ q) / (move @ change))
        return q

    def _remember(self, move: Tensor, change: Tensor) -> None:
        if float(move @ change) > 1e-10 * float(change @ change):
            for history, new in ((self._moves, move), (self._slopes, change)):
                history.copy_(torch.cat([history[1:], new[None]]))
            self._known.add_(1).clamp_(max=MEMORY)

    def _evaluate(self, plan: Plan) -> Tensor:
        r"""The mean of each term and of the total, and the gradient, in one row."""
        with torch.enable_grad():
            terms = self.objective(plan)
            means = [term.mean() for term in (*terms, self.objective.total(terms))]
            slopes = torch.autograd.grad(means[-1], self.parameters, materialize_grads=True)
        return torch.cat([part.detach().flatten().double() for part in (*means, *slopes)])

    @torch.no_grad()
    def _write(self, flat: Tensor) -> None:
        parts = flat.split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.copy_(part.reshape(p.shape))

    def same_until(self, done: int, total: int) -> bool:
        return True

    def tensors(self) -> Tensors:
        own = {name: getattr(self, f"_{name}") for name in ("moves", "slopes", "known", "here")}
        return {f"progress.{name}": t for name, t in self.progress.tensors().items()} | own

    def load(self, tensors: Tensors, path: Path) -> None:
        copy_into(self.tensors(), tensors, path)
