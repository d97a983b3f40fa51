r"""`normalize`: an unnormalised target in; a tractable student of it out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limbeck import losses
from limbeck.arguments import number, whole, whole_number
from limbeck.errors import ArgumentError
from limbeck.evaluation import evaluating
from limbeck.inputs import Samples
from limbeck.inputs.base import Inputs
from limbeck.losses.base import Loss
from limbeck.models.deep_nade import DeepNADE
from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.bounds import free_energy
from limbeck.normalization.chains import SCHEMES, Chains
from limbeck.normalization.compatibility import check_student, check_target, default_student
from limbeck.normalization.mode_search import climb
from limbeck.normalization.stages import square_error_then_kl
from limbeck.training.config import PRESETS, choose_device, refuse_unknown
from limbeck.training.distill import distill
from limbeck.training.result import Result

__all__ = [
    "NAMES",
    "SQUARE_ERRORS",
    "Constant",
    "can_warm_start",
    "find_constant",
    "normalize",
    "objective",
    "refuse_misfits",
    "warm_start",
]

SQUARE_ERRORS = ("square_error", "log_density_error", "square_error_then_kl")

NAMES = ("kl", "reverse_kl", "score_matching", *SQUARE_ERRORS)

DOUBTS = 3.0
r"""Standard errors that a constant stays below the free energy that it is taken from."""


class Constant(NamedTuple):
    r"""The constant c of the square error, and where it came from."""

    value: float
    origin: str


def refuse_misfits(loss: str | Loss, target: Any, force: bool) -> bool:
    r"""Refuse losses that do not go together, or not with the target.

    Returns:
        Whether the inputs are to be samples of the student instead of the target's chains.
    """
    if not isinstance(loss, Loss) and loss not in NAMES:
        raise ArgumentError.unknown("loss", loss, NAMES)
    names = {loss} if isinstance(loss, str) else {term.name for _, term in loss}
    if "reverse_kl" in names and len(names) > 1:
        expected = "reverse_kl alone: it is for samples of the student, the others for the target's"
        raise ArgumentError("loss", repr(loss), expected)
    discrete = getattr(getattr(target, "support", None), "discrete", False)
    if "score_matching" in names and discrete and not force:
        raise ArgumentError(
            "loss",
            f"score_matching over {target.support!r}",
            "kl or square_error: on a discrete support, log densities can have equal derivatives "
            "at every event and still be of different distributions; force=True runs it all the "
            "same",
        )
    return "reverse_kl" in names


def objective(loss: str | Loss, constant: Constant | None) -> Loss:
    r"""A loss by its name in `NAMES`; of the two stages, the first."""
    if isinstance(loss, Loss):
        return loss
    if constant is not None:
        return losses.log_density_error(constant.value)
    found: Loss = getattr(losses, loss)()
    return found


def find_constant(
    c: float | None, loss: str | Loss, target: Any, student: Any, seed: int
) -> Constant | None:
    r"""A constant that is at most log Z, for the losses that need one.

    Of a discrete target any log p̃(x) is; of another, the free energy of any tractable density.
    """
    if not isinstance(loss, str) or loss not in SQUARE_ERRORS:
        if c is not None:
            expected = f"None, since c belongs to the loss {' or '.join(SQUARE_ERRORS)}"
            raise ArgumentError("c", c, expected)
        return None
    if c is not None:
        value = number("c", c, "a finite number, at most log Z", lambda _: True)
        return Constant(value, "given")
    if target.support.discrete:
        return Constant(float(climb(target, seed=seed)[0]), "hill climbing")
    if not callable(getattr(student, "sample", None)):
        received = f"None over {target.support!r}, with a student that has no sample"
        raise ArgumentError("c", received, "a number that is at most log Z")
    bound = free_energy(target, student, seed=seed)
    value = float(bound) - DOUBTS * bound.std_error
    if not math.isfinite(value):
        received = f"None, and the free energy of the student is {bound}"
        raise ArgumentError("c", received, "a finite number, at most log Z")
    return Constant(value, "the free energy of the student")


def can_warm_start(student: Any, target: Any) -> bool:
    r"""Whether there is a warm start for this pair: a NADE or DeepNADE of an RBM of its support."""
    pair = isinstance(student, NADE | DeepNADE) and isinstance(target, RBM)
    return bool(pair and student.support == target.support)


@torch.no_grad()
def warm_start(
    student: Any, target: Any, generator: torch.Generator | None = None, centre: Any = "auto"
) -> None:
    r"""Set a NADE's or DeepNADE's parameters, in place, to those of an RBM.

    NADE began as a mean-field step in an RBM: w = u = W, b = a and c = b + m W, with rows in NADE's
    order, where m are the RBM's means by short chains. The student becomes one that is centred at
    m, whatever it was: a NADE's state then holds `mean`. Further hidden units start small; of too
    many, those of largest weights are kept.

    Arguments:
        student: A NADE or DeepNADE, of any order and any number of hidden units.
        target: An RBM over the same support.
        generator: Where the weights of further units are drawn from.
        centre: As of `NADE.from_rbm`; None leaves a student without a centre, with c = b.
    """
    if not can_warm_start(student, target):
        kinds = [
            f"{type(m).__name__} over {getattr(m, 'support', 'nothing')}" for m in (student, target)
        ]
        pairs = "a DeepNADE or NADE and an RBM over the same support"
        expected = f'init="teacher" for {pairs}; "none" for others'
        raise ArgumentError("init", f"'teacher' for {kinds[0]} of {kinds[1]}", expected)
    started: Any = NADE.from_rbm(target, student.hidden, student.order, generator, centre)
    if isinstance(student, NADE):
        student.mean = None  # it comes with the state, if there is one
    else:
        sizes = student.width, student.depth, student.run
        started = DeepNADE.from_nade(started, *sizes, generator=generator)
    student.load_state_dict(started.state_dict())


STEPS = {"auto": 20_000, "thesis": 30_000}

INITS = ("auto", "none", "teacher")

BLOCK_SWEEPS = 20
r"""Sweeps of the block about to be used, at most.

On CD25(500), 2,000 chains and batches of 20, the KL after 20,000 steps is 1.3 nats above that of
advancing all chains with one sweep, 0.4 with three, 0.07 with ten, and the same with twenty.
"""

SETTLED = ("teacher_output", "student_output", "precompute")
r"""Settings of a training that `normalize` decides itself."""


def normalize(
    target: Any,
    student: nn.Module | None = None,
    loss: str | Loss = "kl",
    *,
    steps: int | None = None,
    batch_size: int | str = "auto",
    chains: int = 2000,
    scheme: str = "auto",
    sweeps: int | None = None,
    burn_in: int = 2000,
    start: Tensor | None = None,
    init: str = "auto",
    c: float | None = None,
    switch: float = 0.1,
    preset: str = "auto",
    force: bool = False,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> Result:
    r"""Distil an unnormalised density into one that can be evaluated and sampled exactly.

    The inputs are chains of the target that advance as the student learns. Losses by name:

    * "kl": KL(p ‖ q), maximum likelihood on the target's samples;
    * "square_error" (or "log_density_error"): ½(log q − log p̃ + c)² at the target's samples;
    * "square_error_then_kl": the first for a fraction `switch` of the steps, then the other, on
      the same chains; the history's "loss" is the KL all along;
    * "reverse_kl": KL(q ‖ p) at the student's own samples; it needs no chains, and may overlook
      modes of the target;
    * "score_matching": for continuous supports only.

    `result.settings["normalization"]` says how the chains ran, what they cost, and where c and
    the student's start came from.

    Arguments:
        target: An RBM, an Energy, or anything that follows `limbeck.models.energy.Target`.
        student: A module with `log_prob` over the same support; it is trained in place. None
            makes a NADE, for discrete supports.
        loss: A name, or from `limbeck.losses`.
        steps: The number of steps: 20,000 by default, 30,000 in the preset "thesis".
        batch_size: Samples a step; 200 by default, 20 in the preset "thesis".
        chains: The number of chains; see `Chains`.
        scheme: Which chains advance at a step: "all", or the "block" that is used. "auto" is all
            on a GPU, a block on a CPU, whose time it saves.
        sweeps: By how many sweeps; by default 1 for all, and as many as a chain would get by that
            between two uses, at most 20, for a block.
        burn_in: Sweeps before the first step.
        start: Events (m, *shape) that chains start from, such as data.
        init: "teacher" sets the student to the target's weights first (a NADE of an RBM), "none"
            trains it from where it is; "auto" is "teacher" where limbeck makes the student itself.
        c: The constant of the square error, at most log Z; None finds one: by climbing the
            target, or, for continuous supports, from the free energy of the student as it starts.
        switch: The fraction of the steps before "square_error_then_kl" changes over.
        preset: "thesis" for the source text's settings: ADADELTA, batches of 20, 2,000 chains
            that all advance, a cold start.
        force: Whether to use score matching on a discrete support all the same.
        seed: Seeds everything.
        device: Where to run; "auto" is a GPU if there is one.
        checkpoint: A folder to write checkpoints to, and to resume from if it holds one.
        progress: Whether to show bars, if a terminal is there.
        options: Further arguments of `limbeck.distill`: optimizer, schedule, lr, clip, update,
            engine, metrics, held_out, patience, every, seconds, checkpoint_every, ….
    """
    for name, value, known in (
        ("scheme", scheme, ("auto", *SCHEMES)),
        ("init", init, INITS),
        ("preset", preset, STEPS),
    ):
        if value not in known:
            raise ArgumentError.unknown(name, value, known)
    refuse_unknown(options, SETTLED)
    steps = whole("steps", STEPS[preset] if steps is None else steps)
    chains, seed = whole("chains", chains), whole_number("seed", seed, "a whole number")
    on_policy = refuse_misfits(loss, target, force)
    check_target(target, chains=not on_policy)
    made = student is None
    student = default_student(target, seed) if student is None else student
    check_student(student, target, on_policy)
    place = choose_device(device)
    for model in (student, target):
        if isinstance(model, nn.Module):
            model.to(place)
    with evaluating(target):  # dropout would make another target of it at every call
        able = made and preset != "thesis" and can_warm_start(student, target)
        warm = init == "teacher" or (init == "auto" and able)
        if warm:
            warm_start(student, target, torch.Generator().manual_seed(seed))
        constant = find_constant(c, loss, target, student, seed)
        size = _batch_size(batch_size, preset, None if on_policy else chains)
        if on_policy:
            source = _own_samples(student, options)
        else:
            advance = _scheme(scheme, sweeps, preset, place, chains // size)
            source = Chains(
                target, chains, **advance, burn_in=burn_in, start=start, progress=progress
            )
        options |= {"batch_size": size, "preset": preset, "seed": seed}
        options |= {"device": device, "progress": progress, "checkpoint": checkpoint}
        if loss == "square_error_then_kl" and constant is not None:
            result = square_error_then_kl(
                target, student, source, constant.value, steps=steps, switch=switch, **options
            )
        else:
            result = distill(
                target, student, source, objective(loss, constant), steps=steps, **options
            )
    about: dict[str, Any] = {"init": "teacher" if warm else "none"}
    if constant is not None:
        about |= {"c": constant.value, "c_origin": constant.origin}
    if isinstance(source, Chains):
        about |= {
            "chains": source.count,
            "scheme": source.scheme,
            "sweeps": source.sweeps,
            "burn_in": source.burn_in,
            "sweeps_done": source.sweeps_done,
        }
        if not source.exact:
            about["doubt"] = "the target's sweeps leave it invariant only approximately"
    result.settings["normalization"] = about
    return result


def _batch_size(batch_size: int | str, preset: str, chains: int | None) -> int:
    if batch_size != "auto":
        return whole("batch_size", batch_size)
    default: int = PRESETS[preset]["batch_size"]
    return default if chains is None else min(default, chains)


def _scheme(
    scheme: str, sweeps: int | None, preset: str, place: torch.device, between: int
) -> dict[str, Any]:
    r"""Which chains advance, and by how much; there are `between` steps between uses of one."""
    if scheme == "auto":
        scheme = "all" if preset == "thesis" or place.type == "cuda" else "block"
    if sweeps is None:
        sweeps = 1 if scheme == "all" else min(max(1, between), BLOCK_SWEEPS)
    return {"scheme": scheme, "sweeps": sweeps}


def _own_samples(student: nn.Module, options: dict[str, Any]) -> Inputs:
    if options.get("held_out") is not None:
        expected = "None: reverse_kl is a mean over samples of the student itself"
        raise ArgumentError("held_out", "held-out inputs", expected)
    return Samples(student)
