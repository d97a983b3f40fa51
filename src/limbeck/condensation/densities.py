r"""Densities of outcomes, learnt from outcomes that the posterior's draws predict.

With inputs, the student is trained on pairs of x and y; without, on events y alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from limbeck.arrays import Batch, X, as_array, as_tensor, floats, label, rows
from limbeck.condensation import teachers
from limbeck.condensation.condensed import Condensed, run_steps
from limbeck.condensation.predict_function import Pair, PredictFunction, paired, unpair
from limbeck.condensation.stepwise_em import StepwiseEM
from limbeck.condensation.teachers import FreshDraws, Request
from limbeck.distributions import as_distribution, average, broadcast, check
from limbeck.distributions.base import Distribution
from limbeck.distributions.discrete import Bernoulli, Categorical
from limbeck.distributions.gaussians import Normal
from limbeck.errors import ArgumentError, shown
from limbeck.evaluation import View
from limbeck.inputs import Dataset
from limbeck.inputs.base import Inputs, Nested
from limbeck.losses.base import Loss
from limbeck.losses.derivatives import derivative_error
from limbeck.losses.values import cross_entropy, kl
from limbeck.models.mixture import GaussianMixture
from limbeck.models.mixture_em import fit_em
from limbeck.outputs import TOLERANCE
from limbeck.posteriors.draws import Draws, group
from limbeck.teachers.base import Teacher
from limbeck.training.callbacks import replayed
from limbeck.training.result import History

MIN_OUTCOMES = 100  # draws of outcomes at an input, for an estimate of their density
MAX_COUNT = 256  # above which whole numbers are taken as real ones
OutcomesOf = Callable[[Batch, torch.Generator], X]  # pairs with the inputs of a batch, or events


class Outcomes(Nested):
    r"""Outcomes y of one posterior draw each: beside an input of a source, or alone.

    So −log f(y|x) is in the mean the cross entropy with the average over all draws. The state of
    the draws is saved and loaded with these inputs.
    """

    def __init__(self, of: OutcomesOf, inputs: Inputs | None = None, posterior: Any = None) -> None:
        super().__init__([] if inputs is None else [inputs])
        self.of, self.posterior = of, posterior
        if inputs is not None:
            self.own_batches, self.batch_size = inputs.own_batches, inputs.batch_size

    def draw(self, n: int) -> Batch:
        if not self.sources:
            return self._with_outcomes(Batch(torch.empty(n, 0)))
        source = self.sources[0]
        if isinstance(source, Dataset):  # of which n may be more than all: outcomes are fresh
            return self._with_outcomes(source.build(source.next_rows(n)))
        return self._with_outcomes(source(n))

    def probe(self, n: int) -> Batch:
        r"""A few inputs; the stream draws that they use are not repeated."""
        before = self.generator.get_state()
        batch = self._with_outcomes(self.sources[0].probe(n)) if self.sources else self(n)
        self.generator.set_state(before)
        return batch

    def stateful_parts(self) -> dict[str, Any]:
        draws = {} if self.posterior is None else {"draws": self.posterior}
        return super().stateful_parts() | draws

    @torch.no_grad()
    def _with_outcomes(self, batch: Batch) -> Batch:
        return Batch(self.of(batch, self.generator), weight=batch.weight)


class pair_derivative_error(Loss):  # noqa: N801 - losses are written as functions
    r"""½‖∂log f(y|x) − ∂log t(y|x)‖² with respect to x, at outcomes y of the teacher."""

    name = "derivative_error"
    requires = frozenset({"derivatives"})
    domain = "density"
    needs = "density"
    differentiates = True
    storable = False

    def __call__(self, student: View, teacher: View, batch: Batch, drawn: Any = None) -> Tensor:
        size = sum(part[0].numel() for part in floats(unpair(batch.x).x).values())
        residual = student.derivatives("density") - teacher.derivatives("density")  # (n, 1, D)
        return residual[:, 0, :size].square().sum(1) / 2


def pair_losses(loss: Loss) -> Loss:
    r"""The losses on pairs that stand for losses on classes."""
    total: Any = 0
    kind = "log", "teacher"  # of derivatives
    for coefficient, term in loss:
        if isinstance(term, kl) or (isinstance(term, cross_entropy) and term.temperature == 1):
            pair_term: Loss = kl()
        elif isinstance(term, derivative_error) and (term.domain, term.weight) == kind:
            pair_term = pair_derivative_error()
        else:
            expected = 'cross_entropy(), or derivative_error(weight="teacher")'
            raise ArgumentError("loss", shown(term), f"{expected}, where y is not a class")
        total = total + coefficient * pair_term
    return total


def outcomes_of_draws(
    function: PredictFunction, loss: Loss, stored: Draws | None, fresh: FreshDraws
) -> tuple[Teacher | None, OutcomesOf]:
    r"""Outcomes, one of a fresh draw's prediction at each input; and a teacher of derivatives."""
    derivatives, teacher = any("derivatives" in term.requires for _, term in loss), None
    keep = derivatives and stored is None  # the draws, which the teacher needs again
    if derivatives:
        if shape := tuple(function.example.batch_shape[1:]):
            received = f"{loss!r} of outcomes of shape {shape}"
            raise ArgumentError("loss", received, "cross_entropy() for several outcomes an input")
        function.refuse_derivatives(repr(loss))

        def density(pairs: X) -> Tensor:
            x, y, draw = unpair(pairs)
            assert draw is not None
            return function.paired(fresh.structure.unflatten(draw), x).log_prob(y)

        teacher = Teacher(density, "log_density", exact=False)
        if stored is not None:
            teacher = teachers.PosteriorTeacher(teachers.Average(function, stored, pairs=True))

    def outcomes(batch: Batch, generator: torch.Generator) -> X:
        draws = fresh.next(rows(batch.x))
        predicted = function.paired(draws, batch.x)
        y = predicted.sample((), generator)
        flat = fresh.structure.flatten(draws) if keep else None
        return paired(Pair(batch.x, y.long() if predicted.discrete else y, flat))

    return teacher, outcomes


@torch.no_grad()
def events_of(function: PredictFunction, draws: X, generator: torch.Generator) -> Tensor:
    r"""An event (n, D) of the density of each of n draws."""
    y: Tensor = function.paired(draws).sample((), generator)
    return y if function.example.event else y.unsqueeze(1)


def condense_density(request: Request, covariance: str, restarts: int, online: bool) -> Condensed:
    r"""Condense densities without inputs: mixtures by batch or stepwise EM, others by gradients."""
    student = request.student
    training = replace(request.training, held_out=request.held_out)
    device, dtype, seed = request.device, request.dtype, training.seed
    function, draws = request.bind(None)
    if function.example.discrete:
        received = f"a {type(function.example).__name__}, of whole numbers, without inputs"
        expected = "a density of real numbers; predict(draw, x) with inputs= for classes and counts"
        raise ArgumentError("predict", received, expected)
    stored = draws if isinstance(draws, Draws) else None
    generator = torch.Generator().manual_seed(seed)
    if student is None:
        dim = function.example.mean.shape[-1] if function.example.event else 1
        options: dict[str, Any] = {"dtype": dtype, "device": device, "generator": generator}
        student = GaussianMixture(request.count, dim, covariance, **options)
    notes = [*draws.notes, *function.notes[bool(function.reason) :]]  # derivatives do not matter
    gradient = training.optimizer != "auto" or (training.lr, training.clip) != (None, None)
    mixture = student if isinstance(student, GaussianMixture) and not gradient else None
    starts: dict[str, Any] = {"restarts": restarts}
    if stored is not None and mixture and not online and training.update is None:
        x = events_of(function, stored.over_time(request.samples, generator), generator)
        mixture.to(x.device)
        fit = fit_em(mixture, x, generator=generator, progress=training.progress, **starts)
        values = [-value for value in fit.log_likelihood]
        history = History({"step": list(range(len(values))), "loss": values})
        settings = {"loss": "kl()", "update": "EM", "samples": len(x), "seed": seed}
        replayed(training.callbacks, settings, history, fit.verdict)
        about = (history, fit.iterations, fit.verdict, fit.seconds, "EM", settings)
        result = Condensed(mixture, *about, notes=[*notes, *fit.reasons], used=stored.count)
        taken = stored.count
    else:
        # without inputs there is nothing to compare later, for which a stream would be recorded
        fresh: Any = draws if stored is None else FreshDraws(draws, seed + 3)

        def events_at(batch: Batch, generator: torch.Generator) -> Tensor:
            return events_of(function, fresh.next(rows(batch.x)), generator).to(dtype)

        events = Outcomes(events_at, posterior=fresh)
        if mixture is None and isinstance(student, GaussianMixture):
            events.to(device, dtype, seed)
            student.start_from(events.probe(1000).x, generator=generator)
        if mixture is not None and training.update is None:
            if training.schedule not in (None, "auto"):
                starts["schedule"] = training.schedule
            training = replace(training, update=StepwiseEM(**starts))
        run, outcome = run_steps(None, student, events, kl(), training)
        notes += getattr(training.update, "reasons", ())  # of components, by stepwise EM
        result = Condensed(student, **outcome, notes=notes, used=fresh.used)
        taken = run.batch_size or 0
    return replace(
        result,
        diagnostics=teachers.diagnose(draws),
        draw_bytes=teachers.bytes_of(taken, draws.structure, dtype),
        calling=function,
        posterior=draws,
    )


def as_predictions(predictions: object, n: int) -> Any:
    r"""The average over draws of predictions at n inputs, as one distribution of batch shape (n,).

    They are probabilities (S, n), (S, n, K), (n,) or (n, K), or a distribution (S, n) or (n,); or
    draws of outcomes (..., n), the only variable of a dict or of a group posterior_predictive.
    """
    drawn = group(predictions, "posterior_predictive", "predictions")
    if drawn is not None:
        predictions = _as_outcomes(drawn, n)
    elif not isinstance(predictions, Distribution):
        predictions = _as_classes(predictions, n)
    distribution = as_distribution(predictions, "predictions")
    shape = tuple(distribution.batch_shape)
    if shape == (n,) or (len(shape) == 2 and shape[1] == n):
        check(distribution, shape[0], "predictions")
        full = broadcast(distribution)
        return full if len(shape) == 1 else average(full)
    received = f"a {type(distribution).__name__} of the batch shape {shape}"
    raise ArgumentError("predictions", received, f"the shape (draws, {n}) or ({n},)")


def _as_outcomes(drawn: Mapping[str, Any], n: int) -> Distribution:
    r"""Draws of outcomes (..., n) as a distribution: the shares of counts, or a kernel estimate.

    Kernels are narrow normal densities about the draws, which move towards their mean such that
    means and variances stay those of the draws.
    """
    if len(drawn) != 1:
        expected = "draws of one variable, as {'y': draws}"
        raise ArgumentError("predictions", f"variables {list(drawn)}", expected)
    [(name, values)] = drawn.items()
    y = as_tensor(as_array(values, label("predictions", name))).to("cpu", torch.float64)
    if y.ndim < 2 or y.shape[-1] != n or y[..., 0].numel() < MIN_OUTCOMES:
        expected = f"draws of outcomes (draws, {n}), at least {MIN_OUTCOMES}"
        raise ArgumentError(label("predictions", name), f"shape {tuple(y.shape)}", expected)
    y = y.reshape(-1, n)
    if not y.isfinite().all():
        raise ArgumentError(label("predictions", name), "NaN or infinity", "finite outcomes")
    if (y == y.round()).all() and y.min() >= 0 and y.max() < MAX_COUNT:
        shares = torch.stack([(y == k).double().mean(0) for k in range(int(y.max()) + 1)], 1)
        return _as_classes(shares if shares.shape[1] > 2 else y.mean(0), n)
    mean, deviation = y.mean(0), y.std(0, correction=0)
    if not (deviation > 0).all():
        received = f"equal outcomes at {int((deviation == 0).sum()):,} of {n:,} inputs"
        raise ArgumentError(label("predictions", name), received, "draws of outcomes, with noise")
    width = 1.06 * len(y) ** -0.2  # of Silverman's rule, in deviations
    return Normal(mean + math.sqrt(1 - width**2) * (y - mean), (width * deviation).expand_as(y))


def _as_classes(predictions: object, n: int) -> Distribution:
    r"""Probabilities in an array as a distribution of the batch shape (S, n) or (n,)."""
    expected = f"probabilities ({n},), (draws, {n}), ({n}, classes) or (draws, {n}, classes)"
    p = as_tensor(as_array(predictions, "predictions")).to("cpu", torch.float64)
    shape = tuple(p.shape)
    if shape == (n, n):
        expected = "an average over draws, or a third axis for classes: this could be either"
        raise ArgumentError("predictions", f"shape {shape} for {n} inputs", expected)
    classes = shape[:1] == (n,) if p.ndim == 2 else p.ndim == 3
    if shape[p.ndim - 1 - classes : p.ndim - classes] != (n,) or p.ndim not in (1, 2, 3):
        raise ArgumentError("predictions", f"shape {shape} for {n} inputs", expected)
    if p.isfinite().all() and (p.min() < -TOLERANCE or p.max() > 1 + TOLERANCE):
        received = f"numbers between {p.min():.4g} and {p.max():.4g}"
        expected = "probabilities; of real numbers, limbeck.Normal(loc, scale) of the draws, or "
        expected += "{'y': draws of outcomes}"
        raise ArgumentError("predictions", received, expected)
    if p.ndim == 2 and classes and shape[1] > 1 and ((p.sum(1) - 1).abs() > 0.1).any():
        received = f"shape {shape} for {n} inputs, with rows that do not have the sum 1"
        expected = f"({n}, classes) with the sum 1, or (draws, {n}): is it transposed?"
        raise ArgumentError("predictions", received, expected)
    if not classes or shape[-1] == 1:
        return Bernoulli(probs=p.squeeze(-1) if classes else p)
    return Categorical(probs=p)
