r"""`normalize`: an unnormalised target in; a tractable student of it out."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from limbeck import arguments as arg
from limbeck import losses
from limbeck.errors import ArgumentError, shown
from limbeck.evaluation import evaluating
from limbeck.inputs import Samples
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.models.made import MADE
from limbeck.models.nade import NADE, DeepNADE
from limbeck.models.rbm import RBM
from limbeck.models.symmetrized import Symmetrized, Symmetry
from limbeck.normalization.adversarial import Adversary, adversarial
from limbeck.normalization.densities import check_student, check_target, default_student, place_of
from limbeck.normalization.importance import free_energy
from limbeck.normalization.mode_search import climb
from limbeck.samplers.chains import SCHEMES, Chains
from limbeck.training.config import PRESETS, Training, choose_device
from limbeck.training.distill import train
from limbeck.training.result import Result

SQUARE_ERRORS = ("square_error", "log_density_error")
NAMES = ("kl", "reverse_kl", "score_matching", "adversarial", *SQUARE_ERRORS)
STEPS = {"auto": 20_000, "thesis": 30_000}
MAX_TIMED_STEPS = 10_000_000  # of a run that seconds limit


def _check_loss(loss: str | Loss, target: Any, force: bool) -> bool:
    r"""Refuse losses that do not go together or with the target; whether q gives the inputs."""
    if not isinstance(loss, Loss) and not (isinstance(loss, str) and loss in NAMES):
        raise ArgumentError.unknown("loss", loss, NAMES)
    names = {loss} if isinstance(loss, str) else {term.name for _, term in loss}
    if "reverse_kl" in names and len(names) > 1:
        expected = "reverse_kl alone: it is for samples of the student, the others for the target's"
        raise ArgumentError("loss", shown(loss), expected)
    discrete = getattr(getattr(target, "support", None), "discrete", False)
    if "score_matching" in names and discrete and not force:
        expected = (
            "kl or square_error: on a discrete support, log densities can have equal derivatives "
            "at every event and still be of different distributions; force=True runs it all the "
            "same"
        )
        raise ArgumentError("loss", f"score_matching over {target.support!r}", expected)
    return "reverse_kl" in names


def find_constant(
    c: float | None, loss: str | Loss, target: Any, student: Any, seed: int
) -> dict[str, Any]:
    r"""A constant "c" that is at most log Z, and its "c_origin", for the losses that need one."""
    if not isinstance(loss, str) or loss not in SQUARE_ERRORS:
        if c is not None:
            expected = f"None, since c belongs to the loss {' or '.join(SQUARE_ERRORS)}"
            raise ArgumentError("c", c, expected)
        return {}
    if c is not None:
        return {"c": c, "c_origin": "given"}
    if target.support.discrete:  # no log p̃(x) is above log Z
        return {"c": climb(target, seed=seed)[0], "c_origin": "hill climbing"}
    if not callable(getattr(student, "sample", None)):
        received = f"None over {target.support!r}, with a student that has no sample"
        raise ArgumentError("c", received, "a number that is at most log Z")
    bound = free_energy(target, student, seed=seed)
    value = float(bound) - 3 * bound.std_error  # so that it is hardly above log Z
    if not math.isfinite(value):
        received = f"None, and the free energy of the student is {bound}"
        raise ArgumentError("c", received, "a finite number, at most log Z")
    return {"c": value, "c_origin": "the free energy of the student"}


def can_warm_start(student: Any, target: Any) -> bool:
    r"""Whether there is a warm start for this pair: a NADE or DeepNADE of an RBM of its support."""
    of_kind = isinstance(student, NADE | DeepNADE) and isinstance(target, RBM)
    return bool(of_kind and student.support == target.support)


@torch.no_grad()
def warm_start(
    student: Any, target: Any, generator: torch.Generator | None = None, centre: Any = "auto"
) -> None:
    r"""Set a NADE's or DeepNADE's parameters, in place, to those of an RBM, by `NADE.from_rbm`."""
    if not can_warm_start(student, target):
        kinds = [
            f"{type(m).__name__} over {getattr(m, 'support', 'nothing')}" for m in (student, target)
        ]
        pairs = "a DeepNADE or NADE and an RBM over the same support"
        expected = f'init="teacher" for {pairs}; "none" for others'
        raise ArgumentError("init", f"'teacher' for {' of '.join(kinds)}", expected)
    started: Any = NADE.from_rbm(target, student.hidden, student.order, generator, centre)
    if isinstance(student, NADE):
        student.mean = None if started.mean is None else started.mean.to(student.b)
    else:
        sizes = student.width, student.depth, student.run
        started = DeepNADE.from_nade(started, *sizes, generator=generator)
    tensors = student.state_dict()
    for name, values in started.state_dict().items():
        tensors[name].copy_(values)


@arg.checked_arguments
def normalize(
    target: arg.UserObject[Any], student: nn.Module | None = None,
    loss: arg.UserObject[str | Loss] = "kl", *, steps: arg.Count | None = None,
    batch_size: arg.Count | arg.Auto = "auto", chains: arg.Count = 2000,
    scheme: Annotated[str, arg.Choice(*SCHEMES, "auto")] = "auto", sweeps: arg.Count | None = None,
    burn_in: arg.CountFromZero | None = None, start: Tensor | None = None,
    init: Annotated[str, arg.Choice("auto", "none", "teacher")] = "auto",
    symmetry: arg.UserObject[Symmetry | None] = None, c: arg.Finite | None = None,
    preset: Annotated[str, arg.Choice(*STEPS)] = "auto", force: arg.Flag = False,
    seed: arg.Seed = 0, device: arg.Device | arg.Auto = "auto",
    checkpoint: arg.PathLike | None = None, progress: arg.Flag = True, **options: Any,
) -> Result:  # fmt: skip
    r"""Distil an unnormalised density into one that can be evaluated and sampled exactly.

    The inputs are chains of the target that advance as the student learns. Losses by name:

    * "kl": KL(p ‖ q), maximum likelihood on the target's samples;
    * "square_error" (or "log_density_error"): ½(log q − log p̃ + c)² at the target's samples;
    * "reverse_kl": KL(q ‖ p) at samples of the student, without chains; it may miss modes;
    * "score_matching": for continuous supports only;
    * "adversarial": log(1 + q/p) at samples of the student, with p/q by a classifier that learns to
      tell them from the target's. It also bounds the Jensen–Shannon divergence from below.

    `result.settings["normalization"]` says how the chains ran, what they cost, and where c and
    the student's start came from.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.samplers.chains.Target`.
        student: A module with `log_prob` over the same support; it is trained in place. Default:
            for discrete supports a NADE of an RBM, a small MADE of other targets.
        loss: A name, or from `limbeck.losses`. Default: "kl".
        steps: Training steps. Default: 20,000, or as many as `seconds` allow; 30,000 in the preset
            "thesis".
        batch_size: Samples per step. Default: 200, and 500 for limbeck's own MADE; 20 in the
            preset "thesis".
        chains: The number of chains; see `Chains`. Default: 2,000.
        scheme: Which chains advance at a step: "all", or the "block" that is used. Default: all on
            a GPU, a block on a CPU.
        sweeps: Sweeps of these chains at a step. Default: 1 for "all", up to 20 for "block".
        burn_in: Sweeps before the first step. Default: 2,000, within a tenth of `seconds`.
        start: Events (m, *shape) that chains start from, such as data. Default: the target's own.
        init: "teacher" first sets the student to the target's weights (a NADE of an RBM), "none"
            trains it as it is. Default: "teacher" if limbeck creates the student.
        symmetry: Symmetries of the target over which the student is averaged: "spin flip",
            "translations" or a list of both; see `lb.Symmetrized`, which the student then is. A
            target that changes under them is refused. Default: none.
        c: The constant of the square error, at most log Z. Default: found by hill climbing, or,
            for continuous supports, from the free energy of the initial student.
        preset: "thesis" for the source text's settings: ADADELTA, batches of 20, 2,000 chains
            that all advance, a cold start. Default: "auto".
        force: Whether to allow score matching on a discrete support. Default: False.
        seed: Seeds everything. Default: 0.
        device: Where to run. Default: a GPU if there is one.
        checkpoint: A folder for checkpoints, to resume from if it holds one. Default: none.
        progress: Whether to show bars, if a terminal is there. Default: True.
        options: Further arguments of `limbeck.distill`: optimizer, lr, held_out, seconds, …. With
            `seconds` and no `steps`, the learning rate falls with the time that has passed.
    """
    decided = ("teacher_output", "student_output", "precompute")
    training = Training.from_options(options, decided, normalize)
    by_time = training.seconds is not None and steps is None and preset == "auto"
    steps = steps or (MAX_TIMED_STEPS if by_time else STEPS[preset])
    on_policy = _check_loss(loss, target, force)
    check_target(target, chains=not on_policy)
    by_default = student is None
    student = default_student(target, seed) if student is None else student
    own_made = by_default and preset == "auto" and isinstance(student, MADE)
    own_made = own_made and loss != "adversarial"  # the settings below are for other losses
    check_student(student, target, on_policy or loss == "adversarial")
    place = choose_device(device)
    for model in (student, target):
        if isinstance(model, nn.Module):
            model.to(place)
    with evaluating(target):  # dropout would make another target of it at every call
        warm = init == "teacher" or (
            init == "auto" and by_default and preset != "thesis" and can_warm_start(student, target)
        )
        if warm:
            warm_start(student, target, torch.Generator().manual_seed(seed))
        if symmetry is not None:
            student = _symmetrized(student, target, symmetry, seed)
        constant = find_constant(c, loss, target, student, seed)
        size: int = 500 if own_made else PRESETS[preset]["batch_size"]
        if not isinstance(batch_size, str):
            size = batch_size
        elif not on_policy:
            size = min(size, chains)
        source: Inputs
        if on_policy:
            if training.held_out is not None:
                expected = "None: reverse_kl is a mean over samples of the student itself"
                raise ArgumentError("held_out", "held-out inputs", expected)
            source = Samples(student)
        else:
            if scheme == "auto":
                scheme = "all" if preset == "thesis" or place.type == "cuda" else "block"
            if sweeps is None:
                # As many as a chain would get between two uses, were all to advance. With CD25(500)
                # and batches of 20, the KL after 20,000 steps is above that of "all" by 1.3 nats
                # with one sweep of the block, 0.4 with three, 0.07 with ten, and 0 with twenty.
                sweeps = 1 if scheme == "all" else min(max(1, chains // size), 20)
                if by_time and own_made:  # more steps are worth more than newer samples
                    sweeps = 1
            if burn_in is None:
                limit = training.seconds if by_time else None
                burn_in = _burn_in(target, chains, start, limit)
            source = Chains(
                target, chains, scheme=scheme, sweeps=sweeps, burn_in=burn_in, start=start,
                progress=progress,
            )  # fmt: skip
        training = replace(
            training, steps=steps, batch_size=size, preset=preset, seed=seed, device=device,
            progress=progress, checkpoint=checkpoint,
        )  # fmt: skip
        if own_made and training.lr is None and training.optimizer == "auto":
            training = replace(training, lr=0.02)
        as_usual = training.engine == "auto" and training.update is None
        if by_time and as_usual and training.schedule == "auto":
            schedule = CosineOfTime(training.seconds or 1.0)
            training = replace(training, schedule=schedule, engine="eager")
        if by_time:
            training = replace(training, every=training.every or 100)
        objective = losses.log_density_error(constant["c"]) if constant else loss
        if loss == "adversarial":
            training = replace(training, update=_adversary(training, size), engine="eager")
            objective = adversarial()
        elif isinstance(objective, str):
            objective = getattr(losses, objective)()
        result = train(target, student, source, objective, training)
        settings: dict[str, Any] = {"init": "teacher" if warm else "none", **constant}
        settings |= training.update.outcome() if isinstance(training.update, Adversary) else {}
    if isinstance(source, Chains):
        names = ("scheme", "sweeps", "burn_in", "sweeps_done")
        settings |= {"chains": source.count, **{name: getattr(source, name) for name in names}}
        if not getattr(target, "exact", True):
            settings["doubt"] = "the target's sweeps leave it invariant only approximately"
    result.settings["normalization"] = settings
    return result


def _adversary(training: Training, size: int) -> Adversary:
    r"""The update by a classifier; settings that it has no use for are refused."""
    fixed = ("update", "held_out", "checkpoint")
    given = [name for name in fixed if getattr(training, name) is not None]
    if given or size < 2 or training.engine not in ("auto", "eager"):
        received = f"adversarial with {', '.join(given) or f'batches of {size}, {training.engine}'}"
        expected = "no update, held_out, checkpoint or compiled engine, and batches from 2 samples"
        raise ArgumentError("loss", received, expected)
    options = {} if training.lr is None else {"lr": training.lr}
    optimizer = "adam" if training.optimizer == "auto" else training.optimizer
    schedule = "cosine" if training.schedule == "auto" else training.schedule
    return Adversary(optimizer, schedule, clip=training.clip, **options)


def _symmetrized(student: nn.Module, target: Any, symmetry: Symmetry, seed: int) -> Symmetrized:
    r"""The student, averaged over symmetries that the target is seen to have."""
    averaged = Symmetrized(student, symmetry)
    generator = torch.Generator(place_of(target)[0]).manual_seed(seed)
    x = target.support.start(64, generator, *place_of(target))
    averaged.check_target(target, x)
    if callable(getattr(target, "advance", None)):  # where the mass is
        averaged.check_target(target, target.advance(x, 20, generator))
    return averaged


def _burn_in(target: Any, chains: int, start: Tensor | None, limit: float | None) -> int:
    r"""2,000 sweeps of all chains, or, within a time limit, as many as take a tenth of it."""
    if limit is None:
        return 2000
    like = Chains(target, chains, burn_in=0, start=start, seed=0, progress=False)
    like.to(*place_of(target), 0)
    like.advance(1)  # the first one may prepare something
    began = time.monotonic()
    like.advance(5)
    sweep = (time.monotonic() - began) / 5
    return max(1, min(2000, int(limit / 10 / max(sweep, 1e-9))))


@dataclass
class CosineOfTime:
    r"""Half a cosine from 1 to 0 of the fraction of some seconds since the first call."""

    seconds: float
    began: float | None = field(default=None, repr=False, compare=False)

    def __call__(self, t: Tensor, total: int) -> Tensor:
        if self.began is None:  # what is loaded before the first step is no part of training
            self.began = time.monotonic()
        passed = min((time.monotonic() - self.began) / self.seconds, 1.0)
        return torch.full_like(t, (1 + math.cos(math.pi * passed)) / 2, dtype=torch.float64)
