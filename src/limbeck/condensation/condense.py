r"""`condense`: draws of a posterior, stored or streamed, in; a small predictive model out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from limbeck import arguments as arg
from limbeck import losses
from limbeck.arrays import Batch, X
from limbeck.condensation import densities, teachers
from limbeck.condensation.bag_fit import can_pool, fit_bag, make_bag
from limbeck.condensation.condensed import Condensed, check_student, run_steps
from limbeck.condensation.held_out import MEASURED, NewInputs, check_new_inputs, hold_out, judge
from limbeck.condensation.pool import OUTCOMES, Pool, posterior_divergence
from limbeck.condensation.predict_function import (
    OutputFamily,
    Pair,
    PairDensity,
    class_logs,
    class_student,
    paired,
    rows_of,
)
from limbeck.condensation.teachers import Average, OneDraw, Request
from limbeck.distributions import gaussians
from limbeck.distributions.base import Distribution, broadcast, map_parameters
from limbeck.errors import ArgumentError
from limbeck.inputs import Dataset, as_inputs
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.models import MLP
from limbeck.models.preprocessed import Preprocessed, standardising
from limbeck.posteriors.draws import Draws
from limbeck.posteriors.read import LAYOUTS, as_draws
from limbeck.teachers.base import Teacher
from limbeck.teachers.stored import Stored
from limbeck.training.config import PRESETS, Training
from limbeck.training.distill import batch_size_of

PROBE = 8  # inputs that `predict` is tried at
# settings of gradient descent: a bag is fitted by it if one of them is chosen
GRADIENT = ("optimizer", "schedule", "lr", "clip", "batch_size", "engine", "precompute")


@arg.checked_arguments
def condense(
    posterior: arg.UserObject[object] = None,
    predict: arg.UserObject[Callable[..., Distribution] | None] = None,
    inputs: arg.UserObject[object] = None,
    *,
    components: arg.Count | arg.Auto = "auto",
    student: nn.Module | None = None,
    loss: arg.UserObject[Loss | str] = "auto",
    online: arg.Flag | arg.Auto = "auto",
    predictions: arg.UserObject[object] = None,
    support: arg.UserObject[object] = "auto",
    weighted: arg.Flag = False,
    var_names: arg.Text | arg.Items[Sequence[str]] | None = None,
    burn_in: arg.CountFromZero = 0,
    thin: arg.Count = 1,
    layout: Annotated[str, arg.Choice(*LAYOUTS, "auto")] = "auto",
    covariance: Annotated[str, arg.Choice(*gaussians.KINDS)] = "full",
    samples: arg.Count = 10_000,
    restarts: arg.CountFromZero = 10,
    noise: arg.Fraction = 0.5,
    joint: arg.Flag = False,
    steps: arg.Count | arg.Auto = "auto",
    batch_size: arg.Count | arg.Auto = "auto",
    pool: arg.Count | arg.Auto | None = "auto",
    draws_per_input: arg.Count | arg.Auto = "auto",
    held_out: arg.UserObject[object] = None,
    held_out_fraction: arg.Remainder | arg.Auto = "auto",
    preset: Annotated[str, arg.Choice("auto", "thesis")] = "auto",
    seed: arg.Seed = 0,
    device: arg.Device | arg.Auto = "auto",
    progress: arg.Flag = True,
    **options: Any,
) -> Condensed:
    r"""Distil the predictions of all draws of a posterior into one small model.

    With stored draws the teacher is the average over all of them (batch); with a stream it is one
    fresh draw an input (online), and memory does not grow with the number of draws. If a stream
    ends early, raises, or gives a bad batch after the first step, the student so far is returned,
    and `stop_reason` says why, the latter two with a warning.

    Arguments:
        posterior: The draws: an array (draw, dim), a dict of arrays (chain, draw, ...), an ArviZ
            object, a file, or an iterator of batches; see `limbeck.posteriors.read.as_draws`.
            Default: None, beside predictions.
        predict: A function of one draw (a vector, or a dict of tensors) and all of x that gives one
            of limbeck's distributions for each input, as those in `limbeck.condensation.models`;
            without inputs, a function of a draw that gives one density. Default: None, likewise.
        inputs: Where predictions are to be alike: anything that `limbeck.inputs` takes. Default:
            None, for a density without inputs.
        components: Pseudo-draws of the student, or components of a density. Default: "auto", 10;
            with `joint=True` as many as covariances of the inputs need, if these are more.
        student: A module: of logits (n, K) for classes, of (mean, log scale) for real numbers, of
            log rates for counts, or of limbeck's distributions. It is trained in place. Default: a
            `SampleBag`, or a `GaussianMixture` without inputs.
        loss: "cross_entropy", "derivative_error", or from `limbeck.losses`. Default: "auto", the
            first.
        online: Whether to use one draw an input. Default: "auto", with streams and more than a
            gigabyte.
        predictions: Predictions of the draws at the inputs, computed elsewhere: probabilities
            (S, n) or (S, n, K), averages of them (n,) or (n, K), or a distribution of such a shape;
            or draws of outcomes (S, n) as a dict of one variable, or an ArviZ object with such a
            group posterior_predictive. Default: None.
        support: Bounds of the variables of a bag; see `SampleBag`. Default: "auto".
        weighted: Whether the components of a bag have trained weights. Default: False.
        var_names: Variables to take, or, as "~name", to leave out. Default: all.
        burn_in: Number of draws of each chain to leave out at the beginning. Default: 0.
        thin: Take every `thin`-th draw of each chain. Default: 1.
        layout: The first axes of arrays; see `limbeck.posteriors.read.as_draws`. Default: "auto".
        covariance: Without inputs, "full" (default), "diagonal" or "spherical" covariances.
        samples: Number of draws that are taken from a stream; without inputs, number of samples
            that batch EM fits. Default: 10,000.
        restarts: Without inputs, starts of EM, the best of which counts. Default: 10.
        noise: A bag is trained at the rows of data, and at inputs between and beyond them: rows
            with noise of so many standard deviations, in the data's own covariance. Whole numbers
            stay. 0 trains at the rows alone. Default: 0.5.
        joint: Whether a bag is trained on covariances too, so that these and joint samples of
            several inputs are right too. Default: False.
        steps: The number of steps. Default: "auto", up to 400 of L-BFGS for a bag; 5,000 of
            gradient descent for other students, or if you choose its optimizer, schedule, lr, clip,
            batch_size or engine.
        batch_size: Inputs a step of gradient descent. Default: 200, or the batches of a torch
            DataLoader.
        pool: Number of inputs at which the average over draws is computed, once; None draws fresh
            ones at each step of gradient descent. Default: up to 4,000 for a bag; else 5,000 to
            50,000.
        draws_per_input: Gradient descent with a stream: number of a minibatch's draws that predict
            each input; more reduce the noise and take longer. Default: up to 16; the source text
            has 1.
        held_out: Inputs at which the student is measured after training, and its loss recorded,
            unless a stream cannot go back. Default: None, a part of the inputs.
        held_out_fraction: The fraction of the different rows of a data set that the student is not
            trained on. It is measured there (`new_inputs` of the result), with a
            `limbeck.HeldOutWarning` if it is clearly worse. With `patience`, these rows decide when
            to stop. 0 trains on all rows. A source that does not end is measured at a fresh draw.
            Default: "auto", a fifth, from 5 to 1,000 rows; none of fewer than 20.
        preset: "thesis" for the source text's settings: plain gradient descent with a rate from 1
            to 0, batches of 10 fresh inputs, a bag that starts at standard normal numbers. Default:
            "auto".
        seed: Seeds everything. Default: 0.
        device: Where to run. Default: a GPU if there is one.
        progress: Whether to show bars, if a terminal is there. Default: True.
        options: Further arguments of `limbeck.distill`, with its defaults: optimizer, schedule,
            lr, engine, metrics, checkpoint, patience, ….
    """
    settings: dict[str, Any] = {
        "steps": 5_000 if steps == "auto" else steps,
        "progress": progress,
        "seed": seed,
        "device": device,
    }
    if preset == "thesis":
        settings |= {"optimizer": "sgd", "lr": 1.0, "schedule": "linear"}
        pool = None if pool == "auto" else pool
        draws_per_input = 1 if draws_per_input == "auto" else draws_per_input
        loader = isinstance(inputs, DataLoader) or getattr(inputs, "own_batches", False)
        batch_size = 10 if batch_size == "auto" and not loader else batch_size
    training = Training.from_options(
        {k: v for k, v in options.items() if not isinstance(v, str) or v != "auto"},
        decided=("teacher_output", "preset"),
        function=condense,
        batch_size=batch_size,
        **settings,
    )
    draws = None
    if posterior is not None:
        draws = as_draws(posterior, var_names=var_names, burn_in=burn_in, thin=thin, layout=layout)
    request = Request(
        draws, predict, inputs, student, components, support, weighted, preset, held_out,
        held_out_fraction, pool, samples, noise, joint, training,
    )  # fmt: skip
    if predictions is not None:
        return _condense_predictions(request, predictions, _as_loss(loss))
    if draws is None or predict is None:
        name, kind = ("predict", "a function of a draw") if draws else ("posterior", "draws")
        raise ArgumentError(name, None, f"{kind}; or predictions= of the draws at the inputs")
    online = teachers.is_online(online, draws)
    if inputs is None:
        return densities.condense_density(request, covariance, restarts, online)
    criterion, bag_steps = _as_loss(loss), None
    terms = [(c, term.name, getattr(term, "temperature", 1)) for c, term in criterion]
    default = draws_per_input == "auto" and pool is not None
    default = default and student is None and training.update is None
    default = default and all(getattr(training, n) == getattr(Training(), n) for n in GRADIENT)
    resumable = online and training.checkpoint is not None  # only the loop can go on reading draws
    if default and not resumable and terms == [(1, "cross_entropy", 1)]:
        bag_steps = 400 if steps == "auto" else int(steps)
    elif joint:
        expected = "False with other students, losses and settings of gradient descent"
        raise ArgumentError("joint", True, expected)
    return _condense_draws(request, criterion, online, draws_per_input, bag_steps)


def _as_loss(loss: Loss | str) -> Loss:
    r"""A loss by name; derivatives are weighted by the teacher, as is right for posteriors."""
    if isinstance(loss, Loss):
        return loss
    if loss == "derivative_error":
        return losses.derivative_error(weight="teacher")
    arg.choice("loss", loss, ("auto", "cross_entropy", "derivative_error"))
    return losses.cross_entropy()


def _condense_draws(
    request: Request, loss: Loss, online: bool, draws_per_input: int | str, bag_steps: int | None
) -> Condensed:
    r"""Condense by L-BFGS, in so many steps at most, where that is possible; else by gradients."""
    all_inputs, student, seed = as_inputs(request.inputs), request.student, request.training.seed
    device, dtype = request.device, request.dtype
    split = hold_out(all_inputs, request.held_out, request.held_out_fraction, seed)
    source = split.training
    for part, part_seed in ((source, seed), (split.source, seed + 1)):
        if part is not None:
            part.to(device, dtype, part_seed)
    training = split.fit_batches(request.training, all_inputs)
    x = source.probe(PROBE).x
    function, draws = request.bind(x)
    if bag_steps is not None and function.vmapped and can_pool(source):
        return fit_bag(request, function, draws, split, bag_steps)
    if student is None:
        student, training = make_bag(function, draws, request, request.count), _rate(training)
    head = OutputFamily.of(function.example)
    stored = draws if isinstance(draws, Draws) and not online else None
    fresh = teachers.FreshDraws(draws, seed + 3)
    student = student.to(device)
    rewinds = isinstance(draws, Draws) or hasattr(draws.source, "load_state_dict")
    watched = split.watched(training.patience is not None, rewinds)
    if stored is not None and head.classes:
        source, training = _pool_inputs(
            source, request.pool, stored.count, training, function.vmapped
        )
    size = _batch_size(training, source)
    if draws_per_input == "auto":  # at most a million numbers a step
        most = 10**6 // (size * function.numbers)
        draws_per_input = max(1, min(16, most)) if function.vmapped else 1
    share = int(draws_per_input)
    if head.classes:
        one = OneDraw(function, fresh, share) if stored is None else Average(function, stored)
        teacher: Teacher | None = teachers.PosteriorTeacher(one)
        wrapped, pairs = class_student(student, x), source
    else:
        loss, wrapped = densities.pair_losses(loss), PairDensity(student, head)
        teacher, outcomes = densities.outcomes_of_draws(function, loss, stored, fresh)
        pairs = densities.Outcomes(outcomes, source, fresh)
        if watched is not None:
            watched.to(device, dtype, 0)
            batch = watched.build(torch.arange(len(watched), device=device))
            with torch.no_grad():  # outcomes there are drawn once
                watched = Dataset(outcomes(batch, watched.generator))
    training = replace(training, held_out=watched)
    run, outcome = run_steps(teacher, wrapped, pairs, loss, training)
    result = Condensed(
        student,
        **outcome,
        diagnostics=teachers.diagnose(draws),
        notes=[*draws.notes, *function.notes],
        used=fresh.used if stored is None else stored.count,
        draw_bytes=teachers.bytes_of(stored.count if stored else size, draws.structure, dtype),
        head=replace(head, form=run.objective.form),
        calling=function,
        posterior=draws,
    )
    check_student(result, x)
    if (reference := fresh.recorded()) is not None:
        watching = training.patience is not None
        note = "the loss on the held-out inputs also decided when to stop" if watching else ""
        measure = partial(posterior_divergence, function, reference, result.predict, seed)
        result.new_inputs = check_new_inputs(split, source, measure, seed, note)
    return result


def _condense_predictions(request: Request, predictions: object, loss: Loss) -> Condensed:
    r"""Condense predictions at inputs; without draws the default student is a small net."""
    student, training = request.student, request.training
    if (request.predict is None) != (request.draws is None):
        name = "predict" if request.predict is None else "posterior"
        raise ArgumentError(name, None, "both posterior and predict, for a bag, or none of them")
    data = None if request.inputs is None else as_inputs(request.inputs)
    if not isinstance(data, Dataset):
        received = None if data is None else f"{type(data).__name__} inputs"
        raise ArgumentError("inputs", received, "the inputs that the predictions are of, as data")
    device, dtype, seed = request.device, request.dtype, training.seed
    if request.held_out is not None:
        received = "held-out inputs, of which no predictions are known"
        raise ArgumentError("held_out", received, "None; held_out_fraction= of the rows instead")
    averages = broadcast(densities.as_predictions(predictions, len(data)))
    split = hold_out(data, None, request.held_out_fraction, seed)
    source = split.training
    assert isinstance(source, Dataset)
    data.to(device, dtype, seed)
    source.to(device, dtype, seed)
    training = split.fit_batches(training, data)
    if training.patience is not None:
        expected = "None with predictions, which are known only at the inputs"
        raise ArgumentError("patience", training.patience, expected)
    averages = map_parameters(averages, lambda value, dims: value.to(device, dtype))
    targets = averages if split.rows is None else rows_of(averages, split.rows[0])
    head, x = OutputFamily.of(targets), source.probe(PROBE).x
    if student is None and request.draws is not None:
        student, training = make_bag(*request.bind(x), request, request.count), _rate(training)
    elif student is None:
        student = _make_net(source.x, targets, head, seed, dtype)
    student = student.to(device)
    if head.classes:
        teacher = Stored(class_logs(targets), "log_probabilities")
        run, outcome = run_steps(teacher, class_student(student, x), source, loss, training)
    else:

        def outcomes(batch: Batch, generator: torch.Generator) -> X:
            assert batch.index is not None
            return paired(Pair(batch.x, rows_of(targets, batch.index).sample((), generator)))

        wrapped, pairs = PairDensity(student, head), densities.Outcomes(outcomes, source)
        run, outcome = run_steps(None, wrapped, pairs, densities.pair_losses(loss), training)
    result = Condensed(student, **outcome, head=replace(head, form=run.objective.form))
    if split.rows is None:
        result.new_inputs = NewInputs(reason=f"unchecked at new inputs: {split.reason}")
        return result
    generator, divergences = torch.Generator().manual_seed(seed), []
    for index in split.rows:  # trained on, and held out
        here = index[torch.randperm(len(index), generator=generator)[:MEASURED]].to(data.device)
        t, f = rows_of(averages, here), result.predict(data.build(here).x)
        pool = Pool.at(here, t, head.classes, OUTCOMES, generator)
        divergences.append(pool.divergence(f).double())
    result.new_inputs = judge(divergences[0], divergences[1], 0.0, split.kind, seed)
    return result


def _rate(training: Training) -> Training:
    r"""The learning rate of a bag, whose numbers are in units of the posterior's deviations."""
    if training.update is None and training.lr is None and training.optimizer == "auto":
        return replace(training, lr=0.05)
    return training


def _make_net(
    x: X, targets: Distribution, head: OutputFamily, seed: int, dtype: torch.dtype
) -> nn.Module:
    if not isinstance(x, Tensor):
        raise ArgumentError("student", None, "a module, where inputs are a dict")
    generator = torch.Generator().manual_seed(seed)
    outputs = {"Bernoulli": 1, "Normal": 2, "Poisson": 1}.get(head.kind)
    outputs = class_logs(targets).shape[-1] if outputs is None and head.classes else outputs
    if outputs is None:
        raise ArgumentError("student", None, f"a module that gives {head.kind or 'several'} ones")
    shift, scale = standardising(x.flatten(1))
    net = MLP(shift.numel(), 64, 64, outputs, hidden="tanh", dtype=dtype, generator=generator)
    if head.kind != "Normal":
        return Preprocessed(net, shift, scale)
    mean, spread = targets.mean.mean(), (targets.variance.mean() + targets.mean.var()).sqrt()
    ends = torch.stack([mean, spread.log()]), torch.stack([spread, torch.ones_like(spread)])
    return Preprocessed(net, shift, scale, *ends, output_form="values")


def _pool_inputs(
    source: Inputs, pool: int | str | None, draws: int, training: Training, vmapped: bool
) -> tuple[Inputs, Training]:
    r"""Inputs of a source that does not end, drawn once as a data set; or the source itself."""
    if isinstance(source, Dataset) or pool is None:
        return source, training
    size = _batch_size(training, source)
    if pool == "auto":
        enough = max(5_000, min(50_000, 5 * 10**7 // draws))  # bounds the single predictions
        total = training.steps * size
        if (vmapped and total <= enough) or (source.own_batches and source.batch_size is None):
            return source, training
        pool = min(enough, total)
    batch = source(int(pool))
    data = Dataset(batch.x, weight=batch.weight)
    if source.own_batches:
        training = replace(training, batch_size=min(size, len(data)))
    return data, training


def _batch_size(training: Training, source: Inputs) -> int:
    r"""About how many inputs a step takes."""
    size, default = training.batch_size, int(PRESETS["auto"]["batch_size"])
    if source.own_batches:
        batch_size_of(size, source)  # which refuses another size
        return source.batch_size or default
    return default if isinstance(size, str) else size
