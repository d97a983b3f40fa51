r"""`normalize`: an unnormalised target in; a tractable student of it out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limbeck.core.checks import whole_number
from limbeck.core.inputs import Inputs
from limbeck.core.loss import Loss
from limbeck.core.modes import evaluating
from limbeck.core.result import Result
from limbeck.distillation import distill
from limbeck.errors import ArgumentError
from limbeck.generative.chains import SCHEMES, Chains
from limbeck.generative.objectives import find_constant, objective, refuse_misfits
from limbeck.generative.pairing import check_student, check_target, default_student
from limbeck.generative.stages import square_error_then_kl
from limbeck.generative.warm_start import can_warm_start, warm_start
from limbeck.inputs import Samples
from limbeck.preparation import PRESETS, choose_device, whole

__all__ = ["normalize"]

STEPS = {"auto": 20_000, "thesis": 30_000}

INITS = ("auto", "none", "teacher")

BLOCK_SWEEPS = 20
r"""Sweeps of the block about to be used, at most.

On CD25(500), 2,000 chains and batches of 20, the KL after 20,000 steps is 1.3 nats above that of
advancing all chains with one sweep, 0.4 with three, 0.07 with ten, and the same with twenty.
"""

SETTLED = ("teacher", "inputs", "teacher_output", "student_output", "precompute")
r"""Arguments of `distill` that are settled here."""


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
        target: An RBM, an Energy, or anything that follows `limbeck.models.target.Target`.
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
    further = set(inspect.signature(distill).parameters) - set(SETTLED)
    for name in options:
        if name not in further:
            raise ArgumentError.unknown("options", name, further)
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
        accepted = "None: reverse_kl is a mean over samples of the student itself"
        raise ArgumentError("held_out", "held-out inputs", accepted)
    return Samples(student)
